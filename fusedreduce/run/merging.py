"""Two states as tensors merged into one, and the finish of a state: small torch, any device.

Slots that are sums of a payload have one more dimension than the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from fusedreduce.declare import edges
from fusedreduce.declare.record import Record
from fusedreduce.declare.restrict import alone
from fusedreduce.ir.expr import Expr, substitute
from fusedreduce.pair import depends_on
from fusedreduce.run.language import Function, Language, unwatched
from fusedreduce.states import merged

State: TypeAlias = "dict[str, Tensor]"


def identity(
    record: Record, shape: tuple[int, ...], state: torch.dtype, device: torch.device
) -> State:
    """The state of nothing."""
    kinds = {"bool": torch.bool, "int": torch.int64}
    return {
        s.name: torch.full(shape, s.identity, dtype=kinds.get(s.type, state), device=device)
        for s in record.slots
    }


def _functions(
    record: Record, state: torch.dtype, device: torch.device
) -> tuple[Function, Function]:
    """merge and finish of a record, compiled once."""
    return (_compiled if unwatched() else _compiled.__wrapped__)(record, state, device)


@lru_cache(maxsize=256)
def _compiled(
    record: Record, state: torch.dtype, device: torch.device
) -> tuple[Function, Function]:
    language = Language(state, device)
    sides = {f"{side}.{s.name}": s.type for side in ("a", "b") for s in record.slots}
    slots = merged(record)
    bound: dict[str, Expr] = {}
    for f in record.fields:
        if f.is_bound and f.term is not None:
            bound[f.name] = substitute(f.term, bound)
    kinds = {f.name: f.result for f in record.fields} | {s.name: s.type for s in record.slots}
    finished = [substitute(e, bound) for _, e in record.finish]
    return (
        language.function(list(slots.values()), sides, ["any"] * len(slots)),
        language.function(finished, kinds, ["any"] * len(finished)),
    )


def merge(record: Record, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> State:
    """The state of the elements of `a` followed by those of `b`; floats in a's dtype."""
    values = {f"a.{n}": t for n, t in _alike(a).items()}
    values |= {f"b.{n}": t.to(a[n].dtype) for n, t in _alike(b).items()}
    made = _functions(record, *_where(a))[0](values)
    return {
        s.name: _shaped(v, a[s.name].shape).to(a[s.name].dtype)
        for s, v in zip(record.slots, made, strict=True)
    }


def finish(record: Record, state: Mapping[str, Tensor]) -> State:
    """Every output of a state, in the state's dtype; `empty` where it holds nothing."""
    wide = _alike(state)
    made = _functions(record, *_where(state))[1](wide)
    shapes = [state[s.name].shape for s in record.slots]
    shape, deep = (f(shapes, key=len) for f in (min, max))
    vectors = {s.field for s in record.slots if state[s.name].dim() > len(shape)}
    values = {}
    for (output, expr), value in zip(record.finish, made, strict=True):
        own = deep if depends_on(record, expr, vectors) else shape
        values[output] = _shaped(value, own)
        if output in dict(record.empty):
            part = alone(record, output)
            nothing = ~edges.has_element(part if edges.can_be_empty(part) else record, wide)
            values[output] = _filled(values[output], _shaped(nothing, own), record, output)
    return values


def _filled(value: Tensor, nothing: Tensor, record: Record, output: str) -> Tensor:
    """`empty` where there is nothing.

    NOTE: a number, not a tensor of one: CUDA graphs capture no copy from the CPU.
    """
    empty = dict(record.empty)[output]
    return value.masked_fill(nothing, empty if value.is_floating_point() else int(empty))


def _alike(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Slots with the same number of dimensions."""
    rank = max(t.dim() for t in state.values())
    return {n: t if t.dim() == rank else t[..., None] for n, t in state.items()}


def _shaped(value: Tensor, shape: torch.Size) -> Tensor:
    """One value a row, of the width the shape has; a constant for all of them."""
    if value.numel() == prod(shape):  # NOTE: shape.numel() fixes sizes while torch compiles
        return value.reshape(shape)
    if value.numel() == 1:
        return value.reshape(()).expand(shape)
    return value[..., 0] if value.dim() > len(shape) else value.expand(shape)


def _where(state: Mapping[str, Tensor]) -> tuple[torch.dtype, torch.device]:
    """The dtype of the floats, and the device."""
    first = next(iter(state.values()))
    floats = [t.dtype for t in state.values() if t.is_floating_point()]
    return (floats or [torch.float32])[0], first.device
