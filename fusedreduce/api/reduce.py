"""reduce: one declared reduction of tensors."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusedreduce import pipeline, trace
from fusedreduce.chain import Chain, TracedTensor, normalized_dims
from fusedreduce.declare.join import nested
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction, require_reduction
from fusedreduce.errors import OperandError, OptionError, ShapeError, message
from fusedreduce.ir.expr import names as ir_names
from fusedreduce.kernels.names import safe_names
from fusedreduce.program import needed_fields, typed
from fusedreduce.request import require_dtype
from fusedreduce.run import eager, merging
from fusedreduce.trace import Names


@dataclass(frozen=True)
class ReduceTask:
    """One declared reduction of tensors: what `reduce` asks the pipeline for."""

    R: type[Reduction]
    dim: Any
    keepdim: bool
    outputs: tuple[str, ...]
    dtype: torch.dtype | None
    state: bool = False  # the slots of the state are results too, as "state.<slot>"

    @property
    def name(self) -> str:
        return self.R.__name__.lower()

    @property
    def origin(self) -> str:
        return self.R.record.line

    def trace(self, chain: Chain, values: Mapping[str, Any], names: Names) -> dict[str, Any]:
        """The results by output name."""
        values = self.operands(values)
        first = next(iter(values))
        if self.dtype is not None:
            values[first] = values[first].to(self.dtype)
        record = self.R.record
        deep = [o for o in self.outputs if reads_payload(record, o)]
        flat = [o for o in self.outputs if o not in deep]
        plain = {n: v for n, v in values.items() if n not in record.payloads}
        found: dict[str, Any] = {}
        if flat or self.state:
            found |= chain.reduce(self.R, plain, self.dim, self.keepdim, tuple(flat), self.state)
        if deep:  # the payload's D is one more outer axis: x gets a last dimension of size 1
            dims = normalized_dims(self.dim, values[first].dim())
            wide = {n: v[..., None] if has_shape(v) else v for n, v in plain.items()}
            wide |= {n: values[n] for n in record.payloads}
            found |= chain.reduce(self.R, wide, dims, self.keepdim, tuple(deep))
        slots = {n: v for n, v in found.items() if n.startswith("state.")}
        return {o: found[o or "value"] for o in self.outputs} | slots

    def eager(self, values: Mapping[str, Any]) -> dict[str, Any]:
        values = self.operands(values)
        first = next(iter(values.values()))
        dims = normalized_dims(self.dim, first.dim())
        found = eager.reduce(self.R, values, dims, self.keepdim, self.outputs, self.dtype)
        results = {o: found[o] for o in self.outputs}
        if self.state:
            slots = eager.state(self.R, values, dims, self.keepdim, self.dtype)
            results |= {f"state.{n}": v for n, v in slots.items()}
        return results

    def operands(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values by the declaration's own names, not those of a printed kernel."""
        table = dict(zip(argument_names(self.R.record), operand_names(self.R.record), strict=True))
        return {table.get(n, n): v for n, v in values.items()}


def operand_names(record: Record) -> tuple[str, ...]:
    return (*record.operands, *record.payloads)


def argument_names(record: Record) -> tuple[str, ...]:
    """What the operands are called as arguments of a printed kernel."""
    return safe_names(operand_names(record))


def dtype_kind(value: Any) -> str:
    """bool, int or float: of a tensor or a number."""
    return (
        trace.dtype_kind(value.dtype) if isinstance(value, torch.Tensor) else trace.kind_of(value)
    )


def has_shape(value: Any) -> bool:
    """A tensor, not a number."""
    return isinstance(value, TracedTensor) and isinstance(value.meta, torch.Tensor)


def reads_payload(record: Record, output: str) -> bool:
    """Does an output depend on a vector per element?"""
    fields = needed_fields(record, frozenset({output}))
    terms = [f.term for f in record.fields if f.name in fields and f.term is not None]
    return any(p in ir_names(*terms) for p in record.payloads)


@functools.lru_cache(maxsize=1024)
def _runner(task: ReduceTask) -> pipeline.Runner:
    return pipeline.Runner(task)


def reduce(
    R: type[Reduction],
    x: torch.Tensor,
    /,
    dim: int | tuple[int, ...] | None = -1,
    keepdim: bool = False,
    outputs: str | tuple[str, ...] | None = None,
    dtype: torch.dtype | None = None,
    *,
    seed: Mapping[str, torch.Tensor] | None = None,
    return_state: bool = False,
    impl: str | None = None,
    trust: bool = False,
    **operands: Any,
) -> Any:
    """finish(merge over `dim` of lift(element)): one declared reduction, in one kernel.

    R         a subclass of `Reduction`
    x         the operand named `x`, or the first one the declaration names; any shape
    dim       the dimension or dimensions to reduce; None for all
    keepdim   keep reduced dimensions with size 1
    outputs   one name (a tensor comes back) or several (a dict); None for what `finish` returns
    dtype     cast `x` first, as torch.sum does
    operands  the other operands by name: tensors that broadcast against `x`, or numbers
    seed      a state (from return_state) whose elements come before those of `x`
    return_state   answer (value, state): the state is a dict of one tensor a slot
    impl      None (Triton on a GPU, else tiles), "eager", "tiles", "triton": it or an error
    trust     run without a warning what is neither proved nor refuted

    The state is float32, or float64 for float64 input. Floating results have x's dtype, except
    counts, which have the state's; integers are int64. Raises `LawViolation` for a refuted one,
    `OperandError`, `ShapeError`, `DeviceError`, `DtypeError` before any launch.

    >>> import torch, fusedreduce as fr
    >>> x = torch.tensor([[0.0, 0.0], [1000.0, -1000.0]])
    >>> fr.reduce(fr.reductions.LogSumExp, x)
    tensor([6.9315e-01, 1.0000e+03])
    >>> fr.reduce(fr.reductions.Moments, x, dim=0, outputs="mean")
    tensor([ 500., -500.])
    """
    require_reduction(R)
    record = R.record
    dim = _dims(dim)
    if keepdim not in (True, False):
        raise OptionError(message("keepdim is not a bool", came=repr(keepdim)))
    if dtype is not None:
        require_dtype("dtype", dtype)
    wanted = _outputs(record, outputs)
    values = _operands(record, x, operands, wanted)
    first = next(iter(values.values()))
    if isinstance(first, TracedTensor):
        return _in_fused(R, values, dim, keepdim, outputs, wanted, dtype)
    with_state = return_state or seed is not None
    if not wanted and not with_state:
        raise OptionError(message("no output is asked for", expected="a name, several or None"))
    task = ReduceTask(R, dim, keepdim, wanted, dtype, with_state)
    found = _runner(task)(_arguments(record, values), impl, trust)
    if not with_state:
        return shaped(record, found, outputs)
    state = {n.removeprefix("state."): found.pop(n) for n in [*found] if n.startswith("state.")}
    if seed is not None:
        state, found = _seeded(R, values, seed, state, found, trust)
    value = shaped(record, found, outputs)
    return (value, state) if return_state else value


def _seeded(
    R: type[Reduction],
    values: Mapping[str, Any],
    seed: Mapping[str, torch.Tensor],
    state: dict[str, torch.Tensor],
    found: Mapping[str, torch.Tensor],
    trust: bool,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The state after a seed, and its finish in the dtypes of the results."""
    given = {n: getattr(t, "shape", t) for n, t in seed.items()} if _is_dict(seed) else seed
    if given != {n: t.shape for n, t in state.items()}:
        raise OperandError(
            message(
                "the seed is not a state of this declaration and shape",
                expected=", ".join(f"{n} {tuple(t.shape)}" for n, t in state.items()),
                came=", ".join(f"{n} {s}" for n, s in given.items())
                if _is_dict(given)
                else type(seed).__name__,
                do="take it from fr.reduce(..., return_state=True)",
            )
        )
    kinds = {n: dtype_kind(v) for n, v in values.items()}
    record = typed(pipeline.certified(R.record, trust)[0], kinds)
    state = merging.merge(record, {n: seed[n] for n in state}, state)
    finished = merging.finish(record, state)
    return state, {o: finished[o].to(v.dtype) for o, v in found.items()}


def _arguments(record: Record, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The operands by the names they have in a printed kernel."""
    names, safe = operand_names(record), argument_names(record)
    if names == safe:
        return values
    table = dict(zip(names, safe, strict=True))
    return {table[n]: v for n, v in values.items()}


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping)


def _dims(dim: Any) -> int | tuple[int, ...] | None:
    """`dim` as a key: True and 1.0 are equal to 1, but no dimensions."""
    if dim is None or type(dim) is int:
        return dim
    if isinstance(dim, (tuple, list)) and all(type(d) is int for d in dim):
        return tuple(dim)
    raise ShapeError(
        message("dim is no dimension", expected="an integer, a tuple of them or None",
                came=repr(dim))
    )  # fmt: skip


def _outputs(record: Record, outputs: str | Sequence[str] | None) -> tuple[str, ...]:
    """The output names asked for, checked."""
    known = record.outputs
    if outputs is not None and not isinstance(outputs, (str, tuple, list)):
        raise OptionError(
            message("outputs is not a name", expected="a name, several or None", came=repr(outputs))
        )
    asked = known if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise OptionError(
                message(
                    f"{record.name} has no output {name!r}",
                    expected=", ".join(map(repr, known)) if known != ("",) else "outputs=None",
                    do=f"did you mean {near[0]!r}?" if near else "",
                )
            )
    return asked


def _operands(
    record: Record, x: Any, given: Mapping[str, Any], outputs: Sequence[str]
) -> dict[str, Any]:
    """Every operand by name, in the declaration's order; missing and unknown ones are told."""
    names = (*record.operands, *record.payloads)
    if not record.operands:
        raise OperandError(
            message(f"{record.name} reads no operand", do="let a term take x", where=record.line)
        )
    values = {record.operands[0]: x, **given}
    for name in given:
        if name == record.operands[0] or name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise OperandError(
                message(
                    f"{record.name} has no operand `{name}`"
                    if name not in names
                    else f"`{name}` is given twice",
                    expected=", ".join(names),
                    do=f"did you mean `{near[0]}`?" if near else "",
                )
            )
    needed = [n for n in names if n not in record.payloads or _asked(record, outputs, n)]
    for name in needed:
        if name not in values:
            near = difflib.get_close_matches(name, record.by_name, n=1)
            raise OperandError(
                message(
                    f"{record.name} needs the operand `{name}`",
                    came=", ".join(values),
                    do=f"pass {name}=..., or did you mean the field `{near[0]}`?"
                    if near
                    else f"pass {name}=...",
                    where=record.line,
                )
            )
    for name in needed:
        _check_operand(name, values[name], first=name == record.operands[0])
    return {n: values[n] for n in needed}


def _asked(record: Record, outputs: Sequence[str], payload: str) -> bool:
    return any(reads_payload(record, o) for o in outputs)


def _check_operand(name: str, value: Any, first: bool) -> None:
    if isinstance(value, (torch.Tensor, TracedTensor)):
        return
    if not first and isinstance(value, (bool, int, float)):
        return
    raise OperandError(
        message(
            f"operand `{name}` is not a tensor",
            expected="a torch.Tensor" if first else "a torch.Tensor or a number",
            came=f"{type(value).__name__}",
            do="torch.as_tensor(...) makes one",
        )
    )


def _in_fused(
    R: type[Reduction],
    values: Mapping[str, Any],
    dim: Any,
    keepdim: bool,
    outputs: Any,
    wanted: tuple[str, ...],
    dtype: torch.dtype | None,
) -> Any:
    chain = next(iter(values.values())).chain
    found = ReduceTask(R, dim, keepdim, wanted, dtype).trace(chain, values, Names())
    return shaped(R.record, found, outputs)


def shaped(record: Record, found: Mapping[str, Any], outputs: Any) -> Any:
    """A tensor for a bare finish or a single name, else a dict; a join's by declaration."""
    if isinstance(outputs, str):
        return found[outputs]
    if record.outputs == ("",):
        return found[""]
    return nested(found)
