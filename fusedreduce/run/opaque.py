"""What torch.compile sees of a call: one function it does not look into, then its result.

    tensors = in_graph(name, arguments)         a node of the graph
    result  = rebuilt(tensors)                  followed by torch.compile, step by step

torch.compile runs `in_graph` once on tensors without numbers; the structure of the result, which
may hold names, numbers and None, is left in a table that `rebuilt` asks for constants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

TARGETS: dict[str, tuple[Callable[..., Any], Any]] = {}
_answer = threading.local()


def call(function: Callable[..., Any], subject: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """function(subject, *args, **kwargs), as one node of a graph that torch.compile makes."""
    return rebuilt(in_graph(announced(function, subject), args, kwargs), 0)


def in_graph(name: str, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    function, subject = TARGETS[name]
    tensors: list[torch.Tensor] = []
    table: list[tuple[str, Any, tuple[int, ...]]] = []
    _enter(function(subject, *args, **kwargs), tensors, table)
    _answer.table = table
    return tensors


def announced(function: Callable[..., Any], subject: Any) -> str:
    """The name under which `in_graph` finds the function and what it is of."""
    torch.compiler.allow_in_graph(in_graph)  # type: ignore[no-untyped-call]
    name = f"{getattr(subject, '__qualname__', type(subject).__qualname__)}-{id(subject):x}"
    TARGETS[name] = (function, subject)  # kept, so that the number stays its own
    return name


# NOTE: what torch.compiler.assume_constant_result sets. The decorator itself would import all of
# torch._dynamo with this package; so it is imported when somebody compiles.
announced._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
