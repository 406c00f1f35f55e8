"""What torch.compile sees of a call: one function it does not look into, then its result.

    tensors = in_graph(name, arguments)         a node of the graph
    result  = rebuilt(tensors)                  followed by torch.compile, step by step

torch.compile runs `in_graph` once on tensors without numbers; the structure of the result, which
may hold names, numbers and None, is left in a table that `rebuilt` asks for constants.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

TARGETS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
FUNCTIONS: dict[str, Callable[..., Any]] = {}
_answer = threading.local()


def named(subject: Any) -> str:
    """The name by which `in_graph` finds a function or a declaration."""
    kind = subject if isinstance(subject, type) else type(subject)
    name = f"{kind.__qualname__}-{id(subject):x}"
    TARGETS[name] = subject
    return name


def call(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """function(what is named so, *args, **kwargs), as one node of a graph of torch.compile."""
    return rebuilt(in_graph(announced(function), name, args, kwargs), 0)


def in_graph(
    function: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    table: list[tuple[str, Any, tuple[int, ...]]] = []
    _enter(FUNCTIONS[function](TARGETS[name], *args, **kwargs), tensors, table)
    _answer.table = table
    return tensors


def announced(function: Callable[..., Any]) -> str:
    """Tell torch.compile not to look into `in_graph`; the name of a function of this package."""
    torch.compiler.allow_in_graph(in_graph)  # type: ignore[no-untyped-call]
    FUNCTIONS[function.__qualname__] = function
    return function.__qualname__


# NOTE: what torch.compiler.assume_constant_result sets. The decorator itself would import all of
# torch._dynamo with this package; so it is imported when somebody compiles. Such a function gets
# constants and classes only: torch 2.11 passes no other objects.
announced._dynamo_marked_constant = True  # type: ignore[attr-defined]
named._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _enter(value: Any, tensors: list[torch.Tensor], table: list[Any]) -> int:
    """Put a result into the table: (kind, what it holds, places of its parts)."""
    at = len(table)
    table.append(None)
    parts: tuple[int, ...] = ()
    if isinstance(value, torch.Tensor):
        table[at] = ("tensor", len(tensors), parts)
        tensors.append(value)
        return at
    kind = next((k for k in (dict, list, tuple) if isinstance(value, k)), None)
    if kind is None:
        table[at] = ("constant", value, parts)
        return at
    items = value.values() if kind is dict else value
    parts = tuple(_enter(v, tensors, table) for v in items)
    held = tuple(value) if kind is dict else getattr(type(value), "_make", None) and type(value)
    table[at] = (kind.__name__, held, parts)
    return at


def told(at: int, what: str, k: int = 0) -> Any:
    """One fact of the table, as a constant: kind, value, count, part or key."""
    kind, held, parts = _answer.table[at]
    if what == "part":
        return parts[k]
    if what == "key":
        return held[k]
    return {"kind": kind, "value": held, "count": len(parts)}[what]


told._dynamo_marked_constant = True  # type: ignore[attr-defined]


def rebuilt(tensors: list[torch.Tensor], at: int) -> Any:
    """The result, from its tensors and the table."""
    kind = told(at, "kind")
    if kind == "tensor":
        return tensors[told(at, "value")]
    if kind == "constant":
        return told(at, "value")
    items = [rebuilt(tensors, told(at, "part", k)) for k in range(told(at, "count"))]
    if kind == "dict":
        return {told(at, "key", k): v for k, v in enumerate(items)}
    if kind == "list":
        return items
    named = told(at, "value")
    return tuple(items) if named is None else named(*items)
