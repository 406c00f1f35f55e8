"""check: look at values on the GPU too, at the price of waiting for them."""

from __future__ import annotations

from contextvars import ContextVar

import torch

from fusedreduce.request import watched
from fusedreduce.trace.closures import TENSORS

_on: ContextVar[bool] = ContextVar("values on the GPU are looked at", default=False)


def check(on: bool) -> None:
    """Checks of values (a label out of range) raise on the GPU as they do on the CPU; or not again.

    On the CPU such values always raise. On a GPU they are looked at when this is on, which waits
    for the device at each call; else the row's loss and gradient are NaN. Inside torch.compile,
    torch.export and torch.func transforms there are no values to look at.

    >>> import fusedreduce as fr
    >>> fr.check(True)
    >>> fr.check(False)
    """
    _on.set(bool(on))


def may_look_at(tensor: torch.Tensor) -> bool:
    """May the values of this tensor be looked at now?"""
    if torch.compiler.is_compiling() or type(tensor) not in TENSORS:
        return False
    device = tensor.device.type
    looked_at = device == "cpu" or (device == "cuda" and _on.get())
    return looked_at and not watched({"tensor": tensor})
