"""Tensor descriptors: how the hardware copies tiles; a copy of what it cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce.run import launch

LINE = 16  # bytes: what base and strides must be multiples of


def descriptor(t: Tensor, rows: int, width: int) -> Any:
    """A descriptor of blocks (1, 1, rows, width) of a 4-D tensor; what lies outside reads as 0."""
    t = aligned(t)
    step = LINE // t.element_size()
    strides = [s if n > 1 else step for s, n in zip(t.stride()[:3], t.shape[:3], strict=True)]
    return launch.tensor_descriptor(t, list(t.shape), [*strides, 1], [1, 1, rows, width])


def aligned(t: Tensor) -> Tensor:
    """The tensor itself if the hardware can copy its tiles, else a copy with padded rows.

    That needs a last stride of 1, all others a positive multiple of 16 bytes, a base of 16 bytes.
    """
    step = LINE // t.element_size()
    moving = [s for s, n in zip(t.stride()[:3], t.shape[:3], strict=True) if n > 1]
    plain = t.stride(3) == 1 or t.shape[3] == 1
    if plain and all(s > 0 and s % step == 0 for s in moving) and t.data_ptr() % LINE == 0:
        return t
    width = -(-t.shape[3] // step) * step
    room = torch.empty((*t.shape[:3], width), dtype=t.dtype, device=t.device)
    copy = room[..., : t.shape[3]]
    copy.copy_(t)
    return copy
