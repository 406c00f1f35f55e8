"""Attention that drops, in plain PyTorch, given which pairs are kept; and how that is found out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fusedreduce as fr


def kept(q: Tensor, k: Tensor, p: float, rng_seed: Any, impl: str | None = None,
         **arguments: Any) -> Tensor:  # fmt: skip
    """(B, H, Sq, Sk): which pairs keep their payload, seen by values that are a unit matrix.

    Scores are 0, so that no weight of a pair that is seen underflows. Values are at most 512 wide:
    longer ones come in pieces, which draw the same bits.
    """
    unit = torch.eye(k.shape[2], dtype=q.dtype, device=q.device)
    nothing, none = torch.zeros_like(q).detach(), torch.zeros_like(k).detach()
    pieces = [
        fr.attention(nothing, none, part.expand(*k.shape[:3], -1), enable_gqa=True, dropout_p=p,
                     rng_seed=rng_seed, impl=impl, **arguments)
        for part in unit.split(512, dim=1)
    ]  # fmt: skip
    return torch.cat(pieces, dim=-1) != 0


def plain(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, p: float, seen: Tensor | None = None
) -> Tensor:
    """All scores at once in the dtype of the inputs; the softmax knows nothing of `keep`."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    x = q @ k.mT * q.shape[-1] ** -0.5
    x = x if seen is None else torch.where(seen, x, float("-inf"))
    return torch.where(keep, x.softmax(-1) / (1.0 - p), 0.0) @ v
