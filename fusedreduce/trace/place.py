"""Where we are in the user's code, and the error that says so."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from fusedreduce.errors import DeclarationError, message

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_DECLARING = tuple(os.path.join(_PACKAGE, room) for room in ("reductions", "ops", "nn"))


def user_frame() -> FrameType | None:
    """The innermost frame that is neither ours nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_ours(filename: str) -> bool:
    """Ours or torch's; the rooms of ready-made declarations are users like any other."""
    return filename.startswith((_PACKAGE, _TORCH)) and not filename.startswith(_DECLARING)


def user_line() -> str:
    """The user's file, line number and line of code: `demo.py:12: if x > 0:`."""
    frame = user_frame()
    return line_of(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def line_of(filename: str, number: int) -> str:
    text = linecache.getline(filename, number).strip()
    return f"{filename}:{number}" + (f": {text}" if text else "")


def function_line(fn: Callable[..., Any]) -> str:
    """Where `fn` was written."""
    code = getattr(fn, "__code__", None)
    return line_of(code.co_filename, code.co_firstlineno) if code else repr(fn)


def refuse(fact: str, *, expected: str = "", came: str = "", do: str = "") -> DeclarationError:
    """The error for a mistake at the line that is running now."""
    return DeclarationError(message(fact, expected=expected, came=came, where=user_line(), do=do))


_CONTROL = (
    ("math.", "the math module works on numbers: write torch.exp, torch.log, ... instead"),
    (" and ", "write `&` with parentheses instead of `and`"),
    (" or ", "write `|` with parentheses instead of `or`"),
    ("not ", "write `~` instead of `not`"),
    ("max(", "write torch.maximum(a, b), or torch.clamp(x, min=0.0), instead of max()"),
    ("min(", "write torch.minimum(a, b), or torch.clamp(x, max=0.0), instead of min()"),
    ("abs(", "write torch.abs(x)"),
    ("if ", "write torch.where(condition, a, b) instead of `if`"),
    ("while ", "a loop over a value cannot be traced: write the closed form"),
    ("<", "write (0 < i) & (i < 5) instead of 0 < i < 5"),
    (">", "write (a > b) & (b > c) instead of a > b > c"),
)


def advice() -> str:
    """What to write instead of the Python on the user's line."""
    frame = user_frame()
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""
    found = [text for sign, text in _CONTROL if sign in line]
    return found[0] if found else "write torch.where(condition, a, b), torch.maximum, &, |, ~"
