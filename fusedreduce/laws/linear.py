"""Is there a point with these signs? Exact linear programming over monomials, for case splits.

Given    rows r, each a sum of number * column, wanted > 0, >= 0 or = 0, and signs of the columns
Claim    `feasible` is True if some real columns meet them all (the columns taken as independent)
Use      a comparison whose negation is infeasible holds; since monomials are not independent, the
         answer "infeasible" is certain and the answer "feasible" cautious.

The system is homogeneous, so 0 is a start: maximise t <= 1 with every strict row >= t; it is
feasible exactly if t = 1. Tableau rows are integers, each up to a positive factor; Bland's rule.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

STRICT, WEAK, EQUAL = ">", ">=", "="


@dataclass(frozen=True)
class Row:
    """A sum of number * column and its relation to 0."""

    terms: tuple[tuple[Hashable, int], ...]
    relation: str

    @property
    def columns(self) -> frozenset[Hashable]:
        return frozenset(c for c, _ in self.terms)


def connected(rows: Sequence[Row], last: Row) -> list[Row]:
    """Those rows that share columns with `last`, directly or through others, and `last`."""
    seen, rest, found = set(last.columns), list(rows), [last]
    grew = True
    while grew:
        near = [r for r in rest if not seen.isdisjoint(r.columns)]
        rest = [r for r in rest if r not in near]
        found += near
        seen.update(*(r.columns for r in near))
        grew = bool(near)
    return found


def feasible(rows: Sequence[Row], sign: Callable[[Hashable], str]) -> bool:
    """Can all rows hold at once? `sign` gives "+", "0+" or "" for a column."""
    columns = list(dict.fromkeys(c for r in rows for c, _ in r.terms))
    place: dict[Hashable, tuple[int, int]] = {}
    width = 1  # column 0 is t
    for c in columns:
        two = 0 if sign(c) else 1  # a free column is a difference of two
        place[c] = (width, width + two)
        width += 1 + two
    table = [_bounded(r, place, width) for r in rows]
    table += [_bounded(_negative(r), place, width) for r in rows if r.relation == EQUAL]
    table += [_bounded(Row(((c, 1),), STRICT), place, width) for c in columns if sign(c) == "+"]
    table.append([1] + [0] * (width - 1))  # t <= 1
    return _maximum_is_positive(table, width)


def _negative(row: Row) -> Row:
    return Row(tuple((c, -k) for c, k in row.terms), row.relation)


def _bounded(row: Row, place: Mapping[Hashable, tuple[int, int]], width: int) -> list[int]:
    """The row as  t - terms <= 0  (without t unless strict)."""
    line = [0] * width
    line[0] = 1 if row.relation == STRICT else 0
    for c, k in row.terms:
        plus, minus = place[c]
        line[plus] -= k
        if minus != plus:
            line[minus] += k
    return line


def _maximum_is_positive(table: list[list[int]], width: int) -> bool:
    """max t over table y <= (0, ..., 0, 1), y >= 0, is positive."""
    height = len(table)
    rows = [
        [*line, *(int(i == j) for j in range(height)), int(i == height - 1)]
        for i, line in enumerate(table)
    ]
    goal = [-1] + [0] * (width + height)
    basis = [width + i for i in range(height)]
    while goal[-1] <= 0:
        enter = next((j for j, k in enumerate(goal[:-1]) if k < 0), None)
        if enter is None:
            return False
        leave = _leaving(rows, basis, enter)
        if leave is None:
            return False
        pivot = rows[leave]
        rows = [r if r is pivot else _eliminated(r, pivot, enter) for r in rows]
        goal = _eliminated(goal, pivot, enter)
        basis[leave] = enter
    return True


def _leaving(rows: list[list[int]], basis: list[int], enter: int) -> int | None:
    """The row with the smallest rhs / coefficient; of several, that of the first basis column."""
    best: int | None = None
    for i, row in enumerate(rows):
        if row[enter] > 0:
            if best is not None:
                here, there = row[-1] * rows[best][enter], rows[best][-1] * row[enter]
                if here > there or (here == there and basis[i] > basis[best]):
                    continue
            best = i
    return best


def _eliminated(row: list[int], pivot: list[int], column: int) -> list[int]:
    factor = row[column]
    if not factor:
        return row
    scale = pivot[column]
    new = [a * scale - factor * b for a, b in zip(row, pivot, strict=True)]
    common = gcd(*new)
    return [a // common for a in new] if common > 1 else new
