"""Whatever people pass as a mask: ours, a function, a tensor, a FlexAttention BlockMask."""

from __future__ import annotations

from typing import Any

from fusedreduce.blocks.lists import dense
from fusedreduce.errors import DeclarationError, DtypeError, ShapeError, message
from fusedreduce.ir.expr import const, var
from fusedreduce.ir.tables import element
from fusedreduce.masks.library import blocks
from fusedreduce.masks.predicate import Mask, mask
from fusedreduce.masks.score import Score
from fusedreduce.trace import dtype_kind
from fusedreduce.trace.indexed import is_tensor

_NAMES = tuple(map(var, ("b", "h", "i", "j")))


def from_anything(
    given: Any, B: int, H: int, Sq: int, Sk: int, *, q_offset: int | str = 0,
    k_offset: int | str = 0,
) -> Mask | Score | None:  # fmt: skip
    """`mask=` of a call, as a Mask; a float tensor, which is added to scores, as a Score.

    given   None, a Mask, a function of (b, h, i, j), a bool or float tensor that broadcasts to
            (B, H, Sq, Sk), or a BlockMask of FlexAttention: the blocks in its lists, and its
            mask_mod in those that are not full. Its mask_mod alone, passed as a function, says the
            same wherever the BlockMask was made from it, and needs no table

    q_offset, k_offset   where the call's piece stands (`Mask.shifted`); masks and functions are
            about positions of the whole, tensors and BlockMasks about the rows and keys of the call

    Raises ShapeError, DtypeError, DeclarationError.

    >>> from fusedreduce import masks
    >>> from_anything(lambda b, h, i, j: i >= j, 1, 1, 1, 8, q_offset=7) == masks.causal.shifted(7)
    True
    """
    if given is None:
        return None
    if is_tensor(given):
        return _from_tensor(given, (B, H, Sq, Sk))
    if hasattr(given, "mask_mod") and hasattr(given, "kv_num_blocks"):
        return _from_block_mask(given, (B, H, Sq, Sk))
    if callable(given):
        made = mask(given)
        return made if q_offset == k_offset == 0 else made.shifted(q_offset, k_offset)
    raise DeclarationError(
        message(
            "mask= takes no such thing",
            expected="None, a mask, a function of (b, h, i, j), a tensor, a BlockMask",
            came=type(given).__name__,
        )
    )


def _from_tensor(table: Any, shape: tuple[int, ...]) -> Mask | Score:
    own = tuple(table.shape)
    front = len(shape) - len(own)
    if front < 0 or any(n not in (1, full) for n, full in zip(own, shape[front:], strict=True)):
        raise ShapeError(
            message(
                "a mask tensor does not broadcast to the scores",
                expected=f"(B, H, Sq, Sk) = {shape}, each size or 1",
                came=f"shape {own}",
                do=_padding(own, shape),
            )
        )
    names = zip(_NAMES[front:], own, strict=True)
    at = element("t0", [const(0) if n == 1 else name for name, n in names])
    kind = dtype_kind(table.dtype)
    if kind == "int":
        raise DtypeError(
            message(
                "a mask tensor of integers says neither who sees whom nor what to add",
                expected="bool (True is seen) or float (added to the scores)",
                came=str(table.dtype),
                do="write mask != 0",
            )
        )
    if kind == "bool":
        return Mask(at, (table,), "mask tensor")
    return Score(var("score") + at, (table,), "score + tensor")


def _padding(own: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """What to do with a mask of a batch that has too few dimensions."""
    B, _, Sq, Sk = shape
    known = {(B, Sk): "mask[:, None, None], the keys of each batch", (B, Sq, Sk): "mask[:, None]"}
    return f"pass {known[own]}" if own in known else ""


def _from_block_mask(given: Any, shape: tuple[int, ...]) -> Mask:
    """Blocks in the full lists are seen whole, those in the other lists where mask_mod says so."""
    lengths = tuple(given.seq_lengths)
    if lengths != shape[2:]:
        raise ShapeError(
            message(
                "a BlockMask is for other lengths",
                expected=f"(Sq, Sk) = {shape[2:]}",
                came=f"{lengths}",
                do="make it for these lengths, or pass its mask_mod as the mask",
            )
        )
    block_q, block_k = given.BLOCK_SIZE
    width = -(-lengths[1] // block_k)
    partial = dense(given.kv_num_blocks, given.kv_indices, width)
    full = given.full_kv_num_blocks
    table = partial if full is None else partial + 2 * dense(full, given.full_kv_indices, width)
    seen = blocks(table.clamp(max=2), block_q, block_k, mask(given.mask_mod))
    return Mask(seen.expr, seen.sources, "BlockMask")
