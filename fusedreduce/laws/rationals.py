"""The exact number a float literal means (the simplest fraction rounding to it); prime factors."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache


@lru_cache(maxsize=4096)
def exact(value: float) -> Fraction:
    """The simplest fraction that rounds to `value`, found along its continued fraction.

    >>> exact(0.1), exact(1 / 3), exact(2.0)
    (Fraction(1, 10), Fraction(1, 3), Fraction(2, 1))
    """
    whole = Fraction(value)
    if whole.denominator == 1 or not math.isfinite(value):
        return whole
    bound = 1
    while bound < whole.denominator:
        near = whole.limit_denominator(bound)
        if float(near) == value:
            return near
        bound *= 10
    return whole


def primes(n: int) -> list[tuple[int, int]]:
    """n as a product of p ** k by trial division; what is left above 10 ** 4 counts as prime."""
    found, p = [], 2
    while p * p <= n and p < 10**4:
        k = 0
        while n % p == 0:
            n, k = n // p, k + 1
        found += [(p, k)] if k else []
        p += 1
    return [*found, (n, 1)] if n > 1 else found
