"""Runs that torch looks on at: a key says which function of which arguments, for two operators."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from fusedreduce.derivative import derived
from fusedreduce.errors import OptionError, message
from fusedreduce.program import Dims, Program
from fusedreduce.request import fixed, require_served
from fusedreduce.run import library
from fusedreduce.run.autograd import Plan

UNKNOWN_SIZE = 4096  # stands for a size that torch itself does not know while it compiles


class Runner(Protocol):
    """Who runs a task; `at(depth)` runs it with so many outer axes more."""

    @property
    def task(self) -> Any: ...

    def at(self, depth: int) -> Runner: ...

    def find(self, values: Mapping[str, Any], impl: str | None, trust: bool) -> Any: ...

    def traced(self, values: Mapping[str, Any], trust: bool) -> Any: ...

    def eager(self, values: Mapping[str, Any]) -> list[Tensor]: ...


@dataclass(frozen=True)
class Found:
    """What a run showed: the structure of its result, and how it is differentiated."""

    structure: Any
    outputs: int
    floating: int
    wanted: tuple[str, ...]
    derived: bool


@dataclass
class Entry:
    """What a key stands for.

    arguments  (name, "tensor" | "number" | "dtype" | "fixed", the value if fixed), in order
    wanted     the inputs whose gradients will be asked for
    depth      how many vmaps are around it
    """

    runner: Runner
    arguments: tuple[tuple[str, str, Any], ...]
    impl: str | None
    trust: bool
    wanted: tuple[str, ...]
    depth: int = 0
    found: Found | None = None
    programs: dict[Any, tuple[Program, Found]] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        home = (*self.runner.task.home, number_of(self.runner))
        return repr((home, self.arguments, self.impl, self.trust, self.wanted, self.depth))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n, kind, _ in self.arguments if kind == "tensor")

    def batched(self) -> Entry:
        """The same with one more axis in front of every tensor."""
        inside = kept(replace(self, depth=self.depth + 1, programs={}))
        inside.learn(self)
        return inside

    def learn(self, other: Entry) -> None:
        """What a run with an axis more or less showed holds here too."""
        self.found = other.found or self.found

    def values(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> dict[str, Any]:
        """The arguments by name, in order."""
        given = {"tensor": iter(tensors), "number": iter(numbers)}
        found = {n: next(given[k]) if k in given else v for n, k, v in self.arguments}
        return found | {n: getattr(torch, v) for n, k, v in self.arguments if k == "dtype"}

    # -- the operators

    def forward(self, tensors: list[Tensor], numbers: Sequence[float]) -> list[Tensor]:
        values = self.values(tensors, numbers)
        runner = self.runner.at(self.depth)
        ready = runner.find(values, self.impl, self.trust)
        plan = ready.plan(values, self.wanted, packed=False) if self.wanted else None
        self.found = seen(ready.structure, ready.program, plan, self.wanted)
        made = ready.run(values) if plan is None else plan.forward(values)
        return [_own(t, tensors) for t in made]

    def backward(self, tensors: list[Tensor], numbers: Sequence[float]) -> list[Tensor]:
        n = len(self.names)
        values = self.values(tensors[:n], numbers)
        ready = self.runner.at(self.depth).find(values, self.impl, self.trust)
        plan = ready.plan(values, self.wanted, packed=False)
        if plan.backward is None:  # a batch of none
            return [torch.zeros_like(t) for m, t in zip(self.names, tensors, strict=False)
                    if m in plan.wanted]  # fmt: skip
        m = n + len(plan.floating)
        fixed_values = {k: v for k, v in values.items() if k not in self.names}
        found = plan.gradients(fixed_values, tensors[:n], tensors[n:m], tensors[m:])
        inputs = dict(zip(self.names, tensors, strict=False))
        return [
            torch.zeros_like(inputs[w]) if g is None else _alone(g)
            for w, g in zip(plan.wanted, found, strict=True)
        ]

    # -- the operators on tensors without numbers

    def fake_forward(self, tensors: list[Tensor], numbers: Sequence[float]) -> list[Tensor]:
        """Empty outputs: the program is traced at the sizes that torch has at hand."""
        shapes = [tuple(map(hint, t.shape)) for t in tensors]
        key = tuple((s, t.dtype) for s, t in zip(shapes, tensors, strict=True))
        if key not in self.programs:
            require_served(self.values(tensors, numbers))
            stand_ins = [
                torch.empty(s, dtype=t.dtype, device="meta")
                for s, t in zip(shapes, tensors, strict=True)
            ]
            self.programs[key] = self.trace(self.values(stand_ins, numbers))
        program, self.found = self.programs[key]
        sizes = Sizes(program, dict(zip(self.names, tensors, strict=True)))
        device = tensors[0].device
        return [
            torch.empty(sizes.of(o.dims), dtype=getattr(torch, o.dtype), device=device)
            for o in program.outputs
        ]

    def trace(self, values: Mapping[str, Any]) -> tuple[Program, Found]:
        """The forward program with all that it saves, and what is to be known of it."""
        traced = self.runner.at(self.depth).traced(values, self.trust)
        program: Program = traced.program
        empty = any(a.size == 0 for a in program.axes)
        made = derived(program, self.wanted) if self.wanted and not empty else "not asked for"
        outputs = program.outputs
        found = Found(
            traced.structure,
            len(outputs),
            sum("float" in o.dtype for o in outputs),
            self.wanted,
            not isinstance(made, str),
        )
        if isinstance(made, str):
            return program, found
        found = replace(found, wanted=tuple(n for n in self.wanted if n in program.by_name))
        return made.forward, found

    def fake_backward(self, tensors: list[Tensor], numbers: Sequence[float]) -> list[Tensor]:
        if self.found is None:
            self.fake_forward(tensors[: len(self.names)], numbers)
        assert self.found is not None
        inputs = dict(zip(self.names, tensors, strict=False))
        return [torch.empty(t.shape, dtype=t.dtype, device=t.device)
                for t in (inputs[w] for w in self.found.wanted)]  # fmt: skip


def seen(structure: Any, program: Program, plan: Plan | None, wanted: tuple[str, ...]) -> Found:
    floating = sum("float" in o.dtype for o in program.outputs)
    if plan is None:
        return Found(structure, len(program.outputs), floating, wanted, False)
    return Found(structure, len(plan.outputs), floating, plan.wanted, plan.backward is not None)


def _own(made: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """An operator's output is no view of an input: empty tensors are passed through as they are."""
    shares = any(made is t or made._base is t for t in inputs)
    return made.clone() if shares else made


def _alone(gradient: Tensor) -> Tensor:
    """Contiguous, and in memory of its own: operators' outputs share none, and begin aligned."""
    made = gradient.contiguous()
    size = made.numel() * made.element_size()
    return made if made.untyped_storage().nbytes() == size else made.clone()


def hint(size: int | torch.SymInt) -> int:
    """A size that torch has at hand for a symbolic one; nothing is decided about it."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return UNKNOWN_SIZE if found is None else int(found)


@dataclass
class Sizes:
    """Sizes of axes as torch's own, symbolic where those of the inputs are."""

    program: Program
    tensors: Mapping[str, Tensor]
    known: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for i in (i for i in self.program.inputs if not i.number):
            for axes, size in zip(i.dims, self.tensors[i.name].shape, strict=True):
                self.meet(axes, size)

    def meet(self, axes: tuple[str, ...], size: Any) -> None:
        """Two dimensions that run over one axis have one size, from now on for sure."""
        if axes in self.known:
            torch._check(self.known[axes] == size)  # type: ignore[no-untyped-call]
        else:
            self.known[axes] = size

    def of(self, dims: Dims) -> list[Any]:
        return [self.known[d] if d in self.known else prod(map(self.axis, d)) for d in dims]

    def axis(self, name: str) -> Any:
        """NOTE: an axis that was split from a dimension fixes the size of that dimension."""
        if (name,) in self.known:
            return self.known[(name,)]
        for axes, size in self.known.items():
            if name in axes:
                int(size)
        return self.program.size[name]


# ---- keys --------------------------------------------------------------------------------------

ENTRIES: dict[str, Entry] = {}
OWNERS: dict[Any, list[Any]] = {}  # the tasks that call the same place their home, as they came
HOMES: dict[str, Callable[[str, str], Runner]] = {}  # how to find a function's runner again


def number_of(runner: Runner) -> int:
    """Functions made at one place, by a factory for instance, are told apart by their order."""
    tasks = OWNERS.setdefault(runner.task.home, [])
    if runner.task not in tasks:
        tasks.append(runner.task)
    return tasks.index(runner.task)


def kept(entry: Entry) -> Entry:
    return ENTRIES.setdefault(entry.key, entry)


def entry_of(
    runner: Runner,
    values: Mapping[str, Any],
    impl: str | None,
    trust: bool,
    wanted: tuple[str, ...],
) -> Entry:
    arguments = tuple((n, *_kind(v)) for n, v in values.items())
    return kept(Entry(runner, arguments, impl, trust, wanted))


def _kind(value: Any) -> tuple[str, Any]:
    if isinstance(value, Tensor):
        return "tensor", None
    if isinstance(value, float):
        return "number", None
    if isinstance(value, torch.dtype):
        return "dtype", str(value).removeprefix("torch.")
    fixed(value)  # refuses what cannot be told apart
    return "fixed", value


def find(key: str) -> Entry:
    """What a key stands for; one from an exported program is looked up where it was declared."""
    entry = ENTRIES.get(key)
    return entry if entry is not None else _declared(key)


def _declared(key: str) -> Entry:
    try:
        (kind, place, options, _), *rest = ast.literal_eval(key)
        arguments, impl, trust, wanted, depth = rest
        runner = HOMES[kind](place, options)
        entry = Entry(runner, arguments, impl, trust, wanted, depth)
        same = entry.key == key
    except (LookupError, AttributeError, ValueError, SyntaxError) as error:
        raise _lost(key, f"{type(error).__name__}: {error}") from None
    if not same:
        raise _lost(key, "what stands under this name now is something else")
    return kept(entry)


def _lost(key: str, why: str) -> OptionError:
    return OptionError(
        message(
            "an exported program calls a function that is not here",
            came=f"{key[:200]} ({why})",
            do="import the module that declares it before loading the program",
        )
    )


@dataclass(frozen=True)
class Keyed:
    """A call by key, as autograd sees it; its numbers are given apart."""

    entry: Entry
    numbers: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.entry.names

    @property
    def found(self) -> Found:
        assert self.entry.found is not None
        return self.entry.found

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.found.wanted

    @property
    def outputs(self) -> int:
        return self.found.outputs

    @property
    def floating(self) -> int:
        return self.found.floating

    @property
    def derived(self) -> bool:
        return self.found.derived

    @property
    def order(self) -> tuple[int | None, ...]:
        return tuple(self.wanted.index(n) if n in self.wanted else None for n in self.names)

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return library.rows(self.entry.key, tensors, self.numbers)

    def backward(
        self, tensors: Sequence[Tensor], ups: Sequence[Tensor], saved: Sequence[Tensor]
    ) -> list[Tensor | None]:
        given = (*tensors, *ups, *saved)
        return [*library.rows_backward(self.entry.key, given, self.numbers)]

    def meaning(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        values = self.entry.values(tensors, self.numbers)
        return self.entry.runner.at(self.entry.depth).eager(values)

    def batched(self) -> Keyed:
        return replace(self, entry=self.entry.batched())

    def learn(self, inside: Keyed) -> None:
        self.entry.learn(inside.entry)


library.define(find)
