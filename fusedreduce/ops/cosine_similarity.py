"""cosine_similarity: x1 . x2 / (max(|x1|, eps) max(|x2|, eps)), never overflowing."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.declare import Max, Reduction
from fusedreduce.ops.arguments import (
    broadcast_shape,
    real,
    require_dim,
    require_tensors,
    result_dtype,
    wide,
)
from fusedreduce.reductions import CosineSimilarity


@lru_cache(maxsize=8)
def scaled_products(least: float) -> type[Reduction]:
    """kx = max |x|, ky = max |y|, each at least `least`; x . x, y . y, x . y over their products.

    So nothing is divided by a size whose reciprocal is infinite.
    """

    class ScaledProducts(CosineSimilarity):
        """The parts of one cosine."""

        __qualname__ = "ScaledProducts"  # the name of its kernels
        jointly_gauge = True  # x . y = kx ky d, whatever kx and ky
        definition: Any = None
        kx = Max(lambda x: torch.clamp(torch.abs(x), min=least), identity=0.0, neutral=1.0)
        ky = Max(lambda y: torch.clamp(torch.abs(y), min=least), identity=0.0, neutral=1.0)

        def finish(kx, ky, qx, qy, d):
            return {"kx": kx, "ky": ky, "qx": qx, "qy": qy, "d": d}

    return ScaledProducts


def share(k, q, eps):
    """k / max(|x|, eps), where |x| = k sqrt(q)."""
    size = torch.where(q == 0, 0.0, k * torch.sqrt(torch.where(q == 0, 1.0, q)))
    return k / torch.clamp(size, min=eps)


@fuse
def fused_cosine_similarity(x, y, dim, eps, dtype):
    x, y = wide(x), wide(y)
    least = 4 * torch.finfo(torch.promote_types(x.dtype, y.dtype)).tiny
    r = reduce(scaled_products(least), x, y=y, dim=dim)
    return (r["d"] * share(r["kx"], r["qx"], eps) * share(r["ky"], r["qy"], eps)).to(dtype)


@repeated
def cosine_similarity(
    x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8, *, impl: str | None = None
) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along `dim`, as torch's, which broadcasts them.

    The dtype that both promote to. Raises `ShapeError`, `DtypeError`, `OperandError`.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.cosine_similarity(torch.tensor([3e30, 4e30]), torch.tensor([0.0, 1e-3]), dim=0)
    tensor(0.8000)
    """
    require_tensors("cosine_similarity", x1=x1, x2=x2)
    if x1.shape != x2.shape:
        shape = broadcast_shape("cosine_similarity", x1=x1, x2=x2)
        x1, x2 = x1.expand(shape), x2.expand(shape)
    dtype = result_dtype(x1, x2)
    dim = require_dim("cosine_similarity", dim, x1.dim())
    return fused_cosine_similarity(
        x1, x2, dim, real("cosine_similarity", "eps", eps), dtype, impl=impl
    )
