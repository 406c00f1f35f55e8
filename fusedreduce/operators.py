"""Runs that torch looks on at: a key says which function of which arguments, for two operators."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from fusedreduce.errors import OptionError, message
from fusedreduce.request import fixed
from fusedreduce.run import library
from fusedreduce.run.calls import Plan


class Ready(Protocol):
    """A call that is prepared: how to run it, its result's structure and dtypes, its derivative."""

    @property
    def run(self) -> Callable[[Mapping[str, Any]], list[Tensor]]: ...

    @property
    def structure(self) -> Any: ...

    @property
    def dtypes(self) -> tuple[str, ...]: ...

    def plan(self, values: Mapping[str, Any], wanted: tuple[str, ...], packed: bool) -> Plan: ...


class Runner(Protocol):
    """Who runs a task; `at(depth)` runs it with so many outer axes more.

    operator   the operator that its calls are: "rows" or "pairs"
    """

    @property
    def operator(self) -> str: ...

    @property
    def task(self) -> Any: ...

    def at(self, depth: int) -> Runner: ...

    def find(self, values: Mapping[str, Any], impl: str | None, trust: bool) -> Ready: ...

    def fake(
        self, values: Mapping[str, Any], trust: bool, wanted: tuple[str, ...]
    ) -> tuple[list[Tensor], Found]: ...

    def eager(self, values: Mapping[str, Any]) -> list[Tensor]: ...


@dataclass(frozen=True)
class Found:
    """What a run showed: the structure of its result, and how it is differentiated."""

    structure: Any
    outputs: int
    floating: int
    wanted: tuple[str, ...]
    derived: bool
    kept: tuple[int, ...] = ()


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

    @cached_property
    def key(self) -> str:
        home = (*self.runner.task.home, number_of(self.runner))
        return repr((home, self.arguments, self.impl, self.trust, self.wanted, self.depth))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n, kind, _ in self.arguments if kind == "tensor")

    def batched(self) -> Entry:
        """The same with one more axis in front of every tensor."""
        inside = kept(replace(self, depth=self.depth + 1))
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
        self.found = found_in(ready.structure, ready.dtypes, self.wanted, derived=False)
        if plan is not None:
            self.found = replace(
                self.found, wanted=plan.wanted, derived=plan.backward is not None,
                kept=plan.places,
            )  # fmt: skip
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
        runner, values = self.runner.at(self.depth), self.values(tensors, numbers)
        made, self.found = runner.fake(values, self.trust, self.wanted)
        return made

    def fake_backward(self, tensors: list[Tensor], numbers: Sequence[float]) -> list[Tensor]:
        if self.found is None:
            self.fake_forward(tensors[: len(self.names)], numbers)
        assert self.found is not None
        inputs = dict(zip(self.names, tensors, strict=False))
        return [torch.empty(t.shape, dtype=t.dtype, device=t.device)
                for t in (inputs[w] for w in self.found.wanted)]  # fmt: skip


def found_in(
    structure: Any, dtypes: Sequence[str], wanted: tuple[str, ...], derived: bool
) -> Found:
    floating = sum("float" in d for d in dtypes)
    return Found(structure, len(dtypes), floating, wanted, derived)


def _own(made: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """An operator's output is no view of an input: empty tensors are passed through as they are."""
    shares = any(made is t or made._base is t for t in inputs)
    return made.clone() if shares else made


def _alone(gradient: Tensor) -> Tensor:
    """Contiguous, and in memory of its own: operators' outputs share none, and begin aligned."""
    made = gradient.contiguous()
    size = made.numel() * made.element_size()
    return made if made.untyped_storage().nbytes() == size else made.clone()


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


for operator in ("rows", "pairs"):
    library.define(operator, find)
