"""How the hardware copies tiles of a tensor, by a descriptor; a copy of what it cannot."""

from __future__ import annotations

import torch
from torch import Tensor

LINE = 16  # bytes: what base and strides must be multiples of


def layout_of(t: Tensor) -> list[int] | None:
    """The strides by which the hardware copies tiles of a 4-D tensor; None where it cannot.

    It wants a last stride of 1, and others that are positive multiples of 16 bytes. A size of 1 has
    no stride of its own.
    """
    step = LINE // t.element_size()
    shape, strides = t.shape, [*t.stride()]
    if strides[3] != 1 and shape[3] > 1:
        return None
    strides[3] = 1
    for k in range(3):
        if shape[k] == 1:
            strides[k] = step
        elif strides[k] <= 0 or strides[k] % step:
            return None
    return strides


def served(t: Tensor) -> bool:
    """Is a tensor read where it lies?"""
    return layout_of(t) is not None and t.data_ptr() % LINE == 0


def padded(t: Tensor) -> Tensor:
    """A copy whose rows begin at multiples of 16 bytes."""
    step = LINE // t.element_size()
    width = -(-t.shape[3] // step) * step
    room = torch.empty((*t.shape[:3], width), dtype=t.dtype, device=t.device)
    copy = room[..., : t.shape[3]]
    copy.copy_(t)
    return copy


def aligned(t: Tensor) -> Tensor:
    """A copy that lies as the tensor does, but begins at a multiple of 16 bytes."""
    copy = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    return copy.copy_(t)
