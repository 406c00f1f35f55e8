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
from fusedreduce.derivative import VERSION, differentiable
from fusedreduce.errors import (
    DeviceError,
    DtypeError,
    NotFusible,
    OperandError,
    OptionError,
    ProofWarning,
    message,
)
from fusedreduce.kernels.rows import PrintedKernel, print_rows
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import Layout, layout
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Program
from fusedreduce.run import autograd, launch, tiles
from fusedreduce.run.autograd import Plan
from fusedreduce.torch_reductions import TORCH_REDUCTIONS
from fusedreduce.trace import Names

IMPLEMENTATIONS = (None, "eager", "tiles", "triton", "gluon")
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


def certified(record: Record, trust: bool = False) -> tuple[Record, str]:
    """The record with derived corrections and chosen guards, and its certificate in one line.

    Raises `LawViolation` when a law is refuted; warns once when one is neither proved nor refuted.
    """
    from fusedreduce import laws

    with ONE_AT_A_TIME:
        complete, certificate = laws.certified(record)
    certificate.raise_if_refuted()
    if not certificate.proved and not trust and certificate.hash not in _warned:
        _warned.add(certificate.hash)
        warnings.warn(str(certificate), ProofWarning, stacklevel=3)
    flat = [o for o, how in certificate.facts.gauge if how in ("free", "first order")]
    gauge = record.outputs if record.jointly_gauge else tuple(flat)
    complete = replace(complete, gauge=gauge)
    words = "proved over the reals" if certificate.proved else "not proved"
    return complete, f"{words}{', trusted' * trust} (certificate {certificate.hash})"


# ---- trace, plan, print ------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """The place of one output in what the function returns."""

    index: int


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


def flatten(
    value: Any, outputs: dict[str, TracedTensor], taken: set[str], names: Names, wish: str
) -> Any:
    """Collect the tensors of a result under names of their own; answer its structure."""
    if isinstance(value, TracedTensor):
        require_tensor(value)
        local = next((n for n, v in names.locals.items() if v is value and n not in taken), wish)
        name, count = local, 2
        while name in outputs or name in taken:
            name, count = f"{local}_{count}", count + 1
        outputs[name] = value
        return Leaf(len(outputs) - 1)
    if isinstance(value, dict):
        return {k: flatten(v, outputs, taken, names, str(k) or wish) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return alike(value, [flatten(v, outputs, taken, names, wish) for v in value])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotFusible(
        message(
            "a fused function returns something else",
            expected="tensors computed from its arguments, None and Python numbers, in dicts, "
            "tuples and lists",
            came=f"a {type(value).__name__}",
            do="return it from a function around the fused one",
        )
    )


def require_tensor(value: TracedTensor) -> None:
    if not isinstance(value.meta, torch.Tensor):
        raise NotFusible(
            message(
                "a fused function returns a number computed from float arguments",
                expected="tensors computed from its arguments",
                came=f"{value.expr!r}",
                do="compute it outside",
            )
        )


def rebuild(structure: Any, tensors: list[torch.Tensor]) -> Any:
    """The result of the user's function, with tensors in the places of leaves."""
    if isinstance(structure, Leaf):
        return tensors[structure.index]
    if isinstance(structure, dict):
        return {k: rebuild(v, tensors) for k, v in structure.items()}
    if isinstance(structure, (tuple, list)):
        return alike(structure, [rebuild(v, tensors) for v in structure])
    return structure


def alike(value: Any, items: list[Any]) -> Any:
    """The items in a list, a tuple or a named tuple, as `value` is one."""
    make = getattr(type(value), "_make", type(value))
    return make(items)


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
    """Normal form -> plan -> printed kernel."""
    traced = trace_task(task, values, trust)
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    lay = layout(traced.program, launch.program_strides(traced.program, tensors))
    plan = row_plans.plan(traced.program, lay, strategy)
    kernel = print_rows(traced.program, plan, lay, task.name, traced.certificates)
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
            key = (impl, trust, *(_key(v) for v in values.values()), *values)
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


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (
            value.shape, value.stride(), value.dtype, value.device, value.layout, value.is_neg()
        )  # fmt: skip
    if isinstance(value, float):
        return float
    return _fixed(value)


def _fixed(value: Any) -> Any:
    """What is fixed at tracing, as a key: 1, 1.0 and True are three values, in tuples too."""
    if isinstance(value, (tuple, list)):
        return type(value), *map(_fixed, value)
    if isinstance(value, dict):
        return dict, *((k, _fixed(v)) for k, v in value.items())
    if isinstance(value, torch.Tensor) or getattr(value, "__hash__", None) is None:
        raise OperandError(
            message(
                "an argument that a fused function cannot take",
                expected="tensors, numbers, strings, None; numbers in tuples, lists and dicts",
                came=f"a {type(value).__name__} among them",
                do="pass each tensor as an argument of its own",
            )
        )
    return type(value), repr(value) if isinstance(value, float) else value


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
    printed = print_task(task, values, trust)
    run = launch.prepare(
        printed.traced.program, printed.kernel, printed.plan, printed.layout, VERSION, task.origin
    )
    return Prepared(chosen, run, traced.structure, program, printed)


def leaves(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, in the order of `flatten`."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, (tuple, list)):
        return [t for v in result for t in leaves(v)]
    return []


def require_served(values: Mapping[str, Any]) -> None:
    """Every tensor is a plain strided one, of a dtype that is computed with; all on one device."""
    for name, t in values.items():
        if not isinstance(t, torch.Tensor):
            continue
        if t.is_nested or t.layout != torch.strided or t.is_quantized:
            raise OperandError(
                message(
                    f"`{name}` is not a dense tensor",
                    expected="a strided torch.Tensor",
                    came="a nested one" if t.is_nested else f"{t.layout} of {t.dtype}",
                    do=f"convert it: {name}.to_dense(), or {name}.dequantize()",
                )
            )
        if t.is_neg():  # memory holds the values with the other sign
            raise OperandError(
                message(f"`{name}` is a lazily negated view", do=f"pass {name}.resolve_neg()")
            )
        require_dtype(f"`{name}`", t.dtype)
    one_device(values)


def one_device(values: Mapping[str, Any]) -> torch.device:
    devices = {n: v.device for n, v in values.items() if isinstance(v, torch.Tensor)}
    if len(set(devices.values())) > 1:
        raise DeviceError(
            message(
                "the tensors lie on different devices",
                came=", ".join(f"{n} on {d}" for n, d in devices.items()),
                expected="all on one device",
                do="move them: x.to(device)",
            )
        )
    return next(iter(devices.values()), torch.device("cpu"))


def require_dtype(what: str, dtype: Any) -> None:
    """NOTE torch itself computes hardly anything in uint64; int64 would make it negative."""
    served = isinstance(dtype, torch.dtype) and not dtype.is_complex and dtype != torch.uint64
    if not served or (dtype.itemsize == 1 and dtype.is_floating_point):
        raise DtypeError(
            message(
                f"{what} is {str(dtype).removeprefix('torch.')}",
                expected="float16, bfloat16, float32, float64, an integer or bool",
                do="convert it: x.float()",
            )
        )


def check_impl(impl: str | None) -> None:
    if impl not in IMPLEMENTATIONS:
        raise OptionError(
            message(
                "impl is not an implementation",
                expected=", ".join(map(repr, IMPLEMENTATIONS)),
                came=repr(impl),
            )
        )


def choose(impl: str | None, device: torch.device) -> str:
    """impl=None: Triton on a GPU, tiles elsewhere. A given one is taken, or refused."""
    check_impl(impl)
    if impl is None:
        return "triton" if device.type == "cuda" else "tiles"
    if impl == "gluon":
        raise OptionError(
            message(
                'impl="gluon" of a row reduction',
                expected="a pair: Gluon prints attention on Hopper",
                do='choose impl="triton"',
            )
        )
    if impl == "triton" and device.type != "cuda" and not launch.interpreting():
        raise DeviceError(
            message(
                f'impl="triton" on {device.type} tensors',
                expected="CUDA tensors, or TRITON_INTERPRET=1 in the environment",
                do='move the tensors to a GPU, or choose impl="tiles"',
            )
        )
    return impl


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
