"""finish, `empty` and the dtypes of the results."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fusedreduce.declare.edges import can_be_empty, has_element
from fusedreduce.declare.record import Record
from fusedreduce.declare.restrict import alone
from fusedreduce.run.eager.rows import KEYS, Rows, Values, call, components, gate


def finished(record: Record, state: Values, rows: Rows) -> Values:
    """finish of the true state, or `empty` where a row holds nothing, in the results' dtypes."""
    nothing = _nothing(record, state, rows)
    fields = {f.name: state[f.name] for f in record.fields}
    if rows.weighed and nothing is not None:  # rows without elements send no gradient back
        fields = {n: gate(v, nothing) for n, v in fields.items()}
    returned = call(record.functions.finish, fields)
    results = returned if isinstance(returned, dict) else {"": returned}
    from_values = _dependent(record, rows, (*record.operands, *record.payloads), state)
    deep = _dependent(record, rows, record.payloads, state)
    empty = dict(record.empty)
    answer = {}
    for name, value in results.items():
        value = rows.rows(value)
        nothing = _nothing(alone(record, name), state, rows) if name in empty else None
        if nothing is not None:
            value = torch.where(nothing, torch.as_tensor(empty[name]).to(value), value)
        if value.is_floating_point() and name in from_values:
            value = value.to(rows.deep if name in deep else rows.result)
        depth = value.shape[-1:] if name in deep else ()
        answer[name] = value.reshape((*rows.final, *depth))
    return answer


def _nothing(record: Record, state: Values, rows: Rows) -> Tensor | None:
    """Which rows hold nothing: those of length 0, those of which every element is absent."""
    if rows.n == 0:
        return torch.tensor(True, device=rows.device)
    masked = None if rows.inside is None else ~rows.inside.any(KEYS, keepdim=True)
    if not can_be_empty(record):
        return masked
    holds: Tensor = has_element(record, state).any(-1, keepdim=True)
    return ~holds if masked is None else ~holds | masked


def _dependent(record: Record, rows: Rows, names: Collection[str], state: Values) -> frozenset[str]:
    """The outputs that depend on some of the operands `names`: found by the shapes of a trial run.

    On meta tensors, with a shape of (2,) for what depends and () for the rest.
    """
    found = set(names)
    functions = record.functions

    def tried(fn: Any, values: Mapping[str, Tensor]) -> Any:
        return call(fn, {n: _stand_in(v, n in found) for n, v in values.items()})

    for f in record.fields if record.form == "corrected" else ():
        read = rows.values | state
        if _is_wide(tried(functions.terms[f.name], read)):
            found.add(f.name)
    if record.form == "general":
        assert functions.merge is not None
        lifted = components(tried(functions.lift, rows.values))
        found |= {f.name for f, v in zip(record.fields, lifted, strict=True) if _is_wide(v)}
        for _ in record.fields:
            side = SimpleNamespace(**{n: _stand_in(v, n in found) for n, v in state.items()})
            merged = components(functions.merge(side, side))
            found |= {f.name for f, v in zip(record.fields, merged, strict=True) if _is_wide(v)}
    returned = tried(functions.finish, state)
    results = returned if isinstance(returned, dict) else {"": returned}
    return frozenset(n for n, v in results.items() if _is_wide(v))


def _stand_in(value: Tensor, wide: bool) -> Tensor:
    return torch.empty((2,) if wide else (), dtype=value.dtype, device="meta")


def _is_wide(value: Any) -> bool:
    return isinstance(value, Tensor) and value.shape == (2,)
