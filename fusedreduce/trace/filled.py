"""Numbers made like a traced index: x.new_full((), 2.0), torch.zeros_like(x)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fusedreduce.trace.place import refuse


def _filled(like: Any, size: Any, value: Any, dtype: torch.dtype | None) -> Any:
    if tuple(size) != ():
        raise refuse(
            "a constant with dimensions in a function of indices",
            expected="shape ()",
            came=f"shape {tuple(size)}",
            do="the function is written for one query and one key: use a number",
        )
    if isinstance(value, Tensor):  # its number of now becomes part of the function
        like.captures.replayable = False
    own = like.whole.dtype if like.whole else torch.float32
    return like.captures.constant(value, dtype or own)


def _new(value: Any) -> Callable[..., Any]:
    def function(x: Any, size: Any = (), *, dtype: Any = None, device: Any = None) -> Any:
        return _filled(x, size, value, dtype)

    return function


def _like(value: Any) -> Callable[..., Any]:
    def function(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
        return _filled(x, (), value, dtype)

    return function


def _new_full(x: Any, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    return _filled(x, size, fill_value, dtype)


def _full_like(x: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    return _filled(x, (), fill_value, dtype)


CONSTANTS: Mapping[str, Callable[..., Any]] = {
    "new_ones": _new(1), "new_zeros": _new(0), "new_full": _new_full,
    "ones_like": _like(1), "zeros_like": _like(0), "full_like": _full_like,
}  # fmt: skip
