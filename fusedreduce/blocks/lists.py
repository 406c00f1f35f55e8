"""Lists of blocks from a block map, for each block of queries and for each block of keys."""

from __future__ import annotations

import torch
from torch import Tensor


def dense(counts: Tensor, ids: Tensor, width: int) -> Tensor:
    """1 at the first counts[...] of ids[...], 0 elsewhere: (..., width) int8.

    >>> dense(torch.tensor([2, 1]), torch.tensor([[0, 2, 7], [1, 7, 7]]), 3)
    tensor([[1, 0, 1],
            [0, 1, 0]], dtype=torch.int8)
    """
    listed = torch.arange(ids.shape[-1], device=ids.device) < counts[..., None]
    at = torch.where(listed, ids.long(), width)  # one column more, for what is not listed
    found = torch.zeros((*ids.shape[:-1], width + 1), dtype=torch.int8, device=ids.device)
    return found.scatter_(-1, at, 1)[..., :width]
