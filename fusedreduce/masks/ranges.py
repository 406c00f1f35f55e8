"""Masks that are a range of keys for each query: its ends for a block of queries, as expressions.

Served are conjunctions of integer comparisons in which i and j have coefficients -1, 0 or 1 and the
rest needs neither, and disjunctions of comparisons that bound j from the same side (prefix). Such a
mask needs no table and no block map: kernels print these ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

from fusedreduce.ir.check import all_kinds
from fusedreduce.ir.dependence import depends
from fusedreduce.ir.expr import Expr, call, const, names, var, walk, where
from fusedreduce.ir.grouping import terms, total
from fusedreduce.ir.simplify import simplify
from fusedreduce.ir.tables import tables

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Ranges:
    """For a block of rows: which keys some row may see, and which all rows see.

    Keys outside [lo, hi) are seen by no row of the block; keys in [full_lo, full_hi) by every row.
    Always 0 <= lo <= full_lo and full_hi <= hi <= Sk, but ranges may be empty the wrong way round:
    hi may be below lo (nothing is seen), full_hi below full_lo (no key is seen by all), and lo may
    lie beyond Sk. With blocks of BK keys:

        first = lo // BK                          last = max(first, ceil(hi / BK))
        full_first = clamp(ceil(full_lo / BK), first, last)
        full_last = clamp(full_hi // BK, full_first, last)

    [first, full_first) and [full_last, last) are partial, [full_first, full_last) full. Where
    BK does not divide Sk, the last block of keys is partial unless the caller allows for its end.
    """

    lo: Expr
    full_lo: Expr
    full_hi: Expr
    hi: Expr


@dataclass(frozen=True)
class _Linear:
    """outer * row + inner * key + rest >= 0."""

    outer: int
    inner: int
    rest: Expr


def key_ranges(expr: Expr, kinds: Mapping[str, str] = _NONE) -> Ranges | None:
    """The ranges of keys for queries i0 <= i < i1; None for a mask that is not of this form.

    They are over i0, i1, Sq, Sk, whatever scalars the mask names (q_offset, k_offset), and reads
    that need neither i nor j. Blocks hold at least one query that exists: i1 > i0.

    kinds   those of the tables by name (`Bound.kinds`); a table that is not named or not of
            integers has no ranges

    >>> from fusedreduce.ir.show import show
    >>> found = key_ranges(call("ge", var("i") + var("q_offset"), var("j")))
    >>> show(found.hi), show(found.full_hi)
    ('minimum(Sk, i1 + q_offset)', 'minimum(Sk, i0 + q_offset + 1)')
    """
    return _ranges(expr, _whole(expr, kinds), "i", "j", "Sk")


def query_ranges(expr: Expr, kinds: Mapping[str, str] = _NONE) -> Ranges | None:
    """The ranges of queries for keys j0 <= j < j1, over j0, j1, Sq, Sk and scalars; as above.

    >>> from fusedreduce.ir.show import show
    >>> found = query_ranges(call("ge", var("i"), var("j")))
    >>> show(found.lo), show(found.full_lo), show(found.hi)
    ('maximum(0, j0)', 'maximum(0, j1 - 1)', 'Sq')
    """
    return _ranges(expr, _whole(expr, kinds), "j", "i", "Sq")


def _whole(expr: Expr, kinds: Mapping[str, str]) -> bool:
    """Whether all that is compared is an integer."""
    unknown = dict.fromkeys(tables(expr), "float")
    scalars = dict.fromkeys(names(expr), "int")
    kind = all_kinds(expr, {**scalars, **unknown, **{t: kinds[t] for t in unknown if t in kinds}})
    return all(kind[a] == "int" for n in walk(expr) if n.op in _OPPOSITE for a in n.args)


def _ranges(expr: Expr, whole: bool, outer: str, inner: str, length: str) -> Ranges | None:
    clauses = _clauses(expr, False)
    if clauses is None or not whole:
        return None
    ends = Ranges(const(0), const(0), var(length), var(length))
    rows = var(f"{outer}0"), var(f"{outer}1") - 1
    for clause in clauses:
        groups = _groups([_linear(op, a, b, outer, inner) for op, a, b in clause])
        if groups is None:
            return None
        for group in groups:
            ends = _cut(ends, group, rows, var(length))
    return Ranges(*map(simplify, (ends.lo, ends.full_lo, ends.full_hi, ends.hi)))


def _groups(parts: list[tuple[_Linear, ...] | None]) -> list[list[_Linear]] | None:
    """The disjunctions of a clause; alternatives must bound keys from the same side, or not."""
    found = [p for p in parts if p is not None]
    if len(found) < len(parts):
        return None
    if len(found) == 1:  # i == j is two inequalities
        return [[p] for p in found[0]]
    group = [p for part in found for p in part]
    sides = {p.inner for p in group} - {0}
    return [group] if len(group) == len(found) and len(sides) <= 1 else None


def _cut(ends: Ranges, group: list[_Linear], rows: tuple[Expr, Expr], length: Expr) -> Ranges:
    """The ranges cut by one disjunction; some of its alternatives may be about rows only."""
    conditions = [_extremes(p, *rows) for p in group if p.inner == 0]
    every, some = (_any([c[side] for c in conditions]) for side in (0, 1))
    bounds = [_extremes(p, *rows) for p in group if p.inner]
    if not bounds:
        return Ranges(
            ends.lo,
            ends.full_lo,
            where(every, ends.full_hi, 0),
            where(some, ends.hi, 0),
        )
    least, most = ([pair[side] for pair in bounds] for side in (0, 1))
    if any(p.inner < 0 for p in group):  # key <= outer * row + rest
        high, full = (
            _of("maximum", [_sum([(1, e), _ONE]) for e in side]) for side in (most, least)
        )
        if conditions:
            high, full = where(some, length, high), where(every, length, full)
        hi, full_hi = call("minimum", ends.hi, high), call("minimum", ends.full_hi, full)
        return Ranges(ends.lo, ends.full_lo, full_hi, hi)
    low, full = (_of("minimum", [_sum([(-1, e)]) for e in side]) for side in (most, least))
    if conditions:
        low, full = where(some, 0, low), where(every, 0, full)
    lo, full_lo = call("maximum", ends.lo, low), call("maximum", ends.full_lo, full)
    return Ranges(lo, full_lo, ends.full_hi, ends.hi)


_ONE = (1, const(1))


def _any(values: list[Expr]) -> Expr:
    """Whether one of them is not negative."""
    tests = [call("ge", v, 0) for v in values]
    return reduce(lambda a, b: call("or", a, b), tests) if tests else const(False)


def _of(op: str, values: list[Expr]) -> Expr:
    return reduce(lambda a, b: call(op, a, b), values)


def _extremes(part: _Linear, first: Expr, last: Expr) -> tuple[Expr, Expr]:
    """The least and largest of outer * row + rest over the rows of the block."""
    if part.outer == 0:
        return part.rest, part.rest
    ends = [_sum([(part.outer, row), (1, part.rest)]) for row in (first, last)]
    return (ends[0], ends[1]) if part.outer > 0 else (ends[1], ends[0])


def _sum(parts: list[tuple[int, Expr]]) -> Expr:
    """A sum with its numbers added up, at the end."""
    flat = [p for sign, e in parts for p in terms(e, sign)]
    number = sum(s * int(e.value or 0) for s, e in flat if e.op == "const")
    rest = [p for p in flat if p[1].op != "const"]
    if number:
        rest.append((1 if number > 0 or not rest else -1, const(abs(number) if rest else number)))
    return total(rest)


_Comparison = tuple[str, Expr, Expr]
_OPPOSITE: Mapping[str, str] = {
    "lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq",
}  # fmt: skip


def _clauses(expr: Expr, negated: bool) -> list[list[_Comparison]] | None:
    """Conjunctions of disjunctions of comparisons; None where there is anything else."""
    if expr.op == "not":
        return _clauses(expr.args[0], not negated)
    if expr.op == "const":
        return [] if bool(expr.value) != negated else [[]]
    if expr.op in _OPPOSITE:
        return [[(_OPPOSITE[expr.op] if negated else expr.op, *expr.args)]]  # type: ignore[list-item]
    if expr.op not in ("and", "or"):
        return None
    sides = [_clauses(a, negated) for a in expr.args]
    if sides[0] is None or sides[1] is None:
        return None
    if (expr.op == "and") != negated:
        return sides[0] + sides[1]
    return [a + b for a in sides[0] for b in sides[1]] if sides[0] and sides[1] else []


def _linear(op: str, left: Expr, right: Expr, outer: str, inner: str) -> tuple[_Linear, ...] | None:
    """A comparison of integers as one or two (==) inequalities; None where it is not linear."""
    up, down = terms(left) + terms(right, -1), terms(right) + terms(left, -1)
    less_one = [(-1, const(1))]
    sums = {
        "ge": (up,), "gt": (up + less_one,), "le": (down,), "lt": (down + less_one,),
        "eq": (up, down),
    }.get(op)  # fmt: skip
    found = [_collected(parts, outer, inner) for parts in sums or ()]
    return tuple(f for f in found if f) if found and None not in found else None


def _collected(parts: list[tuple[int, Expr]], outer: str, inner: str) -> _Linear | None:
    count = {outer: 0, inner: 0}
    rest = []
    for sign, e in parts:
        name = str(e.value) if e.op == "var" else ""
        if name in count:
            count[name] += sign
        elif depends(e, on={n: frozenset((n,)) for n in count})[e]:
            return None
        else:
            rest.append((sign, e))
    if any(abs(n) > 1 for n in count.values()):
        return None
    return _Linear(count[outer], count[inner], _sum(rest))
