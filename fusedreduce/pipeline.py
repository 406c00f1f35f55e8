"""START HERE: declaration -> trace -> prove -> plan -> print, on one page.

A `Task` is what somebody asked for (one declared reduction, or a fused function). `runner` sends
the first call with tensors of some shapes down this page and remembers what came out; the next one
with the same shapes only runs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from fusedreduce.chain import Chain, TracedTensor
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction
from fusedreduce.errors import NotFusible, ProofWarning, message
from fusedreduce.kernels.rows import PrintedKernel, print_rows
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import Layout, layout
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Program
from fusedreduce.run import launch
from fusedreduce.structure import flatten
from fusedreduce.torch_reductions import TORCH_REDUCTIONS
from fusedreduce.trace import Names

ONE_AT_A_TIME = threading.RLock()  # tracing and proofs: mpmath's precision is one for all threads


class Task(Protocol):
    """What is to be run: it can be traced, and it can be run as it means."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str: ...

    @property
    def home(self) -> tuple[str, str, str]: ...  # what it is, where it was declared, its options

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
    if certificate.facts.underflows and not trust:
        _warn_once(
            f"underflows {certificate.hash}",
            f"{record.name}: {', '.join(certificate.facts.underflows)} may underflow although an "
            "element counts, and the result with it",
        )
    if record.jointly_gauge:
        complete = replace(complete, gauge=record.outputs)
    words = "proved over the reals" if certificate.proved else "not proved"
    return complete, f"{words}{', trusted' * trust} (certificate {certificate.hash})"


# ---- trace, plan, print ------------------------------------------------------------------------


@dataclass(frozen=True)
class Traced:
    """A task in normal form for given shapes, and the structure of its result."""

    program: Program
    structure: Any
    certificates: tuple[str, ...]


def trace_task(task: Task, values: Mapping[str, Any], trust: bool, depth: int = 0) -> Traced:
    """Declaration or function -> normal form; `depth` outer axes of every tensor are hidden."""
    certificates: dict[str, None] = {}

    def complete(R: type[Reduction]) -> Record:
        for part in R.parts:  # a join has no definition of its own: its parts are judged by theirs
            certified(part.record, trust)
        record, summary = certified(R.record, trust)
        certificates[f"{R.__name__}: {summary}"] = None
        return record

    chain = Chain(complete, TORCH_REDUCTIONS, depth)
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
    """Run a fused function unfused: the reductions it calls are run eagerly.

    Autocast is off inside, as it is in a kernel: everything is computed in the dtype of the state.
    """
    token = _inside.set("eager")
    try:
        with outside_autocast():
            yield
    finally:
        _inside.reset(token)


def outside_autocast() -> AbstractContextManager[Any]:
    """Autocast is off inside: everything is computed in the dtypes that were decided on."""
    on = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    return _without_autocast(on) if on else _NOTHING


_NOTHING = nullcontext()


@contextmanager
def _without_autocast(devices: Sequence[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def inside() -> str | None:
    """The implementation that reductions inside a function being run unfused take."""
    return _inside.get()


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
