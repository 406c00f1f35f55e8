"""rms_norm: x / sqrt(mean x^2 + eps) over the last dimensions, times weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.ops.arguments import (
    normalized_dims,
    real,
    require_choice,
    require_shape,
    result_dtype,
    wide,
)
from fusedreduce.reductions import Mean

# NOTE: CUDA's autocast widens torch's own from 2.13 on; 2.11 leaves it in 16 bits.
AUTOCAST_WIDENS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


@fuse
def fused_rms_norm(x, residual, weight, dims, eps, offset, rounded, dtype):
    h = wide(x) if residual is None else wide(x) + wide(residual)
    y = h * torch.rsqrt(reduce(Mean, h * h, dim=dims, keepdim=True) + eps)
    if rounded:
        y = wide(y.to(x.dtype))
    if weight is not None:
        y = y * (wide(weight) if offset is None else wide(weight) + offset)
    y = y.to(dtype)
    if residual is None:
        return y
    return y, h.to(torch.promote_types(x.dtype, residual.dtype))


@repeated
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    weight_offset: float | None = None,
    casting: str = "torch",
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimensions, as torch.rms_norm.

    (Zhang and Sennrich 2019.) The input's shape and dtype; weight's dtype is free. `eps=None` is
    the epsilon of what is computed in: float64 for float64, else float32.

    residual        its shape is the input's: h = input + residual is normalised, unrounded, in the
                    place of the input, and the answer is (y, h); h has the dtype both promote to
    weight_offset   the factor is weight + weight_offset; None: 1 for "gemma", else 0
    casting         "torch" rounds once, at the end, to the input's dtype; "gemma" does so too;
                    "llama" rounds the normalised value to the input's dtype, then multiplies: the
                    result has the dtype that input and weight promote to

    Raises `ShapeError`, `DtypeError`, `OperandError`, `OptionError`.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.rms_norm(torch.tensor([[3.0, -3.0]]), (2,))
    tensor([[ 1., -1.]])
    """
    dims = normalized_dims("rms_norm", input, normalized_shape)
    require_shape("rms_norm", "weight", weight, normalized_shape, "that of normalized_shape")
    require_shape("rms_norm", "residual", residual, input.shape, "that of the input")
    require_choice("rms_norm", "casting", casting, ("torch", "llama", "gemma"))
    dtype, llama = result_dtype(input) if AUTOCAST_WIDENS else input.dtype, casting == "llama"
    if llama:
        dtype = input.dtype if weight is None else torch.promote_types(input.dtype, weight.dtype)
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    if weight_offset is None:
        weight_offset = 1.0 if casting == "gemma" else 0.0
    offset = real("rms_norm", "weight_offset", weight_offset) or None
    return fused_rms_norm(
        input, residual, weight, dims, real("rms_norm", "eps", eps), offset, llama, dtype, impl=impl
    )
