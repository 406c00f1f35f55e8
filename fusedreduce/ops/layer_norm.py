"""layer_norm: (x - mean) / sqrt(var + eps) over the last dimensions, times weight, plus bias."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.ops.arguments import normalized_dims, real, require_shape, result_dtype, wide
from fusedreduce.reductions import Moments


@fuse
def fused_layer_norm(x, weight, bias, dims, eps, dtype):
    x = wide(x)
    r = reduce(Moments, x, dim=dims, keepdim=True)
    y = (x - r["mean"]) * torch.rsqrt(r["var"] + eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(dtype)


@repeated
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    impl: str | None = None,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, as torch.nn.functional.layer_norm.

    mean and (biased) var are over the last dimensions, those of `normalized_shape`, in which
    `weight` and `bias` lie (Ba, Kiros and Hinton 2016). The input's shape and dtype; the dtypes of
    weight and bias are free. Raises `ShapeError`, `DtypeError`, `OperandError`.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.layer_norm(torch.tensor([[1.0, 3.0]]), (2,), eps=0.0)
    tensor([[-1.,  1.]])
    """
    dims = normalized_dims("layer_norm", input, normalized_shape)
    require_shape("layer_norm", "weight", weight, normalized_shape, "that of normalized_shape")
    require_shape("layer_norm", "bias", bias, normalized_shape, "that of normalized_shape")
    return fused_layer_norm(
        input, weight, bias, dims, real("layer_norm", "eps", eps), result_dtype(input), impl=impl
    )
