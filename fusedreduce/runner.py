"""Runs a task: down the pipeline once for each shape, then from memory; as torch wants it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from fusedreduce import operators, pipeline
from fusedreduce.derivative import Backend, derived, differentiable
from fusedreduce.keyed import Keyed
from fusedreduce.operators import Found, found_in
from fusedreduce.pipeline import Printed, Task, Traced, print_traced, trace_task
from fusedreduce.program import Program
from fusedreduce.request import (
    alive,
    choose,
    grads_of,
    key_of,
    looked_on,
    one_device,
    refuse_duals,
    require_served,
    watched,
)
from fusedreduce.run import autograd, launch, tiles
from fusedreduce.run.calls import Direct, Plan
from fusedreduce.sizes import Sizes, hint
from fusedreduce.structure import leaves, plain, rebuild

T = TypeVar("T")
_noted: ContextVar[list[Noted] | None] = ContextVar("calls that are noted, not run", default=None)
_met: ContextVar[list[Met] | None] = ContextVar("calls that are run, and looked at", default=None)
MOST_PREPARED = 512  # calls of different shapes remembered for one task


@dataclass(frozen=True)
class Prepared:
    """What is left to do for a call whose shapes were seen before."""

    implementation: str
    run: Callable[[Mapping[str, Any]], list[torch.Tensor]]
    structure: Any
    program: Program
    meaning: Callable[[Mapping[str, Any]], list[torch.Tensor]]
    origin: str
    printed: Printed | None = None
    plans: dict[Any, Plan] = field(default_factory=dict)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(o.dtype for o in self.program.outputs)

    def plan(self, values: Mapping[str, Any], wanted: tuple[str, ...], packed: bool) -> Plan:
        """How to differentiate a call of these shapes for the inputs that ask for it.

        packed   save the summaries in few tensors: for launches that nothing stands between
        """
        found = self.plans.get((wanted, packed))
        if found is None:
            names = tuple(n for n, v in values.items() if isinstance(v, torch.Tensor))
            found = self.plans[wanted, packed] = differentiable(
                self.program,
                Backend(self.implementation, self.origin, one_device(values), packed),
                names,
                wanted,
                self.run,
                self.meaning,
            )
        return found


@dataclass(frozen=True)
class Noted:
    """A call that was met while calls are noted."""

    runner: Runner
    values: Mapping[str, Any]
    impl: str | None
    trust: bool


@dataclass(frozen=True)
class Met:
    """A call that was run: how, on what, and what came of it."""

    ready: Prepared
    values: Mapping[str, Any]
    answer: Any


def is_noting() -> bool:
    """Are calls noted instead of run?"""
    return _noted.get() is not None


def is_free() -> bool:
    """Are calls run as they come: nobody traces, transforms or notes them?"""
    return _noted.get() is None and pipeline.inside() is None and not looked_on()


def noting() -> AbstractContextManager[list[Noted]]:
    """Inside, calls are noted instead of run: their results are empty tensors."""
    return _listed(_noted)


def is_meeting() -> bool:
    """Does somebody look at the calls that are run?"""
    return _met.get() is not None


def meeting() -> AbstractContextManager[list[Met]]:
    """Inside, calls are run and told; of those that torch looks on at nothing is told."""
    return _listed(_met)


@contextmanager
def _listed(calls: ContextVar[list[T] | None]) -> Iterator[list[T]]:
    found: list[T] = []
    token = calls.set(found)
    try:
        yield found
    finally:
        calls.reset(token)


@dataclass
class Runner:
    """Runs one task; remembers what it prepared, by shapes, strides, dtypes, device.

    depth   outer axes that every tensor has in front of its own dimensions, one for each vmap
    """

    task: Task
    depth: int = 0
    prepared: OrderedDict[Any, Prepared] = field(default_factory=OrderedDict)
    outlines: dict[Any, tuple[Program, Found]] = field(default_factory=dict)
    deeper: Runner | None = None
    operator: str = "rows"

    def __call__(self, values: Mapping[str, Any], impl: str | None, trust: bool = False) -> Any:
        impl, values = impl or pipeline.inside(), alive(values)
        noted = _noted.get()
        if noted is not None:
            return self.note(noted, values, impl, trust)
        if impl == "eager":
            require_served(values)
            return self.task.eager(values)
        if watched(values):
            return self.in_operators(values, impl, trust)
        ready = self.find(values, impl, trust)
        answer, met = self.go(ready, values), _met.get()
        if met is not None:
            met.append(Met(ready, values, answer))
        return answer

    def go(self, ready: Prepared, values: Mapping[str, Any]) -> Any:
        """A prepared call where nobody looks on."""
        wanted = grads_of(values)
        if not wanted:
            return rebuild(ready.structure, ready.run(values))
        plan = ready.plan(values, wanted, packed=True)
        fixed = {n: v for n, v in values.items() if n not in plan.names}
        made = autograd.run(Direct(plan, fixed), [values[n] for n in plan.names])
        return rebuild(ready.structure, made)

    def note(
        self, noted: list[Noted], values: Mapping[str, Any], impl: str | None, trust: bool
    ) -> Any:
        """Remember the call; answer empty tensors of the shapes that it would answer."""
        values = {n: plain(v) for n, v in values.items()}
        noted.append(Noted(self, values, impl, trust))
        made, found = self.fake(values, trust, ())
        return rebuild(found.structure, made)

    def in_operators(self, values: Mapping[str, Any], impl: str | None, trust: bool) -> Any:
        """The same by operators, where torch traces, transforms or watches."""
        refuse_duals(values, impl)
        values = {n: plain(v) for n, v in values.items()}
        entry = operators.entry_of(self, values, impl, trust, grads_of(values))
        tensors = [v for v in values.values() if isinstance(v, torch.Tensor)]
        numbers = tuple(v for v in values.values() if isinstance(v, float))
        call = Keyed(entry, numbers)
        made = autograd.run(call, tensors) if entry.wanted else call.run(tensors)
        return rebuild(call.seen.structure, made)

    def at(self, depth: int) -> Runner:
        """The runner of the same task with more axes in front."""
        if depth == self.depth:
            return self
        if self.deeper is None:
            self.deeper = type(self)(self.task, self.depth + 1)
        return self.deeper.at(depth)

    def eager(self, values: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of the result, by the meaning."""
        if not self.depth:
            return leaves(self.task.eager(values))
        names = [n for n, v in values.items() if isinstance(v, torch.Tensor)]

        def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
            return leaves(self.task.eager({**values, **dict(zip(names, tensors, strict=True))}))

        for _ in range(self.depth):
            function = torch.vmap(function)
        return function(*(values[n] for n in names))

    def traced(self, values: Mapping[str, Any], trust: bool) -> Traced:
        return trace_task(self.task, values, trust, self.depth)

    def fake(
        self, values: Mapping[str, Any], trust: bool, wanted: tuple[str, ...]
    ) -> tuple[list[torch.Tensor], Found]:
        """Empty outputs: the program is traced at the sizes that torch has at hand."""
        tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
        stand_ins = {
            n: torch.empty(tuple(map(hint, t.shape)), dtype=t.dtype, device="meta")
            for n, t in tensors.items()
        }
        key = (wanted, *self.key({**values, **stand_ins}, None, trust))
        if key not in self.outlines:
            require_served(values)
            self.outlines[key] = self.outline({**values, **stand_ins}, trust, wanted)
        program, found = self.outlines[key]
        sizes, device = Sizes(program, tensors), next(iter(tensors.values())).device
        made = [
            torch.empty(sizes.of(o.dims), dtype=getattr(torch, o.dtype), device=device)
            for o in program.outputs
        ]
        return made, found

    def outline(
        self, values: Mapping[str, Any], trust: bool, wanted: tuple[str, ...]
    ) -> tuple[Program, Found]:
        """The forward program with all that it saves, and what is to be known of it."""
        traced = self.traced(values, trust)
        program = traced.program
        empty = any(a.size == 0 for a in program.axes)
        made = derived(program, wanted) if wanted and not empty else "not asked for"
        dtypes = tuple(o.dtype for o in program.outputs)
        if isinstance(made, str):
            return program, found_in(traced.structure, dtypes, wanted, derived=False)
        read = tuple(n for n in wanted if n in program.by_name)
        return made.forward, found_in(traced.structure, dtypes, read, derived=True)

    def find(self, values: Mapping[str, Any], impl: str | None, trust: bool) -> Prepared:
        try:
            key = self.key(values, impl, trust)
        except RuntimeError:  # a tensor without strides
            require_served(values)
            raise
        ready = self.prepared.get(key)
        if ready is None:
            with pipeline.ONE_AT_A_TIME:
                ready = self.prepare(values, impl, trust)
            if self.keeps(key):
                self.prepared[key] = ready
            if len(self.prepared) > MOST_PREPARED:
                self.prepared.popitem(last=False)
        return ready

    def key(self, values: Mapping[str, Any], impl: str | None, trust: bool) -> tuple[Any, ...]:
        """What a prepared call may be used again for."""
        default = torch.get_default_dtype()  # what integers become
        return (impl, trust, default, *map(key_of, values.values()), *values)

    def keeps(self, key: Any) -> bool:
        """Is what was prepared worth keeping? It took a trace, a plan and a print."""
        return True

    def prepare(self, values: Mapping[str, Any], impl: str | None, trust: bool) -> Prepared:
        """Down the page once: which implementation, and everything it needs."""
        require_served(values)
        chosen = choose(impl, one_device(values))
        traced = self.traced(values, trust)
        program, origin, printed = traced.program, self.task.origin, None
        run: Callable[[Mapping[str, Any]], list[torch.Tensor]]
        if any(a.size == 0 for a in program.axes):
            chosen, run = "eager", self.eager
        elif chosen == "tiles":
            run = lambda v: tiles.run(program, v)
        else:
            printed = print_traced(traced, values)
            kernel, plan, lay = printed.kernel, printed.plan, printed.layout
            run = launch.prepare(program, kernel, plan, lay, origin, one_device(values))
        return Prepared(chosen, run, traced.structure, program, self.eager, origin, printed)
