"""One declared reduction while a fused function is traced; the dtypes of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from fusedreduce import trace
from fusedreduce.chain.axes import Atom, Axes, Shape
from fusedreduce.chain.tensor import TracedTensor
from fusedreduce.declare.record import Record
from fusedreduce.declare.restrict import needed_fields, restricted
from fusedreduce.ir.check import kind_of
from fusedreduce.ir.expr import Expr, names
from fusedreduce.program import Stage, stage_kinds, typed, valued


@dataclass
class TracedStage:
    """A stage while tracing: outputs are added as they are asked for."""

    name: str
    record: Record
    operands: tuple[tuple[str, Expr], ...]
    level: int
    shape: Shape
    dims: tuple[int, ...]
    outputs: set[str] = field(default_factory=set)
    state: bool = False
    kinds: dict[str, str] = field(default_factory=dict)
    line: str = field(default_factory=trace.user_line)

    def reduced(self, axes: Axes) -> tuple[Atom, ...]:
        return tuple(a for k in self.dims for a in axes.leaves(self.shape[k]))

    def outer(self, axes: Axes) -> tuple[Atom, ...]:
        kept = (d for k, d in enumerate(self.shape) if k not in self.dims)
        return tuple(a for d in kept for a in axes.leaves(d))

    def is_same(self, other: TracedStage, axes: Axes) -> bool:
        """The same declaration of the same values along the same axes, in the same order."""
        return (
            self.record == other.record
            and self.operands == other.operands
            and self.reduced(axes) == other.reduced(axes)
            and set(self.outer(axes)) == set(other.outer(axes))
        )

    def results(self) -> tuple[str, ...]:
        return tuple(
            n.partition(".")[2] for n in stage_kinds(Stage(self.name, self.record, (), 0, True))
        )

    def finished(self, title: str, renamed: Callable[[Expr], Expr] = lambda e: e) -> Stage:
        record = restricted(self.record, frozenset(self.outputs), self.state)
        record = typed(record, self.kinds)
        operands = tuple((n, renamed(e)) for n, e in self.operands)
        return Stage(title, record, operands, self.level, self.state)


def result_dtypes(record: Record, values: Mapping[str, TracedTensor]) -> dict[str, torch.dtype]:
    """The dtype of each output and slot.

    Floats have the operands' dtype (torch's default float for integers); a float that depends on no
    operand value, such as a count, has the state's. Integers are int64.
    """
    metas = [v.meta for v in values.values() if isinstance(v.meta, torch.Tensor)]
    floats = [m.dtype for m in metas if m.dtype.is_floating_point]
    operand = torch.get_default_dtype()
    if floats:
        operand = floats[0]
        for d in floats[1:]:
            operand = torch.promote_types(operand, d)
    state = torch.float64 if operand == torch.float64 else torch.float32
    fields = {f.name: f.result for f in record.fields}
    from_values = valued(record)
    table = {f"state.{slot.name}": _dtype(slot.type, state) for slot in record.slots}
    for output, e in record.finish:
        kind = kind_of(e, fields)
        corrected = record.form == "corrected"
        read = needed_fields(record, frozenset({output})) if corrected else frozenset(names(e))
        table[output or "value"] = _dtype(kind, operand if read & from_values else state)
    return table


def _dtype(kind: str, floating: torch.dtype) -> torch.dtype:
    return {"bool": torch.bool, "int": torch.int64}.get(kind, floating)
