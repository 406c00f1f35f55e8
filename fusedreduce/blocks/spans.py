"""Interval rules on tensors: one interval for each block of (query, key) pairs, all at once.

The rules of `ir.ranges`, for many blocks. Integers as they lie in memory are compared as they are;
what a rule computes has float64 ends, so integers are exact below 2^53, and infinite from there on.
Floats are widened at every step, since kernels compute in float32, and become NaN where anything
may happen; comparisons with NaN are open. Truth values are the pair (certainly, possibly).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_EXACT = 2.0**53
_STEP = 2.0**-21  # a few roundings of float32


@dataclass(frozen=True, eq=False)
class Span:
    """lo <= value <= hi in every block; for booleans, lo: certainly true, hi: possibly true.

    Ends of integers are tensors of any integer dtype, or float64.
    """

    lo: Tensor
    hi: Tensor
    kind: str

    @staticmethod
    def truth(certain: Tensor, possible: Tensor) -> Span:
        return Span(certain, possible, "bool")

    @property
    def whole(self) -> bool:
        return self.kind != "float"

    def numbers(self) -> tuple[Tensor, Tensor]:
        """The ends in float64; False is 0, True is 1."""
        lo, hi = self.lo.double(), self.hi.double()
        return _exact(lo, hi) if self.in_memory else (lo, hi)

    @property
    def in_memory(self) -> bool:
        return self.kind == "int" and not self.lo.is_floating_point()

    def rounded(self) -> tuple[Tensor, Tensor]:
        """The ends beside floats: kernels round integers above 2^24."""
        lo, hi = self.numbers()
        if not self.whole:
            return lo, hi
        far = torch.maximum(lo.abs(), hi.abs())
        wide = torch.where(far > 2.0**24, far * _STEP, 0.0)
        return lo - wide, hi + wide


def anything(like: Tensor, kind: str) -> Span:
    """What is known where no rule helps."""
    if kind == "bool":
        return Span.truth(torch.zeros_like(like, dtype=torch.bool), torch.ones_like(like).bool())
    ends = (-math.inf, math.inf) if kind == "int" else (math.nan, math.nan)
    lo, hi = (torch.full_like(like, end, dtype=torch.float64) for end in ends)
    return Span(lo, hi, kind)


def _exact(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """Integer ends that float64 surely holds; 2^53 itself may stand for 2^53 + 1."""
    lo = torch.where(lo.abs() < _EXACT, lo, -math.inf)
    return lo, torch.where(hi.abs() < _EXACT, hi, math.inf)


def numeric(lo: Tensor, hi: Tensor, whole: bool) -> Span:
    """An interval from the ends a rule computed."""
    if whole:
        return Span(*_exact(lo, hi), "int")
    wide = torch.maximum(lo.abs(), hi.abs()) * _STEP + 1e-37
    lo, hi = lo - wide, hi + wide
    known = lo.isfinite() & hi.isfinite()
    return Span(torch.where(known, lo, math.nan), torch.where(known, hi, math.nan), "float")


def _whole(*parts: Span) -> bool:
    return all(p.whole for p in parts)


def _together(*parts: Span) -> list[tuple[Tensor, Tensor]]:
    """The ends of what one operation computes with."""
    whole = _whole(*parts)
    return [p.numbers() if whole else p.rounded() for p in parts]


def _hull(values: list[Tensor], whole: bool) -> Span:
    lo = hi = values[0]
    for v in values[1:]:
        lo, hi = torch.minimum(lo, v), torch.maximum(hi, v)
    return numeric(lo, hi, whole)


def add(a: Span, b: Span) -> Span:
    (p, q), (r, s) = _together(a, b)
    return numeric(p + r, q + s, _whole(a, b))


def neg(a: Span) -> Span:
    lo, hi = a.numbers()
    return numeric(-hi, -lo, a.whole)


def sub(a: Span, b: Span) -> Span:
    return add(a, neg(b))


def mul(a: Span, b: Span) -> Span:
    left, right = _together(a, b)
    ends = [x * y for x in left for y in right]
    if _whole(a, b):
        ends = [torch.where(e.isnan(), 0.0, e) for e in ends]  # 0 times an infinite end
    return _hull(ends, _whole(a, b))


def div(a: Span, b: Span) -> Span:
    """Where the divisor may be 0, anything."""
    left, (r, s) = a.rounded(), b.rounded()
    pole = ~((r > 0) | (s < 0))
    ends = [torch.where(pole, math.nan, x / y) for x in left for y in (r, s)]
    return _hull(ends, False)


def floordiv(a: Span, b: Span) -> Span:
    r, s = b.numbers()
    (p, q), good = a.numbers(), (r > 0)
    if not _whole(a, b):
        return anything(p + r, "float")
    ends = [torch.div(x, y, rounding_mode="floor") for x in (p, q) for y in (r, s)]
    made = _hull(ends, True)
    known = good & ~(made.lo.isnan() | made.hi.isnan())
    lo, hi = torch.where(known, made.lo, -math.inf), torch.where(known, made.hi, math.inf)
    return Span(lo, hi, "int")


def mod(a: Span, b: Span) -> Span:
    """Exact inside one period of a known divisor; else from 0 to short of the divisor."""
    (p, q), (r, s) = a.numbers(), b.numbers()
    if not _whole(a, b):
        return anything(p + r, "float")
    period = torch.div(p, r, rounding_mode="floor")
    inside = (r == s) & (period == torch.div(q, r, rounding_mode="floor")) & p.isfinite()
    inside = inside & q.isfinite()
    top = torch.where(p >= 0, torch.minimum(q, s - 1), s - 1)
    lo = torch.where(inside, p - period * r, 0.0)
    hi = torch.where(inside, q - period * r, top)
    good = r > 0
    return Span(torch.where(good, lo, -math.inf), torch.where(good, hi, math.inf), "int")


def magnitude(a: Span) -> Span:
    lo, hi = a.numbers()
    low = torch.where((lo <= 0) & (hi >= 0), 0.0, torch.minimum(lo.abs(), hi.abs()))
    return numeric(low, torch.maximum(lo.abs(), hi.abs()), a.whole)


def _extreme(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Span]:
    def rule(a: Span, b: Span) -> Span:
        (p, q), (r, s) = _together(a, b)
        return numeric(f(p, r), f(q, s), _whole(a, b))

    return rule


def sign(a: Span) -> Span:
    lo, hi = a.numbers()
    return numeric(torch.sign(lo), torch.sign(hi), a.whole)


def _ends(a: Span, b: Span) -> list[tuple[Tensor, Tensor]]:
    """What to compare: integers in memory as they are."""
    if a.in_memory and b.in_memory:
        return [(a.lo, a.hi), (b.lo, b.hi)]
    return _together(a, b)


def less(a: Span, b: Span) -> Span:
    (p, q), (r, s) = _ends(a, b)
    return Span.truth(q < r, ~(p >= s))


def less_equal(a: Span, b: Span) -> Span:
    (p, q), (r, s) = _ends(a, b)
    return Span.truth(q <= r, ~(p > s))


def equal(a: Span, b: Span) -> Span:
    (p, q), (r, s) = _ends(a, b)
    return Span.truth((p == q) & (r == s) & (p == r), ~((q < r) | (s < p)))


def negation(a: Span) -> Span:
    return Span.truth(~a.hi, ~a.lo)


def both(a: Span, b: Span) -> Span:
    return Span.truth(a.lo & b.lo, a.hi & b.hi)


def either(a: Span, b: Span) -> Span:
    return Span.truth(a.lo | b.lo, a.hi | b.hi)


def differ(a: Span, b: Span) -> Span:
    return either(both(a, negation(b)), both(negation(a), b))


def select(c: Span, a: Span, b: Span) -> Span:
    if a.kind == b.kind == "bool":
        return either(both(c, a), both(negation(c), b))
    (p, q), (r, s) = _together(a, b)
    lo = torch.where(c.lo, p, torch.where(c.hi, torch.minimum(p, r), r))
    hi = torch.where(c.lo, q, torch.where(c.hi, torch.maximum(q, s), s))
    return numeric(lo, hi, _whole(a, b))


def truth_of(a: Span) -> Span:
    """a != 0, as a conversion to bool."""
    lo, hi = a.numbers()
    return Span.truth((lo > 0) | (hi < 0), ~((lo == 0) & (hi == 0)))


def bit_and(a: Span, b: Span) -> Span:
    """At most the smaller of two numbers that are not negative."""
    (p, q), (r, s) = a.numbers(), b.numbers()
    top = torch.where(p >= 0, torch.where(r >= 0, torch.minimum(q, s), q), s)
    known = (p >= 0) | (r >= 0)
    zero = torch.zeros_like(top)
    lo, hi = torch.where(known, zero, -math.inf), torch.where(known, top, math.inf)
    return Span(lo, hi, "int")


#: Operations with a rule; those without say nothing about where two indices meet.
RULES: Mapping[str, Callable[..., Span]] = {
    "add": add, "sub": sub, "mul": mul, "div": div, "floordiv": floordiv, "mod": mod, "neg": neg,
    "abs": magnitude, "sign": sign, "maximum": _extreme(torch.maximum),
    "minimum": _extreme(torch.minimum), "where": select, "lt": less, "le": less_equal,
    "gt": lambda a, b: less(b, a), "ge": lambda a, b: less_equal(b, a), "eq": equal,
    "ne": lambda a, b: negation(equal(a, b)), "and": both, "or": either, "xor": differ,
    "not": negation, "bitand": bit_and,
}  # fmt: skip


def converted(a: Span, dtype: str) -> Span:
    """A conversion; one that may wrap or overflow says nothing."""
    if dtype == "bool":
        return truth_of(a)
    lo, hi = a.numbers()
    if dtype in ("int64", "int32", "int"):
        bits = 31 if dtype == "int32" else 53
        fits = (lo >= -(2.0**bits)) & (hi < 2.0**bits)
        lo, hi = torch.where(fits, lo.trunc(), -math.inf), torch.where(fits, hi.trunc(), math.inf)
        return Span(lo, hi, "int")
    if dtype in ("float32", "float64", "float"):
        return numeric(lo, hi, False)
    return anything(lo, "int" if dtype.startswith(("int", "uint")) else "float")
