"""group_norm: (x - mean) / sqrt(var + eps) over the channels of a group and all positions."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.errors import ShapeError, message
from fusedreduce.ops.arguments import real, require_shape, require_tensor, result_dtype, whole, wide
from fusedreduce.ops.channels import as_given, as_stored
from fusedreduce.reductions import Moments


@fuse
def fused_group_norm(x, weight, bias, groups, last, eps, dtype):
    """Channels in the second dimension, or in the last one."""
    n, c = x.shape[0], x.shape[-1 if last else 1]
    each, places = (groups, c // groups), prod(x.shape[1:-1] if last else x.shape[2:])
    g = wide(x).reshape((n, places, *each) if last else (n, *each, places))
    r = reduce(Moments, g, dim=(1, 3) if last else (2, 3), keepdim=True)
    y = (g - r["mean"]) * torch.rsqrt(r["var"] + eps)
    lying = each if last else (*each, 1)
    y = y if weight is None else y * weight.reshape(lying)
    y = y if bias is None else y + bias.reshape(lying)
    return y.reshape(x.shape).to(dtype)


@repeated
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    impl: str | None = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, as torch.nn.functional.group_norm.

    (Wu and He 2018.) Input (N, C, *); mean and (biased) var are over C / num_groups channels and
    all positions *; weight and bias are (C,). The input's shape, dtype and memory format (a
    channels_last image is read and written as it lies); the dtypes of weight and bias are free.
    Raises `ShapeError`, `DtypeError`, `OperandError`.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.group_norm(torch.tensor([[[1.0, 3.0], [5.0, 5.0]]]), 2, eps=0.01)[0, 0]
    tensor([-0.9950,  0.9950])
    """
    require_tensor("group_norm", "input", input)
    shape = tuple(input.shape)
    if len(shape) < 2:
        raise ShapeError(
            message("group_norm: `input` has no channels", expected="(N, C, *)", came=f"{shape}")
        )
    groups = whole(num_groups)
    if groups is None or groups < 1 or shape[1] % groups:
        raise ShapeError(
            message("group_norm: `num_groups` does not divide the channels",
                    expected=f"a positive divisor of {shape[1]}", came=repr(num_groups)[:80])
        )  # fmt: skip
    if shape[0] * prod(shape[2:]) * (shape[1] // groups) == 1:
        raise ShapeError(
            message("group_norm: one value has no spread", came=f"{shape} in {num_groups} groups",
                    expected="more than one value a group")
        )  # fmt: skip
    require_shape("group_norm", "weight", weight, shape[1:2], "one number a channel")
    require_shape("group_norm", "bias", bias, shape[1:2], "one number a channel")
    x, last = as_stored(input)
    y = fused_group_norm(
        x,
        weight,
        bias,
        groups,
        last,
        real("group_norm", "eps", eps),
        result_dtype(input),
        impl=impl,
    )
    return as_given(y, last)
