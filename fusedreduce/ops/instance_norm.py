"""instance_norm: (x - mean) / sqrt(var + eps) over the positions of one channel of one sample."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.errors import OptionError, ShapeError, message
from fusedreduce.ops.arguments import real, require_shape, require_tensor, wide
from fusedreduce.ops.channels import as_given, as_stored
from fusedreduce.ops.var_mean import unbiased_factor
from fusedreduce.reductions import Moments


@fuse
def fused_instance_norm(x, mean, var, weight, bias, last, eps, factor):
    """Statistics of the input where `mean` is None, else those given.

    With a factor the answer is (y, mean, var * factor): what running statistics are made of.
    """
    dtype, c = x.dtype, x.shape[-1 if last else 1]
    lying = (c,) if last else (c, *(1 for _ in x.shape[2:]))
    x = wide(x)
    if mean is None:
        places = tuple(range(1, x.dim() - 1) if last else range(2, x.dim()))
        r = reduce(Moments, x, dim=places, keepdim=True)
        mean, var = r["mean"], r["var"]
    else:
        mean, var = wide(mean).reshape(lying), wide(var).reshape(lying)
    y = (x - mean) * torch.rsqrt(var + eps)
    y = y if weight is None else y * weight.reshape(lying)
    y = y if bias is None else y + bias.reshape(lying)
    if factor is None:
        return y.to(dtype)
    return y.to(dtype), mean, var * factor


@repeated
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    impl: str | None = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, as torch.nn.functional.instance_norm.

    (Ulyanov, Vedaldi and Lempitsky 2016.) Input (N, C, *); mean and (biased) var are over the
    positions * of each channel of each sample, or, with `use_input_stats=False`, the running ones.
    All others are (C,). Running statistics, where given, are moved in place by `momentum` towards
    the mean over samples of mean and of unbiased var. The input's shape, dtype and memory format.
    Raises `ShapeError`, `DtypeError`, `OperandError`, `OptionError`.

    >>> import torch, fusedreduce as fr
    >>> running = torch.zeros(1), torch.ones(1)
    >>> fr.ops.instance_norm(torch.tensor([[[1.0, 3.0]]]), *running, eps=0.0)
    tensor([[[-1.,  1.]]])
    >>> running
    (tensor([0.2000]), tensor([1.1000]))
    """
    shape = checked_shape(input, use_input_stats)
    given = {"running_mean": running_mean, "running_var": running_var}
    for name, value in {**given, "weight": weight, "bias": bias}.items():
        require_shape("instance_norm", name, value, shape[1:2], "one number a channel")
    lacking = [name for name, value in given.items() if value is None]
    if len(lacking) == 1 or (lacking and not use_input_stats):
        raise OptionError(
            message(f"instance_norm: `{lacking[0]}` is missing", expected="running_mean and "
                    "running_var, both or none; both for use_input_stats=False")
        )  # fmt: skip
    x, last = as_stored(input)
    if not use_input_stats or lacking:
        mean, var = (None, None) if use_input_stats else (running_mean, running_var)
        y = fused_instance_norm(
            x, mean, var, weight, bias, last, real("instance_norm", "eps", eps), None, impl=impl
        )
        return as_given(y, last)
    momentum = real("instance_norm", "momentum", momentum)
    factor = unbiased_factor(prod(shape[2:]), 1)
    y, mean, var = fused_instance_norm(
        x, None, None, weight, bias, last, real("instance_norm", "eps", eps), factor, impl=impl
    )
    move(running_mean, mean, shape[:2], momentum)
    move(running_var, var, shape[:2], momentum)
    return as_given(y, last)


def checked_shape(input: Tensor, use_input_stats: bool) -> tuple[int, ...]:
    require_tensor("instance_norm", "input", input)
    shape = tuple(input.shape)
    if len(shape) < 2 or (use_input_stats and prod(shape[2:]) == 1):
        raise ShapeError(
            message("instance_norm: one value has no spread", came=f"{shape}",
                    expected="(N, C, *) with more than one position")
        )  # fmt: skip
    return shape


@torch.no_grad()
def move(running: Tensor | None, now: Tensor, shape: tuple[int, ...], momentum: float) -> None:
    """running := (1 - momentum) running + momentum * (mean of `now` over samples), in place."""
    if running is not None and shape[0]:
        running.lerp_(now.reshape(shape).mean(0).to(running.dtype), momentum)
