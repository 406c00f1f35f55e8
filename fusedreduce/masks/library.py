"""The masks people use, each one expression over b, h, i, j, Sq, Sk and tables.

Positions count from 0; i is the query's, j the key's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, reduce
from types import SimpleNamespace
from typing import Any

from fusedreduce.blocks import segments
from fusedreduce.errors import OptionError, ShapeError, message
from fusedreduce.ir.expr import Expr, as_expr, call, const, substitute, var
from fusedreduce.ir.tables import element
from fusedreduce.masks import sources as tables
from fusedreduce.masks.predicate import Mask
from fusedreduce.masks.sources import Made
from fusedreduce.trace.compiled import outside_graphs
from fusedreduce.trace.indexed import is_tensor

b, h, i, j, Sq, Sk = map(var, ("b", "h", "i", "j", "Sq", "Sk"))


def _all(*conditions: Expr) -> Expr:
    return reduce(lambda x, y: call("and", x, y), conditions)


def _wrong(fact: str, expected: str, came: object) -> OptionError:
    return OptionError(message(fact, expected=expected, came=str(came)))


def _require_whole(what: str, **numbers: Any) -> None:
    for name, n in numbers.items():
        if not isinstance(n, int) or isinstance(n, bool):
            raise _wrong(f"{name} of {what} is no whole number", "an int", repr(n))


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


everything = Mask(const(True), (), "everything")
"""Every query sees every key."""

causal = Mask(call("ge", i, j), (), "causal")
"""i >= j: a query sees its own position and those before; aligned top-left, as SDPA is."""

causal_bottom_right = Mask(call("ge", i + Sk - Sq, j), (), "causal_bottom_right")
"""i + Sk - Sq >= j: the last query sees every key."""


@outside_graphs
def window(left: int | None, right: int | None) -> Mask:
    """i - left <= j <= i + right, ends included; None is no limit on that side.

    A window of w keys, the current one counted, is `window(w - 1, 0)`. Negative numbers move the
    window: window(-1, 5) leaves the current key out. Raises `OptionError` where it is empty, as
    window(-1, 0): -1 is not "no limit" here.

    >>> import torch
    >>> window(1, 0)(0, 0, torch.arange(3)[:, None], torch.arange(3)).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    for name, limit in (("left", left), ("right", right)):
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise _wrong(f"{name} of a window is no whole number", "an int or None", repr(limit))
    if left is not None and right is not None and left + right < 0:
        raise _wrong("window: it holds no position", "left + right >= 0, or None for no limit",
                     f"window({left}, {right})")  # fmt: skip
    limits = []
    if left is not None:
        limits.append(call("le", i - left if left else i, j))
    if right is not None:
        limits.append(call("le", j, i + right if right else i))
    return Mask(_all(*limits) if limits else const(True), (), f"window({left}, {right})")


@outside_graphs
def document(q_ids: Any, k_ids: Any = None) -> Mask:
    """ids[i] == ids[j]: a query sees the keys of its own document.

    q_ids   integers, (S,) or (B, S): the document of each position
    k_ids   those of the keys, where they are others

    >>> import torch
    >>> i, j = torch.arange(3)[:, None], torch.arange(3)
    >>> document(torch.tensor([0, 0, 1])).evaluate(0, 0, i, j, 3, 3).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    k_ids = q_ids if k_ids is None else k_ids
    for ids in (q_ids, k_ids):
        _check_table("document", ids, (1, 2), "(S,) or (B, S)")
    sources: tuple[Any, ...] = (q_ids,) if k_ids is q_ids else (q_ids, k_ids)
    here = _of_batch("t0", q_ids, i)
    there = _of_batch("t1" if len(sources) == 2 else "t0", k_ids, j)
    return Mask(call("eq", here, there), sources, "document(ids)")


def _check_table(what: str, table: Any, ranks: tuple[int, ...], shapes: str) -> None:
    if not is_tensor(table) or table.ndim not in ranks or table.is_floating_point():
        came = f"shape {_shape(table)}, {table.dtype}" if is_tensor(table) else repr(table)
        raise ShapeError(
            message(
                f"{what}: a table does not fit",
                expected=f"a tensor of integers, {shapes}",
                came=came,
                do="" if is_tensor(table) else "pass torch.tensor(...)",
            )
        )


def _of_batch(name: str, table: Any, *at: Expr) -> Expr:
    """table[at], with as many of b, h before as the table has dimensions; size 1 is for all."""
    before = (b, h)[: table.ndim - len(at)]
    outer = [const(0) if n == 1 else e for e, n in zip(before, _shape(table), strict=False)]
    return element(name, (*outer, *at))


@outside_graphs
def cu_seqlens(q: Any, k: Any = None, *, within: Mask | None = None) -> Mask:
    """Packed sequences of different lengths: i and j see each other in the same segment.

    q, k     offsets, (n + 1,), not decreasing: segment s holds the positions q[s] <= i < q[s + 1];
             keys have offsets of their own (as many) or the same. Empty segments are allowed;
             positions in no segment see nothing and are seen by nothing
    within   a mask on positions and lengths inside the segment: i and j count from its start, Sq
             and Sk are its lengths. `causal` alone is `within=causal` where k has q's offsets

    >>> import torch
    >>> i, j = torch.arange(4)[:, None], torch.arange(4)
    >>> cu_seqlens(torch.tensor([0, 2, 3]), within=causal).evaluate(0, 0, i, j, 4, 4).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    k = q if k is None else k
    for offsets in (q, k):
        _check_table("cu_seqlens", offsets, (1,), "(segments + 1,)")
    if _shape(q) != _shape(k):
        raise ShapeError(
            message(
                "cu_seqlens: queries and keys have different numbers of segments",
                expected="offsets of equal length",
                came=f"{_shape(q)[0]} and {_shape(k)[0]}",
            )
        )
    if within is not None and not isinstance(within, Mask):
        raise _wrong("cu_seqlens: within= is no mask", "one of fr.masks, or fr.mask(function)",
                     type(within).__name__)  # fmt: skip
    if within is not None and within.sources:
        return _packed(q, k, within)
    inside = None if within is None else (within.expr, within.label)
    known = _packed_anyhow(k is q, q.dtype, k.dtype, inside)
    return known.with_tensors((q,) if k is q else (q, k))


@lru_cache(maxsize=256)
def _packed_anyhow(
    same: bool, q_dtype: Any, k_dtype: Any, inside: tuple[Expr, str] | None
) -> Mask:  # fmt: skip
    """The mask with stand-ins for the offsets: but for them it is the same for all."""
    q = SimpleNamespace(dtype=q_dtype)
    k = q if same else SimpleNamespace(dtype=k_dtype)
    return _packed(q, k, None if inside is None else Mask(inside[0], (), inside[1]))


def _packed(q: Any, k: Any, within: Mask | None) -> Mask:
    made = (
        Made(segments.query_ids, (q,), Sq, q.dtype),
        Made(segments.key_ids, (k,), Sk, k.dtype),
    )
    same = call("eq", element("t0", (i,)), element("t1", (j,)))
    packed = Mask(same, made, "cu_seqlens(q)" if k is q else "cu_seqlens(q, k)")
    return packed if within is None else packed & _local(within, q, k)


def _local(within: Mask, q: Any, k: Any) -> Mask:
    """`within` on positions and lengths of the segment of each query.

    NOTE: a mask without tables takes keys from where the *query's* segment starts: then i and j
    meet in one comparison and block maps stay exact. Tables must not be read outside the segment,
    so a mask with tables takes them from where the key's own starts.
    """
    count = len(within.sources)
    q_start, k_start, q_length, k_length = (
        element(f"t{count + n}", (j if n == 1 and count else i,)) for n in range(4)
    )
    keys = (k, Sk) if count else (q, Sq)
    made = (
        Made(segments.starts, (q, q), Sq, q.dtype),
        Made(segments.starts, (k, keys[0]), keys[1], k.dtype),
        Made(segments.lengths, (q, q), Sq, q.dtype),
        Made(segments.lengths, (k, q), Sq, k.dtype),
    )
    values = {"i": i - q_start, "j": j - k_start, "Sq": q_length, "Sk": k_length}
    expr, sources = tables.used(substitute(within.expr, values), (*within.sources, *made))
    return Mask(expr, sources, f"within({within.label})")


@outside_graphs
def prefix(n: Any) -> Mask:
    """j < n | i >= j: the first n keys are seen by all, the others causally.

    n   an int, or integers (B,) or 0-d
    """
    if is_tensor(n):
        _check_table("prefix", n, (0, 1), "(B,) or ()")
        return Mask(call("lt", j, _of_batch("t0", n)), (n,), "prefix(n)") | causal
    _require_whole("prefix", n=n)
    return Mask(call("lt", j, as_expr(n)), (), f"prefix({n})") | causal


@outside_graphs
def blocks(table: Any, block_q: int, block_k: int, partial: Mask | None = None) -> Mask:
    """Pairs by blocks: block (i // block_q, j // block_k) of the table says 0 none, 1 some, 2 all.

    table     bool or integers, (nq, nk), (H, nq, nk) or (B, H, nq, nk)
    partial   which pairs are seen in blocks that say 1 (or True); all of them where it is left out
    """
    _check_table("blocks", table, (2, 3, 4), "(nq, nk), (H, nq, nk) or (B, H, nq, nk)")
    for name, size in (("block_q", block_q), ("block_k", block_k)):
        if not isinstance(size, int) or size < 1:
            raise _wrong(f"{name} is no size of a block", "a positive int", repr(size))
    before = (b, h)[4 - table.ndim :]
    outer = [const(0) if n == 1 else e for e, n in zip(before, _shape(table), strict=False)]
    at = element("t0", (*outer, call("floordiv", i, block_q), call("floordiv", j, block_k)))
    truth = str(table.dtype).endswith("bool")
    label = f"blocks(table, {block_q}, {block_k})"
    seen = Mask(at if truth else call("ne", at, 0), (table,), label)
    if partial is None:
        return seen
    inside = partial if truth else Mask(call("eq", at, 2), (table,), label) | partial
    return replace(seen & inside, label=f"{label[:-1]}, {partial.label})")


@outside_graphs
def dilated(window: int, step: int) -> Mask:
    """j = i + step * n for |n| <= window: every `step`-th key, `window` of them on each side."""
    _require_whole("dilated", window=window, step=step)
    if step < 1 or window < 0:
        raise _wrong("dilated: no such window", "window >= 0, step >= 1", f"{window}, {step}")
    reach = window * step
    near = _all(call("le", i - reach, j), call("le", j, i + reach))
    aligned = call("eq", call("mod", i - j, step), 0)
    return Mask(_all(near, aligned), (), f"dilated({window}, {step})")


@outside_graphs
def neighbourhood_2d(height: int, width: int, radius: int) -> Mask:
    """Positions of a height x width image, row by row: at most `radius` rows and columns apart.

    Positions from height * width on see nothing and are seen by nothing.
    """
    _require_whole("neighbourhood_2d", height=height, width=width, radius=radius)
    if min(height, width) < 1 or radius < 0:
        came = f"{height}, {width}, {radius}"
        raise _wrong("neighbourhood_2d: no such image", "sizes >= 1, radius >= 0", came)
    near = [
        call("le", call("abs", call(op, i, width) - call(op, j, width)), radius)
        for op in ("floordiv", "mod")
    ]
    inside = [call("lt", position, height * width) for position in (i, j)]
    return Mask(_all(*near, *inside), (), f"neighbourhood_2d({height}, {width}, {radius})")
