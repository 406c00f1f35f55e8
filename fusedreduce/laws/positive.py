"""A positive value as a product of positive factors: what log and root need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fusedreduce.laws.rationals import primes
from fusedreduce.laws.ratios import Poly, Ratio, Undefined

if TYPE_CHECKING:
    from fusedreduce.laws.symbols import Tower


def positive_factors(tower: Tower, v: Ratio, what: str) -> Iterator[tuple[Poly, int]]:
    """v > 0 as a product of positive powers base ** k; primes are bases too.

    One odd factor with an open sign takes the sign that v needs, and is listed in `assumed`;
    a second one, or one in an even power, splits the case.
    """
    if tower.is_zero(v):
        raise Undefined(f"{what} of 0")
    sign, found, last = 1, list[tuple[Poly, int]](), list[tuple[Poly, int]]()
    for p, direction in ((tower.reduced(v.num), 1), (tower.reduced(v.den), -1)):
        content, factors = tower.factors(p)
        sign *= 1 if content > 0 else -1
        found += [(tower.ring(q), direction * k) for q, k in primes(abs(content))]
        for f, k in factors:
            positive = tower.is_positive(f)
            if positive is None and what == "root" and tower.nonnegative(f):
                positive = True
            if positive is None and k % 2 and not last:
                last.append((f, direction * k))
                continue
            if positive is None:
                positive = tower.settle_sign(f)
            sign *= -1 if positive is False and k % 2 else 1
            found.append((-f if positive is False else f, direction * k))
    for f, k in last:
        tower.assumed[f * sign] = None
        found.append((f * sign, k))
    if sign < 0 and not last:
        raise Undefined(f"{what} of a negative number")
    yield from found
