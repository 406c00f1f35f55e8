"""Intervals, and the arithmetic of the set of values of a + b, a * b, ... for a and b in intervals.

Numbers are [lo, hi] with infinite ends allowed; `whole` says that only integers occur, which makes
i % 4 < 4 certain. Booleans are intervals in {0, 1}: [1, 1] certainly true, [0, 0] certainly false,
[0, 1] open. Real ends are computed in double precision and not rounded outward; integer ends are
exact. Ends say nothing about NaN: only integers are known not to be NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

End: TypeAlias = "int | float"
_INF = math.inf


@dataclass(frozen=True)
class Interval:
    """lo <= value <= hi, an integer when `whole`.

    >>> Interval(0, 7, whole=True)
    Interval(lo=0, hi=7, whole=True)
    """

    lo: End
    hi: End
    whole: bool = False

    @property
    def always(self) -> bool:
        """Certainly true (certainly not 0)."""
        return self.lo > 0 or self.hi < 0

    @property
    def never(self) -> bool:
        """Certainly false (certainly 0)."""
        return self.lo == self.hi == 0

    def __contains__(self, x: End) -> bool:
        return self.lo <= x <= self.hi


TRUE, FALSE, MAYBE = Interval(1, 1, True), Interval(0, 0, True), Interval(0, 1, True)
ANYTHING = Interval(-_INF, _INF)


def truth(yes: bool, no: bool) -> Interval:
    """Certainly true if `yes`, certainly false if `no`, open otherwise."""
    return TRUE if yes else FALSE if no else MAYBE


def hull(*parts: Interval) -> Interval:
    """The smallest interval that contains all parts."""
    whole = all(p.whole for p in parts)
    return Interval(min(p.lo for p in parts), max(p.hi for p in parts), whole)


def ends_of(values: list[End], whole: bool) -> Interval:
    """The hull of values; nothing is known when one is NaN."""
    if any(v != v for v in values):
        return Interval(-_INF, _INF, whole)
    return Interval(min(values), max(values), whole)


def corners(f: Callable[[End, End], End], a: Interval, b: Interval, whole: bool) -> Interval:
    """The range of an f that is monotone in each argument over a x b."""
    return ends_of([f(x, y) for x, y in itertools.product((a.lo, a.hi), (b.lo, b.hi))], whole)


def safely(f: Callable[..., End], *at: End) -> End:
    """f, infinite where it overflows or has a pole."""
    try:
        return f(*at)
    except OverflowError:
        return _INF
    except (ValueError, ZeroDivisionError):
        return math.nan


def rising(f: Callable[[float], float], lo: End = -_INF, hi: End = _INF) -> Callable[..., Interval]:
    """The rule of an increasing function on the domain [lo, hi]; outside there are only NaNs."""

    def rule(x: Interval) -> Interval:
        a, b = max(x.lo, lo), min(x.hi, hi)
        return ANYTHING if a > b else ends_of([safely(f, a), safely(f, b)], False)

    return rule


def falling(
    f: Callable[[float], float], lo: End = -_INF, hi: End = _INF
) -> Callable[..., Interval]:
    negative = rising(lambda x: -f(x), lo, hi)
    return lambda x: neg(negative(x))


def steps(f: Callable[[float], int]) -> Callable[..., Interval]:
    """The rule of an increasing function to the integers, which does nothing to integers."""

    def at(x: End) -> End:
        return f(x) if math.isfinite(x) else x

    return lambda x: x if x.whole else Interval(at(x.lo), at(x.hi), x.lo > -_INF and x.hi < _INF)


def add(a: Interval, b: Interval) -> Interval:
    return ends_of([a.lo + b.lo, a.hi + b.hi], a.whole and b.whole)


def neg(a: Interval) -> Interval:
    return Interval(-a.hi, -a.lo, a.whole)


def sub(a: Interval, b: Interval) -> Interval:
    return add(a, neg(b))


def _times(x: End, y: End) -> End:
    return 0 if x == 0 or y == 0 else x * y


def mul(a: Interval, b: Interval) -> Interval:
    return corners(_times, a, b, a.whole and b.whole)


def _quotient(x: End, y: End) -> End:
    if math.isinf(x) and math.isinf(y):
        return math.nan
    return 0 if math.isinf(y) else x / y if math.isfinite(x) else x * (1 if y > 0 else -1)


def div(a: Interval, b: Interval) -> Interval:
    return ANYTHING if 0 in b else corners(_quotient, a, b, False)


def _floor_quotient(x: End, y: End) -> End:
    return x // y if math.isfinite(x) else _quotient(x, y)


def floordiv(a: Interval, b: Interval) -> Interval:
    whole = a.whole and b.whole
    return Interval(-_INF, _INF, whole) if 0 in b else corners(_floor_quotient, a, b, whole)


def mod(a: Interval, b: Interval) -> Interval:
    """Between 0 and the divisor, short of it for integers; exact inside one period."""
    whole = a.whole and b.whole
    if 0 in b:
        return Interval(-_INF, _INF, whole)
    if b.hi < 0:
        return neg(mod(neg(a), neg(b)))
    if a.lo >= 0 and a.hi < b.lo:
        return Interval(a.lo, a.hi, whole)
    bounded = math.isfinite(a.lo) and math.isfinite(a.hi)
    if b.lo == b.hi and bounded and a.lo // b.lo == a.hi // b.lo:
        return Interval(a.lo % b.lo, a.hi % b.lo, whole)
    top = b.hi - 1 if whole else b.hi
    return Interval(0, min(top, a.hi) if a.lo >= 0 else top, whole)


def magnitude(a: Interval) -> Interval:
    ends = abs(a.lo), abs(a.hi)
    return Interval(0 if 0 in a else min(ends), max(ends), a.whole)


def raised(x: End, y: End) -> End:
    """x ** y for x >= 0 or an integer y, infinite at its pole and where it overflows.

    NOTE: Python would write out 2 ** 2 ** 48.
    """
    if (x == 0 and y < 0) or (x >= 2 and y > 1024):
        return _INF
    return safely(lambda: x**y)


def power(a: Interval, b: Interval) -> Interval:
    """Monotone in each argument for a >= 0; by parity for a constant integer exponent."""
    whole = a.whole and b.whole and b.lo >= 0
    if a.lo >= 0:
        return hull(*([TRUE] if 0 in b or 1 in a else []), corners(raised, a, b, whole))
    if b.lo != b.hi or math.isinf(b.lo) or b.lo != int(b.lo):
        return Interval(-_INF, _INF, whole)
    n = int(b.lo)
    if n < 0:
        return div(TRUE, power(a, Interval(-n, -n, True)))
    base = magnitude(a) if n % 2 == 0 else a
    low = -raised(-base.lo, n) if base.lo < 0 else raised(base.lo, n)
    high = -raised(-base.hi, n) if base.hi < 0 else raised(base.hi, n)
    return ends_of([low, high], whole)


def truncated(x: Interval) -> Interval:
    """Toward zero, as a conversion to an integer does."""
    return steps(math.trunc)(x)


def widened(x: Interval, step: float, least: float, largest: float) -> Interval:
    """x after a rounding by a relative `step` or by `least`; infinite beyond `largest`."""

    def moved(end: End, by: float) -> End:
        if math.isinf(end) or (end == int(end) and abs(end) * step <= 0.5):
            return end
        far = end + (abs(end) * step + least) * by
        return math.copysign(_INF, far) if abs(far) > largest else far

    return Interval(moved(x.lo, -1.0), moved(x.hi, 1.0), x.whole)
