"""Softmax, LogSoftmax, Softmin: the operations as modules."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedreduce import ops


class Softmax(torch.nn.Softmax):
    """exp(x_j) / sum_j exp(x_j) along `dim`; torch.nn.Softmax's twin, but `dim` must be given.

    >>> Softmax(dim=0)(torch.tensor([1000.0, 1000.0]))
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return ops.softmax(input, self.dim)  # type: ignore[arg-type]


class LogSoftmax(torch.nn.LogSoftmax):
    """x_j - log sum_j exp(x_j) along `dim`; torch.nn.LogSoftmax's twin, but `dim` must be given.

    >>> LogSoftmax(dim=0)(torch.tensor([1000.0, 1000.0]))
    tensor([-0.6931, -0.6931])
    """

    def forward(self, input: Tensor) -> Tensor:
        return ops.log_softmax(input, self.dim)  # type: ignore[arg-type]


class Softmin(torch.nn.Softmin):
    """exp(-x_j) / sum_j exp(-x_j) along `dim`; torch.nn.Softmin's twin, but `dim` must be given.

    >>> Softmin(dim=0)(torch.tensor([1000.0, 1000.0]))
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return ops.softmin(input, self.dim)  # type: ignore[arg-type]
