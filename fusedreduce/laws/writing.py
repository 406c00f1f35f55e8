"""Exact values back to expressions, for messages and for derived corrections."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from fusedreduce.ir.expr import Expr, Number, call, const, var
from fusedreduce.ir.show import show
from fusedreduce.laws.ratios import Atom, Exponents, Poly, Ratio
from fusedreduce.laws.symbols import Tower


def write(tower: Tower, v: Ratio) -> Expr:
    """v as an expression: a sum of terms, over its denominator if that is a sum."""
    if len(v.den) > 1:
        return call("div", _sum(tower, v.num), _sum(tower, v.den))
    ((below, c),) = v.den.terms()
    terms = [
        (tuple(e - f for e, f in zip(m, below, strict=True)), Fraction(int(k), int(c)))
        for m, k in v.num.terms()
    ]
    return total(term(tower, m, k) for m, k in terms)


def _sum(tower: Tower, p: Poly) -> Expr:
    return total(term(tower, m, Fraction(int(c))) for m, c in p.terms())


def total(terms: Iterable[Expr]) -> Expr:
    """The sum, 0.0 if there is nothing; a negative term is subtracted, not put first."""
    out: Expr | None = None
    for t in sorted(terms, key=lambda t: t.op == "neg"):
        if out is None:
            out = t
        elif t.op == "neg":
            out = out - t.args[0]
        else:
            out = out + t
    return const(0.0) if out is None else out


def term(tower: Tower, exponents: Exponents, factor: Fraction) -> Expr:
    """factor * product of generators ** exponents, exponentials last and joined into one."""
    over, under, inside = list[Expr](), list[Expr](), list[Expr]()
    for i, e in enumerate(exponents):
        atom = tower.atoms.get(i)
        if e and atom is not None and atom.kind == "exp":
            inside.append(scaled(write(tower, atom.unit), Fraction(e, tower.scale)))
        elif e:
            (over if e > 0 else under).append(powered(generator(tower, i), abs(e)))
    size, decay = abs(factor), [call("exp", total(inside))] if inside else []
    if size.numerator != 1 or not (over or decay):
        over.insert(0, number(Fraction(size.numerator)))
    if size.denominator != 1:
        under.insert(0, number(Fraction(size.denominator)))
    if not over:
        over, decay = decay, []
    out = call("div", product(over), product(under)) if under else product(over)
    out = product([out, *decay])
    return negative(out) if factor < 0 else out


def generator(tower: Tower, i: int) -> Expr:
    """A symbol by its name, an atom by its function."""
    if i < len(tower.symbols):
        return var(tower.symbols[i])
    atom: Atom = tower.atoms[i]
    inner = write(tower, atom.unit)
    if atom.kind == "root":
        return call("sqrt", inner) if atom.degree == 2 else call("pow", inner, 1.0 / atom.degree)
    if atom.kind in ("exp", "sin", "cos"):
        inner = scaled(inner, Fraction(1, tower.scale))
    return call(atom.kind, inner)


def number(value: Fraction) -> Expr:
    """As a float, or as a whole number where that is out of a float's range."""
    try:
        return const(float(value))
    except OverflowError:
        return const(int(value))


def scaled(e: Expr, by: Fraction) -> Expr:
    """by * e, without a factor 1."""
    size = abs(by)
    out = e
    if size.denominator != 1:
        out = call("div", out if size.numerator == 1 else number(Fraction(size.numerator)) * out,
                   number(Fraction(size.denominator)))  # fmt: skip
    elif size != 1:
        out = number(size) * out
    return negative(out) if by < 0 else out


def negative(e: Expr) -> Expr:
    """-e; of a difference, the difference turned round."""
    if e.op == "sub":
        return e.args[1] - e.args[0]
    return e.args[0] if e.op == "neg" else -e


def powered(e: Expr, k: int) -> Expr:
    exponent: Number = k
    return e if k == 1 else call("pow", e, exponent)


def product(factors: list[Expr]) -> Expr:
    """The product from left to right; 1.0 if there is nothing."""
    out: Expr | None = None
    for f in factors:
        out = f if out is None else out * f
    return const(1.0) if out is None else out


def text(tower: Tower, p: Poly) -> str:
    """A polynomial as readable maths."""
    return show(_sum(tower, p))
