"""Which values an expression can take when its variables range over intervals.

Given value(v) in env[v] for every variable v, value(expr) lies in bounds(expr, env): each row of
the table has a rule (see `range_rules`). Used to tell, for a block of index pairs, whether a mask
is certainly true, certainly false, or open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fusedreduce.ir.expr import Expr, walk
from fusedreduce.ir.ops import OPS
from fusedreduce.ir.ranges import (
    ANYTHING,
    FALSE,
    MAYBE,
    TRUE,
    Interval,
    hull,
    truncated,
    truth,
    widened,
)

__all__ = [
    "ANYTHING", "FALSE", "MAYBE", "TRUE", "Interval", "all_bounds", "bounds", "hull", "integers",
    "reals",
]  # fmt: skip

#: How far a conversion moves a value: relative step, least step, largest number.
_FLOATS: Mapping[str, tuple[float, float, float]] = {
    "bfloat16": (2.0**-8, 2.0**-134, 3.3895313892515355e38),
    "float16": (2.0**-11, 2.0**-25, 65504.0),
    "float32": (2.0**-24, 2.0**-150, 3.4028234663852886e38),
}


def integers(lo: int, hi: int) -> Interval:
    """The integers lo, ..., hi, both ends included.

    >>> integers(0, 7)
    Interval(lo=0, hi=7, whole=True)
    """
    return Interval(lo, hi, True)


def reals(lo: float, hi: float) -> Interval:
    """The real numbers from lo to hi."""
    return Interval(lo, hi)


def _number(value: object) -> Interval:
    """A constant; a NaN says nothing."""
    assert isinstance(value, (int, float))
    if value != value:
        return ANYTHING
    whole = isinstance(value, int) or (math.isfinite(value) and value == int(value))
    return Interval(int(value) if whole else value, int(value) if whole else value, whole)


def _converted(x: Interval, dtype: str) -> Interval:
    """x in a dtype: a truth value, an integer (wrapping where it does not fit), or rounded."""
    if dtype == "bool":
        return truth(x.always, x.never)
    if dtype.startswith(("int", "uint")):
        whole = truncated(x)
        signed, bits = not dtype.startswith("u"), int(dtype.lstrip("uint") or 64)
        low = -(1 << bits - 1) if signed else 0
        high = (1 << bits - signed) - 1
        fits = low <= whole.lo and whole.hi <= high
        return whole if fits else Interval(low, high, True)
    return widened(x, *_FLOATS[dtype]) if dtype in _FLOATS else x


def all_bounds(
    root: Expr, env: Mapping[str, Interval], known: Mapping[Expr, Interval] | None = None
) -> dict[Expr, Interval]:
    """The bounds of every node; those in `known` (tabulated elsewhere) are taken as given."""
    given = known or {}
    done: dict[Expr, Interval] = {}
    for node in walk(root):
        args = [done[a] for a in node.args]
        if node in given:
            done[node] = given[node]
        elif node.op == "const":
            done[node] = _number(node.value)
        elif node.op == "var":
            done[node] = env.get(str(node.value), ANYTHING)
        elif node.op == "cast":
            done[node] = _converted(args[0], str(node.value))
        else:
            done[node] = OPS[node.op].interval(*args)
    return done


def bounds(
    expr: Expr, env: Mapping[str, Interval], known: Mapping[Expr, Interval] | None = None
) -> Interval:
    """An interval that contains every value of expr; a variable missing in `env` may be anything.

    >>> from fusedreduce.ir.expr import call, var
    >>> i, j = var("i"), var("j")
    >>> block = {"i": integers(128, 255), "j": integers(0, 127)}
    >>> bounds(call("ge", i, j), block).always
    True
    >>> bounds(call("mod", i, 128), block)
    Interval(lo=0, hi=127, whole=True)
    """
    return all_bounds(expr, env, known)[expr]
