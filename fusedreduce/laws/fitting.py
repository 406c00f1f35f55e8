"""A polynomial that makes a field additive (m2 + n mean ** 2), found modulo a prime."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from fusedreduce.declare.record import Record
from fusedreduce.ir.evaluate import Dialect, compiled_all, dialect
from fusedreduce.ir.expr import Expr, call, substitute, var
from fusedreduce.laws import states
from fusedreduce.laws.writing import number, product

PRIME = 2**61 - 1
HIGHEST = 4  # the largest power of a mean that is tried


def fitted(record: Record, name: str, plain: Sequence[str], means: Sequence[str]) -> Expr | None:
    """p(fields) with name + p additive under the merge, if there is one: a guess to be proved."""
    monomials = list(_monomials(plain, means))
    factors = _fit(record, name, monomials) if monomials else None
    parts = [
        product([number(c), m]) if c != 1 else m
        for c, m in zip(factors or [], monomials, strict=False)
        if c
    ]
    if not parts:
        return None
    rest = parts[0]
    for p in parts[1:]:
        rest = rest + p
    return rest


def _monomials(plain: Sequence[str], means: Sequence[str]) -> Iterator[Expr]:
    """One plain field times powers of means, up to HIGHEST in all."""
    for powers_of in itertools.product(range(HIGHEST + 1), repeat=len(means)):
        if not 1 <= sum(powers_of) <= HIGHEST:
            continue
        powers = zip(means, powers_of, strict=True)
        scaled = [_power(var(m), k) for m, k in powers if k]
        for head in plain:
            yield product([var(head), *scaled])


def _power(e: Expr, k: int) -> Expr:
    return e if k == 1 else call("pow", e, float(k))


def _fit(record: Record, name: str, monomials: Sequence[Expr]) -> list[Fraction] | None:
    """Factors that make name + sum factor * monomial additive at random states."""
    a, b = states.fold(record, (1, 2)), states.fold(record, (3, 4))
    merged = states.merge(record, a, b)
    columns = [
        call("sub", substitute(m, merged), substitute(m, a) + substitute(m, b))
        for m in (var(name), *monomials)
    ]
    order = tuple(n for n, _ in states.elements(record, 4))
    domains = [d for _, d in states.elements(record, 4)]
    source = random.Random(1)
    rows = []
    try:
        run = compiled_all(tuple(columns), order, _rationals())
        for _ in range(len(monomials) + 4):
            values = [
                Fraction(source.randint(1 if d != "real" else -9, 9), source.randint(1, 4))
                for d in domains
            ]
            first, *rest = (_residue(v) for v in run(*values))
            rows.append([*rest, -first % PRIME])
    except (TypeError, ValueError, ZeroDivisionError, AttributeError):
        return None  # not a rational merge
    found = _solve(rows, len(monomials))
    return None if found is None else [_small(v) for v in found]


@lru_cache(maxsize=1)
def _rationals() -> Dialect:
    """Arithmetic on fractions; whatever needs more than that raises AttributeError."""
    rational = SimpleNamespace(power=lambda a, b: a ** int(b) if b == int(b) else None)
    return dialect("mpmath", {"mp": rational}, const=_fraction, value=lambda v: v)


def _fraction(value: Any) -> Any:
    return value if isinstance(value, bool) else Fraction(value)


def _residue(v: Fraction) -> int:
    return v.numerator * pow(v.denominator, -1, PRIME) % PRIME


def _solve(rows: list[list[int]], width: int) -> list[int] | None:
    """The solution of rows (factors | right side) modulo PRIME, free unknowns 0; None if none."""
    pivots: list[int] = []
    for j in range(width):
        top = len(pivots)
        i = next((i for i in range(top, len(rows)) if rows[i][j]), None)
        if i is None:
            continue
        rows[top], rows[i] = rows[i], rows[top]
        inverse = pow(rows[top][j], -1, PRIME)
        rows[top] = head = [v * inverse % PRIME for v in rows[top]]
        for k, row in enumerate(rows):
            if k != top and row[j]:
                by = row[j]
                rows[k] = [(v - by * h) % PRIME for v, h in zip(row, head, strict=True)]
        pivots.append(j)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    out = [0] * width
    for row, j in zip(rows, pivots, strict=False):
        out[j] = row[-1]
    return out


def _small(v: int) -> Fraction:
    """The fraction with a small denominator that has this residue."""
    for d in range(1, 25):
        n = v * d % PRIME
        n = n - PRIME if n > PRIME // 2 else n
        if abs(n) < 10**6:
            return Fraction(n, d)
    return Fraction(v)
