"""log_softmax: (x - max) - log sum exp(x - max)."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.repeated import repeated
from fusedreduce.ops.softmax import checked


@fuse
def fused_log_softmax(x, dim, dtype):
    return torch.log_softmax(x, dim, dtype=dtype)


@repeated
def log_softmax(
    input: Tensor, dim: int, dtype: torch.dtype | None = None, *, impl: str | None = None
) -> Tensor:
    """(x_j - max x) - log sum_j exp(x_j - max x) along `dim`, as torch.log_softmax.

    The input's shape; `dtype` (to which the input is converted first) or the input's dtype. Errors
    as `softmax`'s.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.log_softmax(torch.tensor([1000.0, 1000.0]), dim=0)
    tensor([-0.6931, -0.6931])
    """
    return fused_log_softmax(input, *checked("log_softmax", input, dim, dtype), impl=impl)
