"""START HERE: declaration -> trace -> prove -> plan -> print -> run, on one page.

A `Task` is what somebody asked for (one declared reduction, or a fused function). The first call
with tensors of some shapes goes down the whole page and leaves a `Plan of action` in a cache; the
next one with the same shapes only runs.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from fusedreduce.chain import Chain, TracedTensor
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction
from fusedreduce.derivative import differentiable
from fusedreduce.errors import NotFusible, ProofWarning, message
from fusedreduce.kernels.rows import PrintedKernel, print_rows
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import Layout, layout
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Program
from fusedreduce.request import choose, key_of, one_device, require_served
from fusedreduce.run import autograd, launch, tiles
from fusedreduce.run.autograd import Plan
from fusedreduce.structure import flatten, leaves, rebuild
from fusedreduce.torch_reductions import TORCH_REDUCTIONS
from fusedreduce.trace import Names

ONE_AT_A_TIME = threading.RLock()  # tracing and proofs: mpmath's precision is one for all threads
MOST_PREPARED = 512  # calls of different shapes remembered for one task


class Task(Protocol):
    """What is to be run: it can be traced, and it can be run as it means."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str: ...

    def trace(self, chain: Chain, values: Mapping[str, Any], names: Names) -> Any: ...

    def eager(self, values: Mapping[str, Any]) -> Any: ...


# ---- prove -------------------------------------------------------------------------------------


_warned: set[str] = set()


def _warn_once(what: str, text: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warnings.warn(text, ProofWarning, stacklevel=4)


def certified(record: Record, trust: bool = False) -> tuple[Record, str]:
    """The record with derived corrections and chosen guards, and its certificate in one line.

    Raises `LawViolation` when a law is refuted; warns once when one is neither proved nor refuted.
    """
    from fusedreduce import laws

    with ONE_AT_A_TIME:
        complete, certificate = laws.certified(record)
    certificate.raise_if_refuted()
    if not certificate.proved and not trust:
        _warn_once(certificate.hash, str(certificate))
    if certificate.facts.bounded is False and not trust:
        _warn_once(
            f"bounded {certificate.hash}",
            f"{record.name}: a term or correction grows without bound as its reference moves; it "
            "may overflow where the result would not",
        )
    flat = [o for o, how in certificate.facts.gauge if how in ("free", "first order")]
    gauge = record.outputs if record.jointly_gauge else tuple(flat)
    complete = replace(complete, gauge=gauge)
    words = "proved over the reals" if certificate.proved else "not proved"
    return complete, f"{words}{', trusted' * trust} (certificate {certificate.hash})"


# ---- trace, plan, print ------------------------------------------------------------------------


@dataclass(frozen=True)
class Traced:
    """A task in normal form for given shapes, and the structure of its result."""

    program: Program
    structure: Any
    certificates: tuple[str, ...]


def trace_task(task: Task, values: Mapping[str, Any], trust: bool) -> Traced:
    """Declaration or function -> normal form."""
    certificates: dict[str, None] = {}

    def complete(R: type[Reduction]) -> Record:
        for part in R.parts:  # a join has no definition of its own: its parts are judged by theirs
            certified(part.record, trust)
        record, summary = certified(R.record, trust)
        certificates[f"{R.__name__}: {summary}"] = None
        return record

    chain = Chain(complete, TORCH_REDUCTIONS)
    traced = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            traced[name] = chain.input(name, value)
        elif isinstance(value, float):
            traced[name] = chain.number(name, value)
        else:
            traced[name] = value
    names = Names()
    with torch.enable_grad():
        result = task.trace(chain, traced, names)
    outputs: dict[str, TracedTensor] = {}
    structure = flatten(result, outputs, set(values), names, "y")
    if not outputs:
        raise NotFusible(message("a fused function returns no tensor", where=task.origin))
    return Traced(chain.program(task.name, outputs, names), structure, tuple(certificates))


@dataclass(frozen=True)
class Printed:
    """A traced task with its schedule and its kernel."""

    traced: Traced
    plan: RowPlan
    layout: Layout
    kernel: PrintedKernel


def print_task(
    task: Task, values: Mapping[str, Any], trust: bool, strategy: str | None = None
) -> Printed:
    """Declaration or function -> printed kernel."""
    return print_traced(trace_task(task, values, trust), values, strategy)


def print_traced(traced: Traced, values: Mapping[str, Any], strategy: str | None = None) -> Printed:
    """Normal form -> plan -> printed kernel."""
    program = traced.program
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    lay = layout(program, launch.program_strides(program, tensors))
    plan = row_plans.plan(program, lay, strategy)
    kernel = print_rows(program, plan, lay, program.name, traced.certificates)
    return Printed(traced, plan, lay, kernel)


# ---- the meaning -------------------------------------------------------------------------------

_inside: ContextVar[str | None] = ContextVar("implementation of reductions inside", default=None)


@contextmanager
def meaning() -> Iterator[None]:
    """Run a fused function unfused: the reductions it calls are run eagerly."""
    token = _inside.set("eager")
    try:
        yield
    finally:
        _inside.reset(token)


# ---- run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """What is left to do for a call whose shapes were seen before."""

    implementation: str
    run: Callable[[Mapping[str, Any]], list[torch.Tensor]]
    structure: Any
    program: Program
    printed: Printed | None = None
    plans: dict[tuple[str, ...], Plan] = field(default_factory=dict)

    def plan(self, task: Task, values: Mapping[str, Any]) -> Plan:
        """How to differentiate a call of these shapes for the inputs that ask for it."""
        tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
        wanted = tuple(n for n, v in tensors.items() if v.requires_grad)
        found = self.plans.get(wanted)
        if found is None:
            found = self.plans[wanted] = differentiable(
                self.program,
                self.implementation,
                task.origin,
                tuple(tensors),
                wanted,
                self.run,
                lambda v: leaves(task.eager(v)),
            )
        return found


@dataclass
class Runner:
    """Runs one task; remembers what it prepared, by shapes, strides, dtypes, device."""

    task: Task
    prepared: OrderedDict[Any, Prepared] = field(default_factory=OrderedDict)

    def __call__(self, values: Mapping[str, Any], impl: str | None, trust: bool = False) -> Any:
        impl = impl or _inside.get()
        if impl != "eager" and torch._C._functorch.peek_interpreter_stack() is not None:
            raise NotFusible(
                message(
                    "a torch.func transform of a fused function",
                    came=self.task.name,
                    do='transform the function itself, or call it with impl="eager"',
                )
            )
        if impl == "eager":
            require_served(values)
            return self.task.eager(values)
        ready = self.find(values, impl, trust)
        if torch.is_grad_enabled() and any(
            isinstance(v, torch.Tensor) and v.requires_grad for v in values.values()
        ):
            return rebuild(ready.structure, autograd.run(ready.plan(self.task, values), values))
        return rebuild(ready.structure, ready.run(values))

    def find(self, values: Mapping[str, Any], impl: str | None, trust: bool) -> Prepared:
        try:
            key = (impl, trust, *(key_of(v) for v in values.values()), *values)
        except RuntimeError:  # a tensor without strides
            require_served(values)
            raise
        ready = self.prepared.get(key)
        if ready is None:
            with ONE_AT_A_TIME:
                ready = self.prepared[key] = prepare(self.task, values, impl, trust)
            if len(self.prepared) > MOST_PREPARED:
                self.prepared.popitem(last=False)
        return ready


def prepare(task: Task, values: Mapping[str, Any], impl: str | None, trust: bool) -> Prepared:
    """Down the page once: which implementation, and everything it needs."""
    require_served(values)
    chosen = choose(impl, one_device(values))
    traced = trace_task(task, values, trust)
    program = traced.program
    if any(a.size == 0 for a in program.axes):
        return Prepared("eager", lambda v: leaves(task.eager(v)), traced.structure, program)
    if chosen == "tiles":
        return Prepared(chosen, lambda v: tiles.run(program, v), traced.structure, program)
    printed = print_traced(traced, values)
    run = launch.prepare(program, printed.kernel, printed.plan, printed.layout, task.origin)
    return Prepared(chosen, run, traced.structure, program, printed)


def describe(printed: Printed) -> str:
    """Plan, traffic and stages as text."""
    program, plan = printed.traced.program, printed.plan
    lines = [
        f"{program.name}: {program.rows} rows of {program.columns}, computed in {program.state}",
        f"  plan    {plan.describe()}",
        f"  grid    {-(-program.rows // plan.ROWS)} programs",
        f"  bytes   {plan.bytes_moved:,}",
    ]
    for s in program.stages:
        fields = ", ".join(f"{f.name} ({f.kind})" for f in s.record.fields)
        lines.append(f"  stage   {s.name}: {s.record.name}, level {s.level}, state {fields}")
    lines += [f"  proved  {c}" for c in printed.traced.certificates]
    return "\n".join(lines)
