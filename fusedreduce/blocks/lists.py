"""Lists of blocks from a block map, for each block of queries and for each block of keys."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class BlockLists:
    """For each block of queries: how many blocks of keys are partial, and which; how many full.

    Counts are (B or 1, H or 1, nq), ids (B or 1, H or 1, nq, nk), ascending, int32; what stands
    after the first `count` ids is unspecified. Those with `q_` are for each block of keys its
    blocks of queries: (..., nk) and (..., nk, nq).
    """

    partial_count: Tensor
    partial_ids: Tensor
    full_count: Tensor
    full_ids: Tensor
    q_partial_count: Tensor
    q_partial_ids: Tensor
    q_full_count: Tensor
    q_full_ids: Tensor


def lists(map: Tensor) -> BlockLists:
    """The lists of a block map (see `classify`), on its device, without waiting for it.

    >>> made = lists(torch.tensor([[[[1, 0], [2, 1]]]], dtype=torch.int8))
    >>> made.partial_count, made.partial_ids[0, 0, 1, :1], made.full_count
    (tensor([[[1, 1]]], dtype=torch.int32), tensor([1], dtype=torch.int32),
     tensor([[[0, 1]]], dtype=torch.int32))
    """
    keys, queries = map, map.transpose(-1, -2)
    return BlockLists(
        *places(keys == 1), *places(keys == 2), *places(queries == 1), *places(queries == 2)
    )


def places(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """(count, ids): the places of the True ones along the last dimension, in order."""
    ids = torch.argsort((~chosen).to(torch.int8), dim=-1, stable=True)
    return chosen.sum(-1, dtype=torch.int32), ids.to(torch.int32).contiguous()
