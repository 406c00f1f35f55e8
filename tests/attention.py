"""Plain PyTorch attention, at any precision, and the checks that every room makes against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.accuracy import require_near

Scored = Callable[[Tensor], Tensor]


def inputs(
    B=2, H=4, Hk=None, Sq=9, Sk=9, D=16, DV=None, dtype=torch.float64, spread=1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v: random, differentiable."""
    Hk = Hk or H
    shapes = ((B, H, Sq, D), (B, Hk, Sk, D), (B, Hk, Sk, DV or D))
    return tuple(  # type: ignore[return-value]
        (spread * torch.randn(s, dtype=torch.float64)).to(dtype).requires_grad_() for s in shapes
    )


def plain(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None, score: Scored | None = None,
    scale: float | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """All scores at once in the dtype of the inputs; rows that see nothing are 0, with lse -inf."""
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    x = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    x = x if score is None else score(x)
    if seen is None:
        seen = torch.ones((), dtype=torch.bool, device=x.device)
    seen = seen.expand(x.shape)
    some = seen.any(-1, keepdim=True)
    x = torch.where(seen | ~some, x, float("-inf"))
    out = torch.where(some, x.softmax(-1) @ v, 0.0)
    lse = torch.where(some[..., 0], x.logsumexp(-1), float("-inf"))
    return {"out": out, "lse": lse}


def check(
    got: Tensor, function: Callable[..., Tensor], tensors: Sequence[Tensor], what: Any = "",
    saturated: bool = False,
) -> None:  # fmt: skip
    """`got` and its gradients against `function` of the tensors: in float64 and as they are.

    saturated   a key may have probability 1: then d score = p (<d out, v> - <d out, out>) is a
                difference of equal terms, whose rounding is what is left
    """
    wide = [t.detach().double().requires_grad_() for t in tensors]
    right, rough = function(*wide), function(*tensors)
    require_near(got.detach(), right.detach(), rough.detach().to(got.dtype), 2, what)
    up = torch.randn_like(got)
    noise = cancelled(up, *wide) if saturated else 0.0
    gradients = torch.autograd.grad(got, tensors, up)
    exact = torch.autograd.grad(right, wide, up.double())
    unfused = torch.autograd.grad(rough, tensors, up.to(rough.dtype))
    for n, triple in enumerate(zip(gradients, exact, unfused, strict=True)):
        require_near(*triple, 3, (what, f"gradient {n}"), noise)


def cancelled(up: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> float:
    """Two roundings of the largest <|d out|, |v|>, times the largest |q| or |k| of the scale."""
    size = (up.double().abs() @ v.detach().abs().mT.repeat_interleave(
        up.shape[-3] // v.shape[-3] if v.dim() > 2 else 1, -3)).max()  # fmt: skip
    factor = max(float(t.detach().abs().max()) for t in (q, k)) / q.shape[-1] ** 0.5
    return float(2 * torch.finfo(up.dtype).eps * size * max(1.0, factor))


def causal(Sq: int, Sk: int) -> Tensor:
    return torch.arange(Sq)[:, None] >= torch.arange(Sk)
