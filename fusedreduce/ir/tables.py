"""Elements of tensors from outside: t[e0, e1] as a read at an offset, and back to its indices.

t[e0, e1] is read(t, e0 * t_stride_0 + e1 * t_stride_1). The strides, and the sizes that wrap
negative indices as torch does, are integer variables. An index that is 0 leaves no term behind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from types import MappingProxyType

from fusedreduce.ir.expr import Expr, call, const, is_const, names, rewrite, var, walk
from fusedreduce.ir.interval import bounds, integers
from fusedreduce.ir.ranges import Interval

_PART = re.compile(r"^(\w+?)(\d*)(?:_(stride|size)_(\d+))?$")
_FROM_ZERO: Mapping[str, Interval] = {name: Interval(0, math.inf, True) for name in "bhij"}


def stride(table: str, dim: int) -> Expr:
    return var(f"{table}_stride_{dim}")


def size(table: str, dim: int) -> Expr:
    return var(f"{table}_size_{dim}")


def element(table: str, indices: Sequence[Expr]) -> Expr:
    """The element of a table at these indices, one a dimension, negative ones wrapped.

    >>> from fusedreduce.ir.show import show
    >>> show(element("t0", (var("b"), var("i") - var("j"))))
    't0[b * t0_stride_0 + where(i - j < 0, i - j + t0_size_1, i - j) * t0_stride_1]'
    """
    terms = [
        _wrapped(e, table, dim) * stride(table, dim)
        for dim, e in enumerate(indices)
        if not is_const(e, 0)
    ]
    return call("read", var(table), reduce(lambda a, b: a + b, terms) if terms else const(0))


def _wrapped(index: Expr, table: str, dim: int) -> Expr:
    """The index from the front; as written where it is surely not negative."""
    if bounds(index, _FROM_ZERO).lo >= 0:
        return index
    from_the_end = index + size(table, dim)
    if index.op == "const":
        return from_the_end
    return call("where", call("lt", index, 0), from_the_end, index)


@lru_cache(maxsize=1024)
def split(read: Expr) -> tuple[str, Mapping[int, Expr]]:
    """The table's name and the index of each dimension that has one; the others are at 0.

    >>> from fusedreduce.ir.show import show
    >>> name, indices = split(element("t0", (var("b"), const(0), var("j"))))
    >>> name, {dim: show(e) for dim, e in indices.items()}
    ('t0', {0: 'b', 2: 'j'})
    """
    table, offset = str(read.args[0].value), read.args[1]
    found: dict[int, Expr] = {}
    while not is_const(offset, 0):
        offset, term = offset.args if offset.op == "add" else (const(0), offset)
        index, step = term.args if term.op == "mul" else (const(1), term)  # 1 * s is folded to s
        part = _PART.match(str(step.value))
        assert part is not None, f"not an element of {table}: {read}"
        found[int(part[4])] = index
    return table, MappingProxyType(dict(sorted(found.items())))


@lru_cache(maxsize=1024)
def reads(*roots: Expr) -> tuple[Expr, ...]:
    """Every distinct read under the roots."""
    return tuple(node for node in walk(*roots) if node.op == "read")


def tables(*roots: Expr) -> tuple[str, ...]:
    """The names of the tables that are read, in order of first appearance."""
    return tuple(dict.fromkeys(str(node.args[0].value) for node in reads(*roots)))


def renamed(expr: Expr, new: Callable[[str], str]) -> Expr:
    """Every table t by the name new(t), its strides and sizes too.

    >>> from fusedreduce.ir.show import show
    >>> show(renamed(element("t0", (var("b"),)), lambda name: "m" + name[1:]))
    'm0[b * m0_stride_0]'
    """
    known = set(tables(expr))

    def rule(node: Expr) -> Expr | None:
        name = str(node.value)
        part = _PART.match(name) if node.op == "var" else None
        table = f"{part[1]}{part[2]}" if part else ""
        return var(new(table) + name[len(table) :]) if table in known else None

    return rewrite(expr, rule)


def measures(expr: Expr, shapes: Mapping[str, tuple[Sequence[int], Sequence[int]]]
             ) -> dict[str, int]:  # fmt: skip
    """The numbers of the strides and sizes that an expression names, from (shape, strides)."""
    found = {}
    for name, table, what, dim in _measured(expr):
        if table in shapes:
            found[name] = int(shapes[table][what == "stride"][dim])
    return found


@lru_cache(maxsize=1024)
def _measured(expr: Expr) -> tuple[tuple[str, str, str, int], ...]:
    """(name, table, "stride" or "size", dimension) of the strides and sizes in an expression."""
    parts = ((name, _PART.match(name)) for name in names(expr))
    return tuple((name, f"{p[1]}{p[2]}", p[3], int(p[4])) for name, p in parts if p and p[3])


def number(expr: Expr, values: Mapping[str, int]) -> int:
    """The value of an integer expression, its variables as in `values`.

    >>> number(var("Sq") + 3, {"Sq": 4})
    7
    """
    return int(bounds(expr, {name: integers(v, v) for name, v in values.items()}).lo)
