"""Normal forms for merges of max, min and +: cheap, and complete up to dominated terms.

Given    an expression of maximum and +, or of maximum and minimum
Claim    as a set of linear forms (the maximum of them), or an antichain of sets (a maximum of
         minima), equal sets mean equal functions
Use      Kadane and top-2 need no case split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TypeAlias

from fusedreduce.ir.expr import Expr
from fusedreduce.laws.rationals import exact

Linear: TypeAlias = "frozenset[tuple[str, Fraction]]"
Forms: TypeAlias = "frozenset[Linear]"  # their maximum; the empty set is -inf
Lattice: TypeAlias = "frozenset[frozenset[Expr]]"  # a maximum of minima of leaves

_ONE = "1"  # the name under which a linear form keeps its constant
MOST = 400


def equal_forms(pairs: Iterable[tuple[Expr, Expr]]) -> bool:
    """Are both sides of every pair the same by one of the normal forms?"""
    return all(_same(a, b) for a, b in pairs)


def _same(a: Expr, b: Expr) -> bool:
    if a is b:
        return True
    left, right = lattice(a), lattice(b)
    if left is not None and left == right:
        return True
    x, y = max_plus(a), max_plus(b)
    return x is not None and x == y


def max_plus(e: Expr) -> Forms | None:
    """The maximum of which linear forms; None for another kind of expression."""
    if e.op == "var":
        return frozenset([_form({str(e.value): Fraction(1)})])
    if e.op == "const":
        return _constant(e)
    if e.op not in ("add", "maximum"):
        return None
    a, b = max_plus(e.args[0]), max_plus(e.args[1])
    if a is None or b is None or len(a) * len(b) > MOST:
        return None
    if e.op == "maximum":
        return a | b
    return frozenset(_sum(x, y) for x in a for y in b)


def _constant(e: Expr) -> Forms | None:
    if isinstance(e.value, bool) or not isinstance(e.value, (int, float)):
        return None
    if isinstance(e.value, float) and not math.isfinite(e.value):
        return frozenset() if e.value < 0 else None
    value = exact(e.value) if isinstance(e.value, float) else Fraction(e.value)
    return frozenset([_form({_ONE: value})])


def _form(parts: dict[str, Fraction]) -> Linear:
    return frozenset((n, c) for n, c in parts.items() if c)


def _sum(a: Linear, b: Linear) -> Linear:
    out = dict(a)
    for n, c in b:
        out[n] = out.get(n, Fraction(0)) + c
    return _form(out)


def lattice(e: Expr) -> Lattice | None:
    """The maximum of which minima of leaves, none of which contains another."""
    if e.op in ("var", "const"):
        return frozenset([frozenset([e])])
    if e.op not in ("maximum", "minimum"):
        return None
    a, b = lattice(e.args[0]), lattice(e.args[1])
    if a is None or b is None or len(a) * len(b) > MOST:
        return None
    return _antichain(a | b if e.op == "maximum" else (x | y for x in a for y in b))


def _antichain(sets: Iterable[frozenset[Expr]]) -> Lattice:
    """Without sets that contain another: their minimum is smaller."""
    every = set(sets)
    return frozenset(s for s in every if not any(t < s for t in every))
