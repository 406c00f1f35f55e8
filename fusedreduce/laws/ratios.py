"""Quotients of integer polynomials in lowest terms; atoms; what may go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb, gcd
from typing import Any, TypeAlias

Poly: TypeAlias = Any  # sympy's PolyElement over ZZ
Exponents: TypeAlias = "tuple[int, ...]"

HIGHEST = 2000  # degree in which common factors are looked for
MOST_CANCELLED = 360  # terms of one times terms of the other, to look for common factors
MOST_PRODUCTS = 300_000  # of terms, when two polynomials are multiplied
LONGEST_BITS, MOST_TERMS = 1 << 14, 5000  # of a number and a polynomial that are powers


@dataclass(frozen=True)
class Ratio:
    """num / den; common factors are gone where that is quick; den has a positive lead."""

    num: Poly
    den: Poly

    def __add__(self, other: Ratio) -> Ratio:
        if self.den == other.den:
            return ratio(self.num + other.num, self.den)
        mine, others, den = _over_one(self.den, other.den)
        return ratio(times(self.num, others) + times(other.num, mine), den)

    def __sub__(self, other: Ratio) -> Ratio:
        return self + -other

    def __neg__(self) -> Ratio:
        return Ratio(-self.num, self.den)

    def __mul__(self, other: Ratio) -> Ratio:
        return ratio(times(self.num, other.num), times(self.den, other.den))

    def __truediv__(self, other: Ratio) -> Ratio:
        return ratio(times(self.num, other.den), times(self.den, other.num))

    def __pow__(self, k: int) -> Ratio:
        if k < 0:
            return ratio(self.den**-k, self.num**-k)
        return Ratio(self.num**k, self.den**k)

    @property
    def constant(self) -> Fraction | None:
        """The number this is, if it is one."""
        if not (self.num.is_ground and self.den.is_ground):
            return None
        return Fraction(int(self.num.coeff(1)), int(self.den.coeff(1)))


def ratio(num: Poly, den: Poly) -> Ratio:
    """num / den in lowest terms; a denominator that is one term needs no polynomial gcd."""
    if not num:
        return Ratio(num, den.ring.one)
    if len(den) > 1:
        if max(degree(num), degree(den)) > HIGHEST:
            raise OutOfTime
        num, den = _cancelled(num, den)
    elif den != 1:
        num, den = _over_a_term(num, den)
    return Ratio(-num, -den) if den.LC < 0 else Ratio(num, den)


def _over_one(p: Poly, q: Poly) -> tuple[Poly, Poly, Poly]:
    """r, s, d with d = p s = q r, the common denominator of fractions over p and q."""
    if min(len(p), len(q)) > 1 and len(p) * len(q) <= MOST_CANCELLED:
        common, p_alone, q_alone = p.cofactors(q)
        if common != 1:
            return p_alone, q_alone, times(p, q_alone)
    return p, q, times(p, q)


def _cancelled(num: Poly, den: Poly) -> tuple[Poly, Poly]:
    """Without common factors; of large polynomials only the whole of `den` is looked for.

    NOTE a common factor of two polynomials in ten variables with 60 and 7 terms took minutes.
    """
    if len(num) * len(den) <= MOST_CANCELLED:
        return num.cancel(den)  # type: ignore[no-any-return]
    quotient, rest = num.div([den])
    return (num, den) if rest else (quotient[0], den.ring.one)


def times(p: Poly, q: Poly) -> Poly:
    """p * q, if that is no work without end."""
    if len(p) * len(q) > MOST_PRODUCTS:
        raise OutOfTime
    return p * q


def degree(p: Poly) -> int:
    """The highest power of a generator."""
    return max((max(m) for m in p), default=0)


def powers_within_reach(v: Ratio, k: int) -> bool:
    """Is v ** k a number, or a polynomial, of a size that can be computed?"""
    if v.constant is not None:
        longest = max(abs(int(v.num.coeff(1))), int(v.den.coeff(1))).bit_length()
        return abs(k) * longest <= LONGEST_BITS
    return all(comb(abs(k) + len(p) - 1, len(p) - 1) <= MOST_TERMS for p in (v.num, v.den))


def _over_a_term(num: Poly, den: Poly) -> tuple[Poly, Poly]:
    ((low, coefficient),) = den.terms()
    common = int(coefficient)
    for exponents, c in num.terms():
        low = tuple(map(min, low, exponents))
        common = gcd(common, int(c))
    if not any(low) and common == 1:
        return num, den
    return _lowered(num, low, common), _lowered(den, low, common)


def _lowered(p: Poly, low: Exponents, by: int) -> Poly:
    """p divided by the monomial `low` and the number `by`."""
    terms = {tuple(e - f for e, f in zip(m, low, strict=True)): c // by for m, c in p.terms()}
    return p.ring.from_dict(terms)


class Grow(Exception):
    """The tower is too small: start again with more atoms, or a finer scale of exponents."""

    def __init__(self, atoms: int, scale: int) -> None:
        super().__init__(atoms, scale)
        self.atoms = atoms
        self.scale = scale


class OutOfTime(Exception):
    """The deadline passed."""


class Undefined(Exception):
    """The value does not exist over the reals: 0 / 0, log of a negative number, inf - inf."""


@dataclass(frozen=True)
class Atom:
    """exp, sin or cos of unit / scale; log of unit; unit ** (1 / degree)."""

    kind: str
    unit: Ratio
    degree: int = 1
