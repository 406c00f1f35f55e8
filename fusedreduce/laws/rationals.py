"""The exact number a float literal means: the simplest fraction that rounds to it, 1/3 for 0.333..."""

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
