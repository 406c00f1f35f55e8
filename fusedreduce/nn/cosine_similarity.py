"""CosineSimilarity: ops.cosine_similarity as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedreduce import ops


class CosineSimilarity(torch.nn.CosineSimilarity):
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along `dim`; torch.nn.CosineSimilarity's twin.

    >>> similarity = CosineSimilarity(dim=0)
    >>> similarity(torch.tensor([3e30, 4e30]), torch.tensor([0.0, 1.0]))
    tensor(0.8000)
    """

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return ops.cosine_similarity(x1, x2, self.dim, self.eps)
