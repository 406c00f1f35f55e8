"""LayerNorm: ops.layer_norm as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedreduce import ops


class LayerNorm(torch.nn.LayerNorm):
    """(x - mean) / sqrt(var + eps) * weight + bias; torch.nn.LayerNorm's twin.

    >>> LayerNorm(2)(torch.tensor([1.0, 3.0])).detach()
    tensor([-1.0000,  1.0000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
