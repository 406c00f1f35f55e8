"""Two states as tensors merged into one, and the finish of a state: small torch, any device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from fusedreduce.declare import edges
from fusedreduce.declare.record import Record
from fusedreduce.declare.restrict import alone
from fusedreduce.ir.expr import Expr, substitute
from fusedreduce.run.language import Function, Language
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


@lru_cache(maxsize=256)
def _functions(
    record: Record, state: torch.dtype, device: torch.device
) -> tuple[Function, Function]:
    """merge and finish of a record, compiled once."""
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
    values = {f"a.{n}": t for n, t in a.items()}
    values |= {f"b.{n}": t.to(a[n].dtype) for n, t in b.items()}
    made = _functions(record, *_where(a))[0](values)
    shape = next(iter(a.values())).shape
    return {
        s.name: _shaped(v, shape).to(a[s.name].dtype)
        for s, v in zip(record.slots, made, strict=True)
    }


def finish(record: Record, state: Mapping[str, Tensor]) -> State:
    """Every output of a state, in the state's dtype; `empty` where it holds nothing."""
    made = _functions(record, *_where(state))[1](state)
    shape = next(iter(state.values())).shape
    values = {}
    for (output, _), value in zip(record.finish, made, strict=True):
        values[output] = _shaped(value, shape)
        if output in dict(record.empty):
            part = alone(record, output)
            nothing = ~edges.has_element(part if edges.can_be_empty(part) else record, state)
            empty = torch.as_tensor(dict(record.empty)[output]).to(value)
            values[output] = torch.where(nothing, empty, values[output])
    return values


def _shaped(value: Tensor, shape: torch.Size) -> Tensor:
    """One value a row; a constant for all of them."""
    whole = value.numel() == shape.numel()
    return value.reshape(shape) if whole else value.reshape(()).expand(shape)


def _where(state: Mapping[str, Tensor]) -> tuple[torch.dtype, torch.device]:
    """The dtype of the floats, and the device."""
    first = next(iter(state.values()))
    floats = [t.dtype for t in state.values() if t.is_floating_point()]
    return (floats or [torch.float32])[0], first.device
