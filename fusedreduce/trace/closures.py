"""Functions by what they are made of: of two that are equal here, one was traced for both.

A function is known by its code and by what it reads from outside: numbers by value, tensors by
their places among the tensors it reads, functions and modules of torch and math by themselves. One
that reads anything else, an object or a list, is known by nothing.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NUMBERS = frozenset((type(None), bool, int, float, str, torch.dtype))
TENSORS = frozenset((Tensor, torch.nn.Parameter))
MODULES = frozenset((torch, math, F))
#: Builtins that look at their arguments alone; `globals`, `eval` and others do not.
SAFE = frozenset((
    "abs", "all", "any", "bool", "divmod", "enumerate", "float", "int", "isinstance", "len", "list",
    "map", "max", "min", "pow", "range", "reversed", "round", "sorted", "str", "sum", "tuple",
    "zip",
))  # fmt: skip
DEEP = 3  # functions that call functions
MOST = 1024  # codes whose names are kept


def parts_of(fn: FunctionType) -> tuple[Any, tuple[Tensor, ...]] | None:
    """What the function is known by, and the tensors it reads; None where it cannot be known.

    >>> def scaled(by): return lambda score, b, h, i, j: score * by
    >>> one, two = parts_of(scaled(2.0)), parts_of(scaled(2.0))
    >>> one == two, one == parts_of(scaled(3.0)), parts_of(scaled([2.0])) is None
    (True, False, True)
    """
    tensors: list[Tensor] = []
    known = _function(fn, tensors, DEEP)
    return None if known is None else ((torch.get_default_dtype(), known), tuple(tensors))


def _function(fn: FunctionType, tensors: list[Tensor], deep: int) -> tuple[Any, ...] | None:
    found: list[Any] = [fn.__code__]
    if fn.__dict__:  # it may read its own attributes
        return None
    try:
        for value in _outside(fn):
            part = _part(value, tensors, deep)
            if part is None:
                return None
            found.append(part)
    except ValueError:  # a variable that has no value yet
        return None
    return tuple(found)


def _outside(fn: FunctionType) -> Iterator[Any]:
    """Defaults, captured variables, globals."""
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    for cell in fn.__closure__ or ():
        yield cell.cell_contents
    known = fn.__globals__
    for name in _names(fn.__code__):
        if name in known:
            yield known[name]
        elif hasattr(builtins, name) and name not in SAFE:
            yield builtins  # of which `_part` knows nothing


def _names(code: CodeType) -> tuple[str, ...]:
    """Names that are global, or attributes; of the functions inside too.

    NOTE: torch.compile warns where it meets a functools.lru_cache.
    """
    found = _codes.get(code)
    if found is None:
        inner = [n for c in code.co_consts if isinstance(c, CodeType) for n in _names(c)]
        found = _codes[code] = tuple(dict.fromkeys((*code.co_names, *inner)))
        if len(_codes) > MOST:
            _codes.pop(next(iter(_codes)), None)
    return found


_codes: dict[CodeType, tuple[str, ...]] = {}


def _part(value: Any, tensors: list[Tensor], deep: int) -> Any:
    kind = type(value)
    if kind in NUMBERS:
        return kind, value
    if kind in TENSORS:
        if value.__dict__:
            return None
        for at, known in enumerate(tensors):
            if known is value:
                return "tensor", at
        tensors.append(value)
        return "tensor", len(tensors) - 1
    if kind is FunctionType:
        module = str(value.__module__).partition(".")[0]
        if module == "torch":
            return "function", value
        return _function(value, tensors, deep - 1) if deep else None
    if kind is ModuleType:
        return ("module", value) if value in MODULES else None
    return ("function", value) if kind is BuiltinFunctionType and _is_pure(value) else None


def _is_pure(function: Any) -> bool:
    """Is it one of torch, math or SAFE, and not the method of some object?"""
    home = function.__self__
    if home is builtins:
        return function.__name__ in SAFE
    known = isinstance(home, ModuleType) and home.__name__.partition(".")[0] in ("math", "torch")
    return home is None or known
