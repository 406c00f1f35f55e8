"""normalize: x / max(p-norm of x, eps), with norms that do not overflow before they must."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.declare import Reduction, Sum
from fusedreduce.errors import OptionError, message
from fusedreduce.ops.arguments import real, require_dim, require_tensor, result_dtype, wide
from fusedreduce.reductions import EuclideanNorm, p_norm

INF = float("inf")


@lru_cache(maxsize=64)
def scaled_norm(p: float) -> type[Reduction]:
    """k = max |x_j| and q = sum (|x_j| / k)^p: the norm k q^(1/p) before its root is taken.

    q is 0 or at least 1, so the root can be taken where it has a slope.
    """
    base: Any = EuclideanNorm if p == 2 else p_norm(p)

    class ScaledNorm(base):
        """k and q of one p-norm."""

        __qualname__ = "ScaledNorm"  # the name of its kernels
        jointly_gauge = True  # k q^(1/p) is the norm, whatever the k
        definition = None

        def finish(k, q):
            return {"k": k, "q": q}

    if p > 1:
        return ScaledNorm

    class SteepNorm(ScaledNorm):
        """The same where |x|^p has no slope at 0: a 0 adds nothing, and nothing flows into it."""

        __qualname__ = "SteepNorm"
        q = Sum(
            lambda x, k: torch.where(
                x == 0, 0.0, (torch.abs(torch.where(x == 0, 1.0, x)) / k) ** p
            ),
            correct=lambda q, old, new: q * (old.k / new.k) ** p,
        )

    return SteepNorm


def norm(x, p, dims):
    """The p-norm inside a fused function; `dims` are kept with size 1."""
    if p == 0:
        return torch.sum(torch.where(x == 0, 0.0, 1.0), dims, keepdim=True)
    if p == 1:
        return torch.sum(torch.abs(x), dims, keepdim=True)
    if p == INF:
        return torch.amax(torch.abs(x), dims, keepdim=True)
    if p < 0:
        smallest = torch.amin(torch.abs(x), dims, keepdim=True)
        if p == -INF:
            return smallest
        return torch.where(smallest == 0, 0.0, 1 / norm(1 / torch.where(x == 0, 1.0, x), -p, dims))
    r = reduce(scaled_norm(p), x, dim=dims, keepdim=True)
    q = torch.where(r["q"] == 0, 1.0, r["q"])
    return r["k"] * (torch.sqrt(q) if p == 2 else q ** (1 / p))


def invertible(x, times):
    """Inside a fused function: x, and 0 where times / x may overflow: 0 * inf would be a slope."""
    return torch.where(torch.abs(x) < times * torch.finfo(x.dtype).tiny, 0.0, x)


@fuse
def fused_normalize(x, p, dims, eps, dtype):
    x = wide(x)
    relative = 0 < p[0] < INF and p[0] != 1  # to the largest size, by which slopes are divided
    size = norm(invertible(x, 4 * p[0] + 8) if relative else x, *p, dims)
    return (x / torch.clamp(size, min=eps)).to(dtype)


@repeated
def normalize(
    input: Tensor,
    p: float = 2.0,
    dim: int | tuple[int, ...] = 1,
    eps: float = 1e-12,
    out: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """x / max((sum_j |x_j|^p)^(1/p), eps) along `dim`, as torch.nn.functional.normalize.

    p     any number: inf is the largest |x_j|, -inf the smallest, 0 counts those that are not 0
    out   where the result is also written; not differentiable

    The input's shape and dtype. Raises `ShapeError`, `DtypeError`, `OptionError`.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.normalize(torch.tensor([[3e30, 4e30]]))
    tensor([[0.6000, 0.8000]])
    """
    require_tensor("normalize", "input", input)
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    dims = tuple(require_dim("normalize", d, input.dim()) for d in given)
    if isinstance(p, bool) or not isinstance(p, (int, float)) or p != p:
        raise OptionError(message("normalize: `p` is not a number", came=repr(p)[:80]))
    # p in a tuple: a float argument would be a number of the call, this one shapes the kernel.
    y = fused_normalize(
        input, (float(p),), dims, real("normalize", "eps", eps), result_dtype(input), impl=impl
    )
    if out is None:
        return y
    return written(y, out)


def written(y: Tensor, out: Tensor) -> Tensor:
    if y.requires_grad or out.requires_grad:
        raise OptionError(
            message("normalize: `out` of something differentiable", do="leave out= away, or call "
                    "it under torch.no_grad()")
        )  # fmt: skip
    if out.dtype != y.dtype:
        raise OptionError(
            message(
                "normalize: `out` has another dtype", expected=f"{y.dtype}", came=f"{out.dtype}"
            )
        )
    return out.resize_(y.shape).copy_(y)
