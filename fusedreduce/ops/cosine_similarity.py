"""cosine_similarity: x1 . x2 / (max(|x1|, eps) max(|x2|, eps)), never overflowing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.ops.arguments import (
    broadcast_shape,
    real,
    require_dim,
    require_tensors,
    result_dtype,
    wide,
)
from fusedreduce.reductions import CosineSimilarity


class ScaledProducts(CosineSimilarity):
    """kx = max |x|, ky = max |y|, and x . x, y . y, x . y over the squares and product of them."""

    jointly_gauge = True  # x . y = kx ky d, whatever kx and ky
    definition: Any = None

    def finish(kx, ky, qx, qy, d):
        return {"kx": kx, "ky": ky, "qx": qx, "qy": qy, "d": d}


def share(k, q, eps):
    """k / max(|x|, eps), where |x| = k sqrt(q); of a vector of zeros 1 / eps."""
    k = torch.where(k == 0, 1.0, k)
    size = torch.where(q == 0, 0.0, k * torch.sqrt(torch.where(q == 0, 1.0, q)))
    return k / torch.clamp(size, min=eps)


@fuse
def fused_cosine_similarity(x, y, dim, eps, dtype):
    r = reduce(ScaledProducts, wide(x), y=wide(y), dim=dim)
    return (r["d"] * share(r["kx"], r["qx"], eps) * share(r["ky"], r["qy"], eps)).to(dtype)


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
