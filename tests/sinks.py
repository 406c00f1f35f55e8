"""Attention with sinks in plain PyTorch: every score in a column, the sink before all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fusedreduce as fr
from tests.attention import causal, check

NAMES = ("out", "lse", "entropy", "max_logit")
Sq, Sk = 37, 45
OF_Q, OF_K = torch.arange(Sq) // 9, torch.arange(Sk) // 11
MASKS: dict[str, tuple[Any, Tensor | None]] = {
    "none": (None, None),
    "causal": (fr.masks.causal, causal(Sq, Sk)),
    "rows that see nothing": (
        lambda b, h, i, j: (i % 5 != 3) & (j <= i + 2),
        (torch.arange(Sq)[:, None] % 5 != 3) & (torch.arange(Sk) <= torch.arange(Sq)[:, None] + 2),
    ),
    "lists of blocks": (
        fr.mask(lambda b, h, i, j: OF_Q[i] == OF_K[j]),
        OF_Q[:, None] == OF_K,
    ),
}


def plain(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, seen: Tensor | None = None,
    bias: Tensor | float = 0.0,
) -> dict[str, Tensor]:  # fmt: skip
    """In the dtype of q; of finite sinks, so that no query sees nothing at all."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    x = q @ k.mT * q.shape[-1] ** -0.5 + bias
    x = x if seen is None else torch.where(seen, x, float("-inf"))
    first = sinks.to(x.dtype)[:, None, None].expand(*x.shape[:3], 1)
    x = torch.cat([first, x], -1)
    p, lse = x.softmax(-1), x.logsumexp(-1)
    entropy = lse - torch.where(p > 0, p * torch.where(p > 0, x, 0.0), 0.0).sum(-1)
    return {"out": p[..., 1:] @ v, "lse": lse, "entropy": entropy, "max_logit": x.max(-1).values}


def inputs(
    dtype: torch.dtype, B: int = 2, H: int = 4, Hk: int = 2, queries: int = Sq, keys: int = Sk
) -> tuple[Tensor, ...]:
    """q, k, v and sinks, of which one outweighs every key; all differentiable."""
    shapes = ((B, H, queries, 16), (B, Hk, keys, 16), (B, Hk, keys, 8))
    q, k, v = (torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sinks = torch.randn(H, dtype=wide)
    sinks[1] = 9.0
    return tuple(t.requires_grad_() for t in (q, k, v, sinks))


def check_all(mask: str, names: tuple[str, ...], tensors: tuple[Tensor, ...], impl: str) -> None:
    """Results and gradients of q, k, v and sinks against the formula, all results at once."""
    given, seen = MASKS[mask]

    def ours(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        found = fr.attention(q, k, v, sinks=sinks, mask=given, enable_gqa=True, impl=impl,
                             aux=names[1:])  # fmt: skip
        out, more = found if names[1:] else (found, {})
        return joined({"out": out, **more}, names)

    def right(*given: Tensor) -> Tensor:
        return joined(plain(*given, seen), names)

    check(ours(*tensors), right, tensors, (mask, names, impl))


def joined(found: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """(B, H, Sq, n): the outputs of a query side by side, in the widest dtype."""
    parts = [found[n] if n == "out" else found[n][..., None] for n in names]
    dtype = torch.promote_types(*(parts[k].dtype for k in (0, -1)))
    return torch.cat([t.to(dtype) for t in parts], -1)
