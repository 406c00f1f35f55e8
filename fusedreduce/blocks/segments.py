"""Packed sequences of different lengths: which segment each position lies in, and where it starts.

Offsets c_0 <= c_1 <= ... <= c_n cut positions into segments [c_k, c_k+1); positions before c_0 and
from c_n on lie in none. All tables are made on the device of the offsets, without waiting for it.
Here they are defined; `run.segment_tables` makes those of a call by one kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_QUERY, NO_KEY = -1, -2  # the segments of positions in none: they differ, so that none meet


def query_ids(offsets: Tensor, length: int) -> Tensor:
    return ids(offsets, length, NO_QUERY)


def key_ids(offsets: Tensor, length: int) -> Tensor:
    return ids(offsets, length, NO_KEY)


def ids(offsets: Tensor, length: int, nowhere: int) -> Tensor:
    """The segment of each position, `nowhere` (negative) outside all of them; int32.

    >>> ids(torch.tensor([0, 2, 2, 5]), 6, -1)
    tensor([ 0,  0,  2,  2,  2, -1], dtype=torch.int32)
    """
    positions = torch.arange(length, device=offsets.device, dtype=offsets.dtype)
    found = torch.searchsorted(offsets.contiguous(), positions, right=True) - 1
    outside = (found < 0) | (found >= len(offsets) - 1)
    return torch.where(outside, nowhere, found).to(torch.int32)


def starts(offsets: Tensor, of: Tensor, length: int) -> Tensor:
    """For each of `length` positions cut by `of`: where its segment starts in `offsets`; else 0.

    >>> starts(torch.tensor([0, 4, 6]), torch.tensor([0, 1, 3]), 4)
    tensor([0, 4, 4, 0], dtype=torch.int32)
    """
    if len(offsets) < 2:
        return none(offsets, length)
    segment = ids(of, length, -1).long()
    start = offsets[segment.clamp(min=0)]
    return torch.where(segment < 0, 0, start).to(torch.int32)


def lengths(offsets: Tensor, of: Tensor, length: int) -> Tensor:
    """For each of `length` positions cut by `of`: the length of its segment in `offsets`; else 0.

    >>> lengths(torch.tensor([0, 4, 6]), torch.tensor([0, 1, 3]), 4)
    tensor([4, 2, 2, 0], dtype=torch.int32)
    """
    if len(offsets) < 2:
        return none(offsets, length)
    segment = ids(of, length, -1).long()
    inside = segment.clamp(min=0)
    return torch.where(segment < 0, 0, offsets[inside + 1] - offsets[inside]).to(torch.int32)


def none(offsets: Tensor, length: int) -> Tensor:
    """What starts and lengths are where there is no segment."""
    return torch.zeros(length, dtype=torch.int32, device=offsets.device)
