"""Block maps and their lists, for whoever runs kernels; `fusedreduce.blocks` makes them."""

from __future__ import annotations

from functools import lru_cache

import torch

from fusedreduce.blocks.bound import Bound
from fusedreduce.blocks.classify import classify
from fusedreduce.blocks.lists import BlockLists, lists
from fusedreduce.masks.predicate import Mask

__all__ = ["BlockLists", "Bound", "block_lists", "classify", "lists"]


def block_lists(
    mask: Mask, shape: tuple[int, int, int, int], block: tuple[int, int], device: torch.device,
    offsets: tuple[int, int] = (0, 0),
) -> BlockLists:  # fmt: skip
    """The lists of a mask for (B, H, Sq, Sk) in blocks of (queries, keys), on the device.

    Made anew at every call when the mask reads tensors, whose values may have changed, in a CUDA
    graph without Python's knowing; remembered when it is made of indices alone.

    offsets   the values of q_offset and k_offset, for a mask that was shifted by their names
    """
    make = _made if mask.tensors else _remembered
    return make(mask, shape, block, device, offsets)


def _made(
    mask: Mask, shape: tuple[int, int, int, int], block: tuple[int, int], device: torch.device,
    offsets: tuple[int, int],
) -> BlockLists:  # fmt: skip
    B, H, Sq, Sk = shape
    q, k = offsets
    bound = mask.bind(Sq, Sk, device, q_offset=q, k_offset=k, B=B, H=H)
    return lists(classify(bound, B, H, Sq, Sk, *block))


_remembered = lru_cache(maxsize=64)(_made)
