"""Polynomials made ready for a question about their sign."""

from __future__ import annotations

import math
from fractions import Fraction

from fusedreduce.laws.linear import Row
from fusedreduce.laws.ratios import Poly
from fusedreduce.laws.symbols import Tower


def row_of(tower: Tower, p: Poly, relation: str) -> Row:
    """p without its content and without the positive monomial that divides it."""
    terms = p.terms()
    low = [
        min(m[i] for m, _ in terms) if tower.signs.get(i) == "+" else 0
        for i in range(len(tower.gens))
    ]
    content = math.gcd(*(int(c) for _, c in terms))
    return Row(
        tuple(
            (tuple(e - f for e, f in zip(m, low, strict=True)), int(c) // content)
            for m, c in sorted(terms)
        ),
        relation,
    )


def logarithmic(tower: Tower, p: Poly) -> Poly | None:
    """u - v for p = c (exp(u) - exp(v)) with c > 0, which has the sign of p; None for another p."""
    terms = sorted(p.terms(), key=lambda t: t[1], reverse=True)
    if len(terms) != 2 or terms[0][1] != -terms[1][1]:
        return None
    (plus, _), (minus, _) = terms
    out = tower.zero
    for i, (a, b) in enumerate(zip(plus, minus, strict=True)):
        atom = tower.atoms.get(i)
        if a == b and tower.signs.get(i) == "+":
            continue
        if a != b and (atom is None or atom.kind != "exp"):
            return None
        if a != b and atom is not None:
            out = out + atom.unit * tower.number(Fraction(a - b, tower.scale))
        elif a:
            return None
    return out.num if out.den.is_ground else None
