"""Images whose channels lie last in memory, read and written as they lie."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def as_stored(x: Tensor) -> tuple[Tensor, bool]:
    """(N, C, *) as it is, or a channels_last tensor as (N, *, C); and which it was. A view."""
    form = FORMATS.get(x.dim())
    if form is None or not isinstance(x, Tensor) or x.is_contiguous():
        return x, False
    if not x.is_contiguous(memory_format=form):
        return x, False
    return x.movedim(1, -1), True


def as_given(y: Tensor, last: bool) -> Tensor:
    """(N, C, *) of what `as_stored` made. A view."""
    return y.movedim(-1, 1) if last else y
