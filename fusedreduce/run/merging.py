"""Two states as tensors merged into one, and the finish of a state: small torch, any device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from fusedreduce.declare import edges
from fusedreduce.declare.record import Record
from fusedreduce.ir.check import promote
from fusedreduce.ir.evaluate import compiled_all
from fusedreduce.ir.expr import Expr, names, substitute
from fusedreduce.run.language import torch_dialect
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


def merge(record: Record, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> State:
    """The state of the elements of `a` followed by those of `b`; floats in a's dtype."""
    exprs = merged(record)
    kinds = {f"{side}.{s.name}": s.type for side in ("a", "b") for s in record.slots}
    ready = tuple(promote(e, kinds) for e in exprs.values())
    state, device = _where(a)
    values = {f"a.{n}": t for n, t in a.items()}
    values |= {f"b.{n}": t.to(a[n].dtype) for n, t in b.items()}
    used = tuple(dict.fromkeys(names(*ready)))
    made = compiled_all(ready, used, torch_dialect(state, device))(*(values[n] for n in used))
    return {n: v.to(a[n].dtype) for n, v in zip(exprs, made, strict=True)}


def finish(record: Record, state: Mapping[str, Tensor]) -> State:
    """Every output of a state, in the state's dtype; `empty` where it holds nothing."""
    bound: dict[str, Expr] = {}
    for f in record.fields:
        if f.is_bound and f.term is not None:
            bound[f.name] = substitute(f.term, bound)
    kinds = {f.name: f.result for f in record.fields} | {s.name: s.type for s in record.slots}
    ready = tuple(promote(substitute(e, bound), kinds) for _, e in record.finish)
    used = tuple(dict.fromkeys(names(*ready)))
    dtype, device = _where(state)
    made = compiled_all(ready, used, torch_dialect(dtype, device))(*(state[n] for n in used))
    shape = next(iter(state.values())).shape
    nothing = ~edges.has_element(record, state)
    values = {}
    for (output, _), value in zip(record.finish, made, strict=True):
        values[output] = value.expand(shape)
        if output in dict(record.empty):
            empty = torch.as_tensor(dict(record.empty)[output]).to(value)
            values[output] = torch.where(nothing, empty, value)
    return values


def _where(state: Mapping[str, Tensor]) -> tuple[torch.dtype, torch.device]:
    """The dtype of the floats, and the device."""
    first = next(iter(state.values()))
    floats = [t.dtype for t in state.values() if t.is_floating_point()]
    return (floats or [torch.float32])[0], first.device
