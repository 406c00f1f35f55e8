"""RMSNorm: ops.rms_norm as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce import ops


class RMSNorm(torch.nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight; torch.nn.RMSNorm's twin.

    `residual`, `weight_offset` and `casting` as in `ops.rms_norm`; with a residual the answer is
    (y, input + residual).

    >>> RMSNorm(2)(torch.tensor([3.0, -3.0])).detach()
    tensor([ 1., -1.])
    >>> y, h = RMSNorm(2)(torch.tensor([1.0, -1.0]), residual=torch.tensor([2.0, -2.0]))
    >>> h.detach()
    tensor([ 3., -3.])
    """

    def forward(self, x: Tensor, *, residual: Tensor | None = None, **options: Any) -> Any:
        return ops.rms_norm(
            x, self.normalized_shape, self.weight, self.eps, residual=residual, **options
        )
