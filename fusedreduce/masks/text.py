"""Masks and scores without their tensors, as text: one line of literals, the same in every process.

What two calls of one piece of code share: keys of compiled and exported programs hold it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from fusedreduce.ir.expr import Expr, make, walk
from fusedreduce.masks.sources import Made, Sources, tensors_of


def written(expr: Expr, sources: Sources) -> str:
    """The expression and what its tables are; tensors by their place in `tensors_of`.

    >>> from fusedreduce.ir.expr import call, var
    >>> print(written(call("ge", var("i"), var("j")), ()))
    ((('var', (), 'i'), ('var', (), 'j'), ('ge', (0, 1), None)), ())
    """
    tensors = tensors_of(sources)

    def place(tensor: Any) -> int:
        return next(k for k, t in enumerate(tensors) if t is tensor)

    def source(s: Any) -> Any:
        if not isinstance(s, Made):
            return place(s)
        return s.make, tuple(map(place, s.tensors)), s.length, str(s.dtype), s.ndim

    return _written(expr, tuple(map(source, sources)))


@lru_cache(maxsize=1024)
def _written(expr: Expr, sources: tuple[Any, ...]) -> str:
    def source(s: Any) -> Any:
        if isinstance(s, int):
            return s
        make_, places, length, dtype, ndim = s
        return f"{make_.__module__}:{make_.__qualname__}", places, _nodes(length), dtype, ndim

    return repr((_nodes(expr), tuple(map(source, sources))))


def over(text: str, tensors: Sequence[Any]) -> tuple[Expr, Sources]:
    """What was written, over these tensors.

    >>> from fusedreduce.ir.expr import call, var
    >>> e = call("ge", var("i"), var("j"))
    >>> over(written(e, ()), ()) == (e, ())
    True
    """
    expr, sources = _read(text)

    def source(s: Any) -> Any:
        if isinstance(s, int):
            return tensors[s]
        make_, places, length, dtype, ndim = s
        return Made(make_, tuple(tensors[k] for k in places), length, dtype, ndim)

    return expr, tuple(map(source, sources))


def has_tables(text: str) -> bool:
    """Does it read any? Nothing, the empty text, does not."""
    return bool(text) and bool(_read(text)[1])


def makes_tables(text: str) -> bool:
    """Does it read tables that are as long as positions go?"""
    return bool(text) and not all(isinstance(s, int) for s in _read(text)[1])


def direct(text: str) -> dict[int, int]:
    """For each table that is a tensor itself: which of the tensors."""
    return {k: s for k, s in enumerate(_read(text)[1]) if isinstance(s, int)}


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[Expr, tuple[Any, ...]]:
    nodes, sources = ast.literal_eval(text)

    def source(s: Any) -> Any:
        if isinstance(s, int):
            return s
        maker, places, length, dtype, ndim = s
        return _function(maker), places, _expr(length), dtype, ndim

    return _expr(nodes), tuple(map(source, sources))


def _function(place: str) -> Callable[..., Any]:
    module, _, path = place.partition(":")
    found: Any = sys.modules[module]
    for name in path.split("."):
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _nodes(root: Expr) -> tuple[Any, ...]:
    """(op, places of arguments, value) of every node, arguments first; floats as their bits."""
    nodes = list(walk(root))
    at = {n: k for k, n in enumerate(nodes)}

    def value(v: Any) -> Any:
        return ("float", v.hex()) if isinstance(v, float) else v

    return tuple((n.op, tuple(at[a] for a in n.args), value(n.value)) for n in nodes)


def _expr(nodes: Sequence[Any]) -> Expr:
    made: list[Expr] = []
    for op, args, value in nodes:
        value = float.fromhex(value[1]) if isinstance(value, tuple) else value
        made.append(make(op, tuple(made[k] for k in args), value))
    return made[-1]
