"""var_mean: the variance with any correction, and the mean, from one pass."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.errors import OptionError, message
from fusedreduce.ops.arguments import real, require_dim, require_tensor, wide
from fusedreduce.reductions import Moments


@fuse
def fused_var_mean(x, dims, keepdim, factor):
    r = reduce(Moments, wide(x), dim=dims, keepdim=keepdim)
    return (r["var"] * factor).to(x.dtype), r["mean"].to(x.dtype)


def unbiased_factor(n: int, correction: float) -> float:
    """n / max(0, n - correction): infinite where no degree of freedom is left."""
    return n / (n - correction) if n > correction else float("inf")


@repeated
def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(sum (x - mean)^2 / max(0, n - correction), mean), as torch.var_mean.

    dim          one dimension, several, or all of them (None, or an empty tuple)
    correction   1 by default; `unbiased=True` means 1, False 0, and `var_mean(x, False)` is served

    The input's dtype. A shifted, merged sum (see `Moments`): no digits are lost where the mean is
    far from 0. Without a degree of freedom the variance is NaN or infinite, as torch's, without its
    warning. Raises `DtypeError` for integers, `ShapeError`, `OptionError`.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.var_mean(torch.tensor([1.0, 3.0]))
    (tensor(2.), tensor(2.))
    """
    require_tensor("var_mean", "input", input)
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise OptionError(
            message("var_mean: `unbiased` and `correction` say the same",
                    expected="one of them", came=f"{unbiased} and {correction}")
        )  # fmt: skip
    if correction is None:
        correction = float(unbiased is not False)
    rank = input.dim()
    given = (
        range(rank) if dim in (None, (), []) else dim if isinstance(dim, (tuple, list)) else (dim,)
    )
    dims = tuple(require_dim("var_mean", d, rank) for d in given)
    n = prod([input.shape[d] for d in dims]) if rank else 1
    factor = unbiased_factor(n, real("var_mean", "correction", correction))
    return fused_var_mean(input, dims or None, keepdim, factor, impl=impl)
