"""The meaning of a pair reduction: all scores at once, the user's functions, two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction
from fusedreduce.errors import OptionError, ShapeError, message
from fusedreduce.run.eager.first import counted, preceded
from fusedreduce.run.eager.results import finished
from fusedreduce.run.eager.rows import Rows, Values, gate, parameters, require_operands
from fusedreduce.run.eager.state import final_state

Function = Callable[..., Any]


def pair(
    R: type[Reduction],
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    score: Function | None = None,
    mask: Function | None = None,
    outputs: Sequence[str] | None = None,
    operands: Mapping[str, Tensor] | None = None,
    q_offset: int = 0,
    k_offset: int = 0,
    keep: Function | None = None,
    first: Tensor | None = None,
) -> Values:
    """finish(merge of lift(element) over the keys that each query sees), by output name.

        x[b, h, i, j] = score(q[b, h, i] . k[b, h // group, j], b, h, i + q_offset, j + k_offset)

    q (B, H, Sq, D), k (B, Hk, Sk, D), v (B, Hk, Sk, DV). A result has the shape (B, H, Sq) and the
    dtype of the state, one that depends on v (B, H, Sq, DV) and v's. Where the mask is false there
    is no element, whatever k and v hold there: they may hold NaN for a key that no query sees.
    The declaration's own `j` counts from 0. `operands` by name: (B, H, Sq) is per row (also where
    Sq = Sk), (B, H, Sk) per key, any size may be 1; with four dimensions (B, H, Sq, Sk). `keep`,
    as `mask` a function of indices, is a number by which an element's payload is multiplied.
    `first`, (H, 1, 1), are scores of one element more for every query: before all keys, not masked,
    with payloads of 0 and j = -1.

    >>> from fusedreduce.reductions import SoftmaxSum
    >>> one = torch.ones(1, 1, 2, 1)
    >>> pair(SoftmaxSum, one, one, one, mask=lambda b, h, i, j: i >= j)["lse"]
    tensor([[[1.0000, 1.6931]]])
    """
    if R.parts:
        parts = [
            value
            for p in R.parts
            for value in pair(
                p, q, k, v if p.record.payloads else None, score, mask, None,
                {n: t for n, t in (operands or {}).items() if n in p.record.operands},
                q_offset, k_offset, keep, first,
            ).values()
        ]  # fmt: skip
        found = dict(zip(R.record.outputs, parts, strict=True))
    else:
        rows = _rows(R, q, k, v, score, mask, operands or {}, q_offset, k_offset, keep, first)
        found = finished(*_state(R.record, rows, first), rows)
    return found if outputs is None else {n: found[n] for n in outputs}


def pair_state(
    R: type[Reduction],
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    score: Function | None = None,
    mask: Function | None = None,
    operands: Mapping[str, Tensor] | None = None,
    q_offset: int = 0,
    k_offset: int = 0,
    keep: Function | None = None,
    first: Tensor | None = None,
) -> Values:
    """The state of each query, by slot: (B, H, Sq), of a payload's sum (B, H, Sq, DV).

    Raises `OptionError` for a join.

    >>> from fusedreduce.reductions import LogSumExp
    >>> pair_state(LogSumExp, torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 2))
    {'m': tensor([[[2.]]]), 's': tensor([[[3.]]])}
    """
    if R.parts:
        raise OptionError(
            message("the state of a join", do="ask each declaration of it for its own state")
        )
    rows = _rows(R, q, k, v, score, mask, operands or {}, q_offset, k_offset, keep, first)
    record, found = _state(R.record, rows, first)
    state = {s.name: rows.rows(found[s.name]) for s in record.slots}
    terms = R.record.functions.terms.items()
    wide = {n for n, fn in terms if set(R.record.payloads) & set(parameters(fn))}
    return {n: t[..., 0, :] if n in wide else t[..., 0, 0] for n, t in state.items()}


def _rows(
    R: type[Reduction],
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    score: Function | None,
    mask: Function | None,
    operands: Mapping[str, Tensor],
    q_offset: int,
    k_offset: int,
    keep: Function | None,
    first: Tensor | None,
) -> Rows:
    """A query is a row, its keys the elements: (B, H, Sq, Sk, 1), the payload (B, H, 1, Sk, DV)."""
    (B, H, Sq, _), Sk = q.shape, k.shape[2]
    state = torch.float64 if q.dtype == torch.float64 else torch.float32
    at = _indices(B, H, Sq, Sk, q.device)
    seen = [*at[:2], at[2] + q_offset, at[3] + k_offset]
    inside = None
    if mask is not None:
        found = torch.as_tensor(mask(*seen), device=q.device)
        inside = found.expand(B, H, Sq, Sk)
    q, k = q.to(state), _repeated(k, H).to(state)
    q, k = _seen(q, inside, 3), _seen(k, inside, 2)
    with ieee():
        scores = q @ k.transpose(2, 3)
    x = scores if score is None else torch.as_tensor(score(scores, *seen)).to(scores)
    placed = {(*R.record.operands, "")[0]: x} | {
        n: _placed(n, operands[n], B, H, Sq, Sk) for n in operands
    }
    require_operands(
        R.record,
        {n: t for n, t in placed.items() if n}
        | dict.fromkeys(R.record.payloads if v is not None else ()),
    )
    values = {n: _wide(t, state)[..., None] for n, t in placed.items()}
    values |= dict(zip("bhij", (t[..., None] for t in at), strict=True))
    present = None if inside is None else inside[..., None]
    if present is not None:
        values = {n: gate(t, ~present) for n, t in values.items()}
    for name in R.record.payloads:
        assert v is not None
        values[name] = _seen(_repeated(v, H).to(state), inside, 2)[:, :, None]
    rows = Rows(
        values=values, outer=(B, H, Sq), n=Sk, final=(B, H, Sq), state=state, result=state,
        deep=state if v is None else v.dtype, inside=present, weighed=True,
        keep=None if keep is None else keep(*seen)[..., None],
    )  # fmt: skip
    return rows if first is None else preceded(R.record, rows, first)


def _state(record: Record, rows: Rows, first: Tensor | None) -> tuple[Record, Values]:
    record, state = final_state(record, rows)
    return record, state if first is None else counted(record, state)


@contextmanager
def ieee() -> Iterator[None]:
    """Matmuls of float32 in float32, whatever the setting."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _indices(B: int, H: int, Sq: int, Sk: int, device: torch.device) -> list[Tensor]:
    """b, h, i, j as (B, 1, 1, 1), (1, H, 1, 1), (1, 1, Sq, 1), (1, 1, 1, Sk)."""
    made = []
    for axis, size in enumerate((B, H, Sq, Sk)):
        shape = [size if n == axis else 1 for n in range(4)]
        made.append(torch.arange(size, device=device).reshape(shape))
    return made


def _repeated(t: Tensor, heads: int) -> Tensor:
    """One head of k for each of q: head h has h // group."""
    have = t.shape[1]
    if have and heads % have:
        raise ShapeError(
            message(
                "the heads of k and v do not divide those of q",
                expected=f"a divisor of {heads}",
                came=str(have),
            )
        )
    return t if have == heads or not have else t.repeat_interleave(heads // have, 1)


def _seen(t: Tensor, inside: Tensor | None, along: int) -> Tensor:
    """0 for vectors that take part in no pair; `along` is the dimension of the others."""
    if inside is None:
        return t
    return torch.where(inside.any(along)[..., None], t, torch.zeros_like(t))


def _placed(name: str, t: Tensor, B: int, H: int, Sq: int, Sk: int) -> Tensor:
    if t.ndim == 3 and t.shape[2] in (1, Sq):
        t = t[..., None]
    elif t.ndim == 3 and t.shape[2] == Sk:
        t = t[:, :, None]
    wanted = (B, H, Sq, Sk)
    if t.ndim != 4 or any(n not in (1, m) for n, m in zip(t.shape, wanted, strict=True)):
        raise ShapeError(
            message(
                f"the operand {name} does not fit",
                expected=f"(B, H, Sq) per row or (B, H, Sk) per key: {wanted[:3]} or "
                f"{(*wanted[:2], Sk)}",
                came=str(tuple(t.shape)),
            )
        )
    return t


def _wide(t: Tensor, state: torch.dtype) -> Tensor:
    return t.to(state) if t.is_floating_point() else t if t.dtype == torch.bool else t.long()
