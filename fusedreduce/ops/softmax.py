"""softmax and softmin: exp(x - max) / sum exp(x - max)."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.repeated import repeated
from fusedreduce.ops.arguments import require_dim, require_dtype, require_tensor, result_dtype


@fuse
def fused_softmax(x, dim, dtype):
    return torch.softmax(x, dim, dtype=dtype)


@fuse
def fused_softmin(x, dim, dtype):
    return torch.softmax(-x, dim, dtype=dtype)


@repeated
def softmax(
    input: Tensor, dim: int, dtype: torch.dtype | None = None, *, impl: str | None = None
) -> Tensor:
    """exp(x_j - max x) / sum_j exp(x_j - max x) along `dim`, as torch.softmax.

    The input's shape; `dtype` (to which the input is converted first) or the input's dtype. A row
    with +inf or NaN, or of -inf alone, is NaN, as torch's. Raises `DtypeError` for integers without
    `dtype`, `ShapeError` for a `dim` that is none.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.softmax(torch.tensor([1000.0, 1000.0]), dim=0)
    tensor([0.5000, 0.5000])
    """
    return fused_softmax(input, *checked("softmax", input, dim, dtype), impl=impl)


@repeated
def softmin(
    input: Tensor, dim: int, dtype: torch.dtype | None = None, *, impl: str | None = None
) -> Tensor:
    """softmax(-x) along `dim`, as torch.nn.functional.softmin; errors as `softmax`'s.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.softmin(torch.tensor([-1000.0, 1000.0]), dim=0)
    tensor([1., 0.])
    """
    return fused_softmin(input, *checked("softmin", input, dim, dtype), impl=impl)


def checked(
    op: str, input: Tensor, dim: int, dtype: torch.dtype | None
) -> tuple[int, torch.dtype | None]:
    """The dimension and the dtype to which the input is converted."""
    require_dtype(op, dtype)
    require_tensor(op, "input", input, floating=dtype is None)
    return require_dim(op, dim, input.dim()), result_dtype(input) if dtype is None else dtype
