"""Exact values: rational functions of symbols and atoms exp, log, root, sin, cos; sympy's door.

A *tower* is the ring Z[symbols, atoms]; a *ratio* is a quotient of two of its polynomials. An atom
stands for exp(unit / scale), log(f), f ** (1 / q), sin(unit / scale), cos(unit / scale), where
unit is a monomial with coefficient 1 and f an irreducible polynomial. Every rewriting here is an
identity of functions, so a numerator that is the zero polynomial proves that a value is zero.
Nothing is ever simplified, substituted or guessed; what a logarithm or root needed to be positive
is listed in `assumed`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from math import lcm

from sympy.polys.domains import ZZ
from sympy.polys.rings import ring

from fusedreduce.laws.positive import positive_factors
from fusedreduce.laws.ratios import (
    HIGHEST,
    Atom,
    Exponents,
    Grow,
    OutOfTime,
    Poly,
    Ratio,
    Undefined,
    degree,
    ratio,
)

MOST_TURNS = 64  # of an angle: sin(64 x) by sin x and cos x


class Tower:
    """Symbols with known signs ("+", "0+" or "") and the atoms made so far; everything exact."""

    def __init__(
        self,
        signs: Mapping[str, str],
        *,
        atoms: int = 8,
        scale: int = 1,
        deadline: float | None = None,
    ) -> None:
        self.symbols = tuple(signs)
        self.room = atoms
        self.scale = scale
        self.deadline = deadline
        size = len(self.symbols) + atoms
        self.ring, *self.gens = ring([f"g{i}" for i in range(size)], ZZ)
        self.signs: dict[int, str] = dict(enumerate(signs.values()))
        self.atoms: dict[int, Atom] = {}
        self.number_of: dict[Atom, int] = {}
        self.assumed: dict[Poly, None] = {}  # polynomials taken to be positive
        self.divisors: dict[Poly, None] = {}  # polynomials taken to be different from 0
        self.sign_of: Callable[[Poly], bool | None] = lambda p: None  # p > 0? by the facts at hand
        self.settle_sign: Callable[[Poly], bool] = _unsettled  # the same, or the case is split
        self.zero, self.one = self.number(0), self.number(1)

    def check_time(self) -> None:
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise OutOfTime

    # ---- leaves

    def number(self, value: Fraction | int) -> Ratio:
        value = Fraction(value)
        return Ratio(self.ring(value.numerator), self.ring(value.denominator))

    def of(self, p: Poly) -> Ratio:
        return Ratio(p, self.ring.one)

    def symbol(self, name: str) -> Ratio:
        return self.of(self.gens[self.symbols.index(name)])

    def atom(self, kind: str, unit: Ratio, sign: str = "", degree: int = 1) -> Ratio:
        key = Atom(kind, unit, degree)
        if key not in self.number_of:
            i = len(self.symbols) + len(self.atoms)
            if i >= len(self.gens):
                raise Grow(2 * self.room, self.scale)
            self.number_of[key] = i
            self.atoms[i] = key
            self.signs[i] = sign
        return self.of(self.gens[self.number_of[key]])

    # ---- signs

    def term_sign(self, exponents: Exponents) -> str:
        """The sign of a monomial: "+", "0+" or "" (not known)."""
        sign = "+"
        for i, e in enumerate(exponents):
            if e and self.signs.get(i) != "+":
                if self.signs.get(i) != "0+" and e % 2:
                    return ""
                sign = "0+"
        return sign

    def is_positive(self, p: Poly) -> bool | None:
        """p > 0? None if it is open."""
        terms = p.terms()
        if all(self.term_sign(m) == "+" for m, _ in terms):
            if all(c > 0 for _, c in terms):
                return True
            if all(c < 0 for _, c in terms):
                return False
        return self.sign_of(p)

    def nonnegative(self, p: Poly) -> bool:
        """Is p >= 0 by the signs of its terms?"""
        return all(self.term_sign(m) and c > 0 for m, c in p.terms())

    # ---- functions

    def parts(self, v: Ratio) -> Iterator[tuple[Ratio, Fraction]]:
        """v as a sum of unit * number; one unit for the whole if its denominator is a sum."""
        if len(v.den) == 1:
            ((_, below),) = v.den.terms()
            for exponents, c in v.num.terms():
                unit = ratio(self.ring.from_dict({exponents: ZZ(1)}), v.den * 1)
                yield unit * self.number(below), Fraction(int(c), int(below))
        else:
            lead = Fraction(int(v.num.LC), int(v.den.LC))
            yield v / self.number(lead), lead

    def _multiple(self, c: Fraction) -> int:
        """c in units of 1 / scale."""
        k = c * self.scale
        if k.denominator != 1:
            raise Grow(self.room, lcm(self.scale, c.denominator))
        return k.numerator

    def exp(self, v: Ratio) -> Ratio:
        out = self.one
        for unit, c in self.parts(v):
            inner = self._generator(unit)
            if inner is not None and inner in self.atoms and self.atoms[inner].kind == "log":
                out = out * self.power(self.atoms[inner].unit, c)
            else:
                out = out * self.atom("exp", unit, "+") ** self._multiple(c)
        return out

    def power(self, v: Ratio, c: Fraction) -> Ratio:
        """v ** c for a rational number c."""
        if c < 0 and self.is_zero(v):
            raise Undefined("0 to a negative power")
        if c > 0 and self.is_zero(v):
            return self.zero
        whole, rest = c.numerator // c.denominator, c % 1
        return v**whole * self.root(v, rest.denominator) ** rest.numerator if rest else v**whole

    def log(self, v: Ratio) -> Ratio:
        out = self.zero
        for base, k in positive_factors(self, v, "log"):
            out = out + self.number(k) * self._log_of(base)
        return out

    def _log_of(self, p: Poly) -> Ratio:
        i = self._generator(self.of(p))
        known = None if i is None else self.atoms.get(i)
        if known is not None and known.kind == "exp":
            return known.unit / self.number(self.scale)
        if known is not None and known.kind == "root":
            return self.log(known.unit) / self.number(known.degree)
        return self.atom("log", self.of(p), "+" if p.is_ground else "")

    def root(self, v: Ratio, q: int) -> Ratio:
        if self.is_zero(v):
            return self.zero
        out = self.one
        for base, k in positive_factors(self, v, "root"):
            rest = k % q
            out = out * self.of(base) ** (k // q)
            if rest:
                i = self._generator(self.of(base))
                if i is not None and i in self.atoms and self.atoms[i].kind == "exp":
                    raise Grow(self.room, self.scale * q)
                out = out * self.atom("root", self.of(base), "+", q) ** rest
        return out

    def sin_cos(self, v: Ratio) -> tuple[Ratio, Ratio]:
        sine, cosine = self.zero, self.one
        for unit, c in self.parts(v):
            k = self._multiple(c)
            if abs(k) > MOST_TURNS:
                raise OutOfTime
            s1, c1 = self.atom("sin", unit), self.atom("cos", unit)
            a, b = self.zero, self.one
            for _ in range(abs(k)):
                a, b = a * c1 + b * s1, b * c1 - a * s1
            a = -a if k < 0 else a
            sine, cosine = sine * b + cosine * a, cosine * b - sine * a
        return sine, cosine

    def _generator(self, v: Ratio) -> int | None:
        """The number of the generator this is."""
        if v.den != 1 or len(v.num) != 1:
            return None
        ((exponents, c),) = v.num.terms()
        return exponents.index(1) if c == 1 and sum(exponents) == 1 else None

    # ---- factors

    def factors(self, p: Poly) -> tuple[int, list[tuple[Poly, int]]]:
        """p = content * product of irreducible f ** k, in a ring of the used generators."""
        used = self.used(p)
        if len(p) == 1:
            ((exponents, c),) = p.terms()
            return int(c), [(self.gens[i], exponents[i]) for i in used]
        self.check_time()
        if degree(p) > HIGHEST:  # then it counts as irreducible
            return 1, [(p, 1)]
        small, *_ = ring([f"h{i}" for i in used], ZZ)
        terms = {tuple(m[i] for i in used): c for m, c in p.terms()}
        content, factors = small.from_dict(terms).factor_list()
        return int(content), [(self._enlarged(f, used), k) for f, k in factors]

    def _enlarged(self, p: Poly, used: tuple[int, ...]) -> Poly:
        terms = {}
        for exponents, c in p.terms():
            full = [0] * len(self.gens)
            for i, e in zip(used, exponents, strict=True):
                full[i] = e
            terms[tuple(full)] = c
        return self.ring.from_dict(terms)

    def used(self, *polys: Poly) -> tuple[int, ...]:
        """The generators that occur, in order."""
        return tuple(sorted({i for p in polys for m in p for i, e in enumerate(m) if e}))

    # ---- zero

    def reduced(self, p: Poly) -> Poly:
        """p with sin ** 2 = 1 - cos ** 2 and root ** q = its radicand used as far as they go."""
        again = True
        while again:
            again = False
            for i, atom in list(self.atoms.items()):
                if atom.kind == "sin":
                    degree, value = 2, 1 - self.atom("cos", atom.unit).num ** 2
                elif atom.kind == "root":
                    degree, value = atom.degree, atom.unit.num
                else:
                    continue
                if any(m[i] >= degree for m in p):
                    p, again = self._replaced(p, i, degree, value), True
        return p

    def _replaced(self, p: Poly, i: int, degree: int, value: Poly) -> Poly:
        out = self.ring.zero
        for m, c in p.terms():
            k, rest = divmod(m[i], degree)
            out += self.ring.from_dict({(*m[:i], rest, *m[i + 1 :]): c}) * value**k
        return out

    def tidy(self, v: Ratio) -> Ratio:
        """v with those relations used above and below."""
        return ratio(self.reduced(v.num), self.reduced(v.den))

    def is_zero(self, v: Ratio) -> bool:
        return not self.reduced(v.num)

    # ---- what an atom stands for

    def symbols_of(self, generators: Iterable[int]) -> frozenset[str]:
        """The symbols that generators depend on, through atoms too."""
        found: set[str] = set()
        for i in generators:
            if i < len(self.symbols):
                found.add(self.symbols[i])
            else:
                unit = self.atoms[i].unit
                found |= self.symbols_of(self.used(unit.num, unit.den))
        return frozenset(found)


def _unsettled(p: Poly) -> bool:
    raise Undefined("a sign that is open")
