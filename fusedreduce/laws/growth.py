"""How many functions of the element a term spans, by numbers: evidence where no proof was found.

Given    a term f(x; r)
Claim    the rank of the table f(x_i; r_j) over more and more points stops at the dimension of the
         span of f; where it keeps growing with the points there is no finite set of sums
Use      |x - c|, floor(x - r), erf(x - r): told as Checked, never as proved.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusedreduce.ir.expr import Expr, names
from fusedreduce.laws.refute import precisely, table

POINTS = (4, 8, 12, 16)
DIGITS = 80
_ZERO = 1e-30  # what elimination leaves of a dependent row, beside the largest entry


def ranks(e: Expr, references: Iterable[str], signs: Mapping[str, str]) -> tuple[int, ...]:
    """The rank over each number of POINTS; () where the term has no value somewhere."""
    mine = [n for n in names(e) if n in set(references)]
    others = [n for n in names(e) if n not in mine]
    source = random.Random(5)
    rows, columns = (
        [{n: _drawn(signs.get(n, ""), source) for n in some} for _ in range(POINTS[-1])]
        for some in (others, mine)
    )
    with precisely(DIGITS):
        values = table(e, rows, columns)
        if any(v != v or abs(v) == float("inf") for row in values for v in row):
            return ()
        return tuple(_rank([[+v for v in row[:k]] for row in values[:k]]) for k in POINTS)


def _drawn(sign: str, source: random.Random) -> float:
    value = round(source.uniform(0.2, 4.0), 2)
    return value if sign or source.random() < 0.5 else -value


def _rank(rows: list[list[Any]]) -> int:
    """By elimination with the largest pivot of all."""
    largest = max(abs(v) for row in rows for v in row)
    rank = 0
    while rows:
        i, j = max(
            ((i, j) for i, row in enumerate(rows) for j in range(len(row))),
            key=lambda at: abs(rows[at[0]][at[1]]),
        )
        head = rows.pop(i)
        if abs(head[j]) <= _ZERO * (1 + largest):
            break
        rank += 1
        rows = [_less(row, head, j) for row in rows]
    return rank


def _less(row: Sequence[Any], head: Sequence[Any], j: int) -> list[Any]:
    by = row[j] / head[j]
    return [v - by * h for k, (v, h) in enumerate(zip(row, head, strict=True)) if k != j]


def growing(found: Sequence[int]) -> bool:
    """Does the rank still grow at the end?"""
    return len(found) > 2 and found[-1] > found[-2] > found[-3]


def told(found: Sequence[int]) -> str:
    """What the ranks say, in words."""
    if not found:
        return ""
    numbers = ", ".join(map(str, found))
    points = ", ".join(map(str, POINTS))
    if growing(found):
        return (
            f"; its rank over {points} points is {numbers} and keeps growing, "
            "so most likely no finite set of sums spans it"
        )
    return f"; its rank over {points} points is {numbers}, so a finite set of sums may span it"
