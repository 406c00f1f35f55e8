"""An element before the keys of every query, in the meaning: it is put into the rows.

Its score is given, its payload is 0, it is never masked or dropped, and its position is -1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fusedreduce.declare.record import NO_POSITION, Record
from fusedreduce.run.eager.rows import KEYS, Rows, Values

BEFORE = -1


def preceded(record: Record, rows: Rows, first: Tensor) -> Rows:
    """The rows with an element of this score, (H, 1, 1) or what expands to rows, in front."""
    score, *others = record.operands
    assert not others, "the first element has a score and payloads alone"
    values = dict(rows.values)
    values[score] = _joined(rows.rows(first[..., None]), rows.elements(values[score]))
    values["j"] = _joined(torch.full_like(values["j"][..., :1, :], BEFORE), values["j"])
    made = replace(rows, values=values, n=rows.n + 1, ahead=1)
    return replace(made, inside=_with_one(rows, rows.inside), keep=_with_one(rows, rows.keep))


def _with_one(rows: Rows, t: Tensor | None) -> Tensor | None:
    """True or 1 for the first element."""
    if t is None:
        return None
    whole = t.expand(*rows.outer, rows.n, 1)
    return _joined(whole.new_ones(*rows.outer, 1, 1), whole)


def _joined(first: Tensor, others: Tensor) -> Tensor:
    return torch.cat([first.to(others.dtype), others], KEYS)


def counted(record: Record, state: Values) -> Values:
    """The state with positions that count from the first element on at -1."""
    at = [s.name for s in record.slots if s.identity == NO_POSITION]
    moved = {n: torch.where(state[n] == NO_POSITION, NO_POSITION, state[n] + BEFORE) for n in at}
    return state | moved
