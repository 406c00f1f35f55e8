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
    strides, shape = [*t.stride()], t.shape
    if strides[3] != 1 and shape[3] > 1:
        return None
    strides = [step if n == 1 else s for s, n in zip(strides[:3], shape, strict=False)]
    return [*strides, 1] if all(s > 0 and s % step == 0 for s in strides) else None


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
