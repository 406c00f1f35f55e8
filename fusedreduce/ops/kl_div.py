"""kl_div: F.kl_div, where a target of probability 0 contributes 0 whatever the input."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.ops import losses
from fusedreduce.ops.arguments import broadcast_shape, require_tensors, wide


@fuse
def relative(input, target, log_target):
    """exp(t) (t - x), or t (log t - x): 0 where the target's probability is 0."""
    x, t = wide(input), wide(target)
    if log_target:
        p = torch.exp(t)
        return p * torch.where(p == 0, 0.0, t - x)
    log_t = torch.log(torch.where(t == 0, 1.0, t))
    return t * torch.where(t == 0, 0.0, log_t - x)


@fuse
def elements(input, target, log_target, dtype):
    return relative(input, target, log_target).to(dtype)


@fuse
def rows(input, target, log_target, reduction):
    """The terms' sums along the last dimension, over what the reduction divides by."""
    terms = relative(input, target, log_target)
    sums = torch.sum(terms, -1)
    if reduction == "sum":
        return sums
    return sums / max(input.shape[0] if reduction == "batchmean" else prod(terms.shape), 1)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
    *,
    impl: str | None = None,
) -> Tensor:
    """sum_j t_j (log t_j - x_j): KL(target || exp(input)), the input in log-probabilities.

    input, target   of one shape, or broadcast against each other; with log_target=True the target
                    holds log-probabilities too
    reduction       "none": the terms; "sum"; "batchmean": over input.shape[0]; "mean": over the
                    number of terms, as torch (no warning is given)

    The other arguments are those of torch.nn.functional.kl_div; the result has torch's dtype,
    inside it is float32 or wider. t_j = 0 contributes 0, also where x_j = -inf (torch: NaN).
    Raises `ShapeError`, `DtypeError`, `OptionError` before any work.

    >>> import torch, fusedreduce as fr
    >>> x = torch.tensor([[0.5, 0.5, 0.0]]).log()
    >>> fr.ops.kl_div(x, torch.tensor([[1.0, 0.0, 0.0]]), reduction="sum")
    tensor(0.6931)
    """
    choices = ("none", "mean", "batchmean", "sum")
    reduction = losses.chosen_reduction("kl_div", reduction, size_average, reduce, choices)
    require_tensors("kl_div", input=input, target=target)
    terms = prod(broadcast_shape("kl_div", input=input, target=target))
    dtype = losses.loss_dtype(input, target)
    if reduction == "none":
        found: Tensor = elements(input, target, log_target, dtype, impl=impl)
        return found
    x, t = (v if v.dim() else v[None] for v in (input, target))
    loss: Tensor = rows(x, t, log_target, reduction, impl=impl).sum()
    nothing = (x.shape[0] if reduction == "batchmean" else terms) == 0 and reduction != "sum"
    return (loss / 0 if nothing else loss).to(dtype)  # no row holds the NaN of 0 / 0
