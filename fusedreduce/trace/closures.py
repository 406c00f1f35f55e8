"""Functions by what they are made of: of two that are equal here, one was traced for both.

A function is known by its code and by what it reads from outside: numbers by value, tensors by
their places among the tensors it reads, functions and modules of torch and math by themselves. One
that reads anything else, an object, a list or the state of torch, is known by nothing; so is one
that imports or that writes to what outlives its call.
"""

from __future__ import annotations

import builtins
import dis
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fusedreduce.trace.compiled import outside_graphs
from fusedreduce.trace.names import ALIASES, KNOWN

NUMBERS = frozenset((type(None), bool, int, str, torch.dtype))
HELD = NUMBERS - {type(None)} | {float}
TENSORS = frozenset((Tensor, torch.nn.Parameter))
MODULES = frozenset((torch, math, F))
#: Builtins that look at their arguments alone; `globals`, `eval` and others do not.
SAFE = frozenset((
    "abs", "all", "any", "bool", "divmod", "enumerate", "float", "int", "isinstance", "len", "list",
    "map", "max", "min", "pow", "range", "reversed", "round", "sorted", "str", "sum", "tuple",
    "zip",
))  # fmt: skip
#: Where torch keeps its functions, and names there, besides the language's, that no state decides.
HOMES = (torch, torch.nn, F, torch.special)
FIXED = frozenset((
    "device", "dtype", "e", "finfo", "full_like", "functional", "get_default_dtype", "iinfo", "inf",
    "nan", "nn", "numel", "ones_like", "pi", "promote_types", "special", "zeros_like",
))  # fmt: skip
GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_NAME"))
#: What a second call would not do again.
EFFECTS = frozenset((
    "IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR",
    "DELETE_SUBSCR",
))  # fmt: skip
FORMATS = frozenset(("format", "format_map"))  # of a str: they look into what they are given
DEEP = 3  # functions that call functions
MOST = 1024  # codes whose names are kept


@outside_graphs
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


def _function(fn: Any, tensors: list[Tensor], deep: int) -> tuple[Any, ...] | None:
    found: list[Any] = [fn.__code__]
    names = _names(fn.__code__)
    if names is None or fn.__dict__:  # it may read its own attributes
        return None
    if fn.__builtins__ is not vars(builtins):
        return None
    try:
        for value in _outside(fn, names):
            part = _part(value, tensors, deep)
            if part is None:
                return None
            found.append(part)
    except ValueError:  # a variable that has no value yet
        return None
    return tuple(found)


def _outside(fn: FunctionType, names: tuple[str, ...]) -> Iterator[Any]:
    """Defaults, captured variables, globals; by name where the code does not tell their order."""
    yield from fn.__defaults__ or ()
    for default in (fn.__kwdefaults__ or {}).items():
        yield from default
    for cell in fn.__closure__ or ():
        yield cell.cell_contents
    known = fn.__globals__
    for name in names:
        if name in known:
            yield name
            yield known[name]
        elif hasattr(builtins, name) and name not in SAFE:
            yield builtins  # of which `_part` knows nothing


def _names(code: CodeType) -> tuple[str, ...] | None:
    """Names that are global, of the functions inside too. None: the code may do more than read."""
    if code not in _codes:
        _codes[code] = _read_names(code)
        if len(_codes) > MOST:
            _codes.pop(next(iter(_codes)), None)
    return _codes.get(code)


def _read_names(code: CodeType) -> tuple[str, ...] | None:
    found: dict[str, None] = {}
    for step in dis.get_instructions(code):
        name = step.argval
        outlives = step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars
        if outlives or step.opname in EFFECTS:
            return None
        if step.opname in GLOBAL:
            found[name] = None
        elif step.opcode in dis.hasname and not _is_fixed(name):
            return None
    for inner in (c for c in code.co_consts if isinstance(c, CodeType)):
        names = _read_names(inner)
        if names is None:
            return None
        found |= dict.fromkeys(names)
    return tuple(found)


def _is_fixed(name: str) -> bool:
    """Does the name, as an attribute of torch or of a function, say the same in every call?"""
    homes = [vars(home)[name] for home in HOMES if name in vars(home)]
    known = name in KNOWN or name in ALIASES or name in FIXED
    return (
        not name.startswith("__")
        and name not in FORMATS
        and (known or all(isinstance(value, torch.dtype) for value in homes))
    )


_codes: dict[CodeType, tuple[str, ...] | None] = {}


@lru_cache(maxsize=MOST)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Names that a code reads of its module, and the functions in it."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    own = {step.argval for step in dis.get_instructions(code) if step.opname in GLOBAL}
    return tuple(sorted(own.union(*map(global_names, inner))))


def numbers_read(fn: Any) -> Callable[[], tuple[Any, ...]]:
    """Tells the numbers, names and dtypes that a function reads of its module and closure, as now.

    >>> def scaled(by): return lambda x: x * by
    >>> one, other, third = (numbers_read(scaled(by))() for by in (2.0, 2.0, 2))
    >>> one == other, one == third
    (True, False)
    """
    if type(fn) is not FunctionType:
        return lambda: ()
    known, names, cells = fn.__globals__, global_names(fn.__code__), fn.__closure__ or ()

    def read() -> tuple[Any, ...]:
        values = [known.get(name) for name in names]
        for cell in cells:
            try:
                values.append(cell.cell_contents)
            except ValueError:  # it has no value yet
                values.append(None)
        return tuple([(k, repr(v)) for k, v in enumerate(values) if type(v) in HELD])

    return read


def _part(value: Any, tensors: list[Tensor], deep: int) -> Any:
    kind = type(value)
    if kind is float:
        return kind, value.hex()  # -0.0 is not 0.0
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
    if kind in (FunctionType, BuiltinFunctionType) and _is_pure(value):
        return "function", value
    if kind is FunctionType:
        return _function(value, tensors, deep - 1) if deep else None
    return ("module", value) if kind is ModuleType and value in MODULES else None


def _is_pure(function: Any) -> bool:
    """Is it, by its own name, one of math, SAFE or those of torch that read no state?"""
    name = function.__name__
    if vars(builtins).get(name) is function:
        return name in SAFE
    if vars(math).get(name) is function:
        return True
    return _is_fixed(name) and any(vars(home).get(name) is function for home in HOMES)
