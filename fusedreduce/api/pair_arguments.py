"""What pairwise and attention are given, checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fusedreduce.errors import (
    DtypeError,
    FusedReduceError,
    OperandError,
    OptionError,
    ShapeError,
    message,
)
from fusedreduce.ir.expr import substitute
from fusedreduce.masks import Mask, Score, from_anything
from fusedreduce.masks import score as score_of
from fusedreduce.masks.sources import joined
from fusedreduce.request import one_device

WIDEST = 512  # of q, k and v
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


# ---- q, k, v -----------------------------------------------------------------------------------


def queries_keys(what: str, q: Any, k: Any, v: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """q (B, H, Sq, D), k (B, Hk, Sk, D), v (B, Hk, Sk, DV) or None, of one dtype and device.

    Under autocast they are cast to its dtype, as torch casts those of scaled_dot_product_attention.
    """
    given = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    for name, t in given.items():
        if not isinstance(t, Tensor) or t.is_nested:
            raise _no_tensor(what, name, t)
    device = q.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        to = torch.get_autocast_dtype(device)
        given = {n: t.to(to) if t.is_floating_point() and t.dtype != torch.float64 else t
                 for n, t in given.items()}  # fmt: skip
    _fit(what, given)
    return given["q"], given["k"], given.get("v")


def _no_tensor(what: str, name: str, t: Any) -> FusedReduceError:
    if not isinstance(t, Tensor):
        return OperandError(
            message(f"{what}: `{name}` is not a tensor", expected="a torch.Tensor",
                    came=type(t).__name__)
        )  # fmt: skip
    return ShapeError(
        message(f"{what}: `{name}` is a nested tensor", expected="a tensor of one size",
                do="pack the sequences into one of all tokens, and pass "
                "mask=fr.masks.cu_seqlens(offsets)")
    )  # fmt: skip


def _fit(what: str, given: Mapping[str, Tensor]) -> None:
    """Is each 4-dimensional, all on one device, of one dtype, of sizes that fit?"""
    shapes = {n: t.shape for n, t in given.items()}
    for name, shape in shapes.items():
        if len(shape) != 4:
            raise ShapeError(
                message(
                    f"{what}: `{name}` has {len(shape)} dimensions",
                    expected="4: (batch, heads, length, width)",
                    came=f"{name} {tuple(shape)}",
                    do="add the missing ones with t[None]; fr.ops.scaled_dot_product_attention "
                    "takes any number of batch dimensions",
                )
            )
    one_device(given)
    _same_dtype(what, {n: t.dtype for n, t in given.items()})
    _shapes(what, shapes)


def _same_dtype(what: str, given: Mapping[str, torch.dtype]) -> None:
    dtypes = set(given.values())
    if len(dtypes) > 1 or not dtypes <= set(FLOATS):
        raise DtypeError(
            message(
                f"{what}: {', '.join(given)} do not have one floating-point dtype",
                expected="float16, bfloat16, float32 or float64, the same for all",
                came=", ".join(f"{n} {_name(dtype)}" for n, dtype in given.items()),
                do="convert them, for instance k.to(q.dtype), or run inside torch.autocast"
                if dtypes & set(FLOATS)
                else "",
            )
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shapes(what: str, given: Mapping[str, torch.Size]) -> None:
    q, k, v = given["q"], given["k"], given.get("v")

    def require(fine: Any, fact: str, expected: str, do: str = "") -> None:
        if not fine:
            came = ", ".join(f"{n} {tuple(shape)}" for n, shape in given.items())
            raise ShapeError(message(f"{what}: {fact}", expected=expected, came=came, do=do))

    require(q[3] == k[3], "q and k have different widths", "q (..., D), k (..., D)")
    alike = all(shape[0] == q[0] for shape in given.values())
    require(alike, "the batches differ in size", "the same first dimension",
            "expand the smaller one: k.expand(B, -1, -1, -1)")  # fmt: skip
    heads, shared = q[1], k[1]
    fits = heads == shared or (shared > 0 and heads % shared == 0)
    require(fits, "the heads of q are no multiple of those of k", "H = n * Hk")
    if v is not None:
        require(v[1] == shared, "k and v have different numbers of heads",
                "k (B, Hk, Sk, D), v (B, Hk, Sk, DV)")  # fmt: skip
        require(v[2] == k[2], "k and v have different lengths",
                "one row of v for each key: v (B, Hk, Sk, DV)")  # fmt: skip
    for n, shape in given.items():
        require(0 < shape[3] <= WIDEST, f"{n} is too wide, or not at all",
                f"a last dimension of 1 to {WIDEST}")  # fmt: skip


# ---- masks and scores --------------------------------------------------------------------------


def portable(value: Any) -> Any:
    """A mask or score as text and tensors, which a compiled graph can hold; tensors as given."""
    if isinstance(value, Mask):
        return "mask", value.text, value.tensors
    if isinstance(value, Score):
        return "score", value.text, value.tensors
    if value is None or isinstance(value, Tensor):
        return value
    raise OperandError(
        message(
            "a mask or score inside torch.compile is not ready for it",
            expected="a tensor, or what fr.mask(...), fr.score(...), fr.masks answer",
            came=type(value).__name__,
            do="make it outside of the compiled function: seen = fr.mask(function)",
        )
    )


def unpacked(value: Any) -> Any:
    """What was made portable."""
    if isinstance(value, (tuple, list)) and len(value) == 3 and value[0] in ("mask", "score"):
        kind, text, tensors = value
        return (Mask if kind == "mask" else Score).of_text(text, tensors)
    return value


def shifts(q_offset: Any, k_offset: Any) -> tuple[str | int, str | int]:
    """The offsets by name, where there are any."""
    return "q_offset" if q_offset else 0, "k_offset" if k_offset else 0


def shifted(what: Any, by: tuple[str | int, str | int]) -> Any:
    """A mask or score of the whole, for the piece that begins at these offsets."""
    return what.shifted(*by) if any(by) else what


def seen(
    mask: Any, score_mod: Any, q: Tensor, k: Tensor, by: tuple[str | int, str | int]
) -> tuple[Mask | None, Score | None]:
    """`mask=` and `score_mod=` as a mask and a score; an additive mask comes after the score.

    Both speak of positions in the whole; a tensor and a BlockMask of the pairs of this call.
    """
    if mask is None and score_mod is None:
        return None, None
    mask, score = unpacked(mask), unpacked(score_mod)
    if isinstance(score, Mask):
        raise OperandError(
            message("score_mod= is a mask", expected="a function of scores", do="pass it as mask=")
        )
    score = None if score is None else shifted(score_of(score), by)
    if isinstance(mask, Score):
        raise OperandError(
            message("mask= is a score", expected="who sees whom", do="pass it as score_mod=")
        )
    if isinstance(mask, Mask):
        return shifted(mask, by), score
    found = from_anything(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if isinstance(found, Mask) and not hasattr(mask, "shape"):
        return shifted(found, by), score
    if isinstance(found, Score):
        return None, found if score is None else after(score, found)
    return found, score


def after(first: Score, second: Score) -> Score:
    """second(first(score))."""
    (a, b), sources = joined((first.expr, first.sources), (second.expr, second.sources))
    return Score(substitute(b, {"score": a}), sources, f"{second!r} after {first!r}")


def offset(what: str, name: str, value: Any) -> int | torch.SymInt:
    """A position: an integer of any make, one that torch knows by a symbol too."""
    if isinstance(value, torch.SymInt):
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return value.__index__()  # type: ignore[no-any-return]
    except (AttributeError, TypeError):
        raise OptionError(
            message(f"{what}: {name} is not a position", expected="an integer",
                    came=repr(value)[:80], do="positions that differ in the batch are a mask that "
                    "captures them: fr.mask(lambda b, h, i, j: i + first[b] >= j)")
        ) from None  # fmt: skip


def check_deterministic(what: str, value: Any) -> None:
    """NOTE: the backends here repeat bit for bit; a one-pass backward is to ask for this."""
    if value not in (None, True, False):
        raise OptionError(
            message(f"{what}: deterministic is no truth value", expected="None, True or False",
                    came=repr(value)[:80])
        )  # fmt: skip


def as_argument(position: int | torch.SymInt) -> float | Tensor:
    """A number; a tensor for an offset that may change in a compiled graph."""
    if isinstance(position, torch.SymInt):
        number: Any = position
        return torch.full((), number, dtype=torch.int64, device="cpu")
    return float(position)


# ---- operands ----------------------------------------------------------------------------------


def placed(given: Mapping[str, Any], q: Tensor, k: Tensor) -> tuple[list[Any], tuple[str, ...]]:
    """Numbers and 4-dimensional tensors, and the indices that each varies with."""
    values = [_four(n, t, q, k) if isinstance(t, Tensor) else t for n, t in given.items()]
    return values, tuple(map(_varying, values))


def _varying(value: Any) -> str:
    """What an operand varies with; a tensor of one element is read at 0."""
    shape = value.shape if isinstance(value, Tensor) else ()
    return "".join(d for d, size in zip("bhij", shape, strict=False) if size != 1)


def _four(name: str, t: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """(B, H, Sq, Sk), with 1 where it does not vary."""
    (B, H, Sq), Sk = q.shape[:3], k.shape[2]
    batch, heads = (B, 1), (H, 1)
    if t.dim() == 3 and t.shape[0] in batch and t.shape[1] in heads:
        if t.shape[2] == Sk:
            return t[:, :, None]
        if t.shape[2] == Sq:
            return t[..., None]
    if t.dim() == 4 and all(a in (n, 1) for a, n in zip(t.shape, (B, H, Sq, Sk), strict=True)):
        return t
    raise ShapeError(
        message(
            f"operand `{name}` fits neither queries nor keys",
            expected=f"(B, H, Sq) = {(B, H, Sq)} or (B, H, Sq, 1) per query, (B, H, Sk) = "
            f"{(B, H, Sk)} or (B, H, 1, Sk) per key; each size or 1",
            came=f"{name} {tuple(t.shape)}",
            do="where Sq and Sk are equal, three dimensions mean keys: write t[..., None] for "
            "queries",
        )
    )
