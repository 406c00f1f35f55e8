"""Tensor descriptors: how the hardware copies tiles; a copy of what it cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce.run import launch

LINE = 16  # bytes: what base and strides must be multiples of


def descriptor(t: Tensor, rows: int, width: int) -> Any:
    """A descriptor of blocks (1, 1, rows, width) of a 4-D tensor; what lies outside reads as 0."""
    strides = served(t)
    if strides is None:
        t = padded(t)
        strides = served(t)
        assert strides is not None
    return launch.tensor_descriptor(t, [*t.shape], strides, [1, 1, rows, width])


def served(t: Tensor) -> list[int] | None:
    """The strides by which the hardware copies tiles of a tensor; None where it cannot.

    It wants a last stride of 1, others that are positive multiples of 16 bytes, a base of 16 bytes.
    A size of 1 has no stride of its own.
    """
    step = LINE // t.element_size()
    strides, shape = [*t.stride()], t.shape
    for k, n in enumerate(shape):
        if n == 1:
            strides[k] = step
    if t.data_ptr() % LINE or (strides[3] != 1 and shape[3] > 1):
        return None
    strides[3] = 1
    for s in strides[:3]:
        if s <= 0 or s % step:
            return None
    return strides


def padded(t: Tensor) -> Tensor:
    """A copy whose rows begin at multiples of 16 bytes."""
    step = LINE // t.element_size()
    width = -(-t.shape[3] // step) * step
    room = torch.empty((*t.shape[:3], width), dtype=t.dtype, device=t.device)
    copy = room[..., : t.shape[3]]
    copy.copy_(t)
    return copy
