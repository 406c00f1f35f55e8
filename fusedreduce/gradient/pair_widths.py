"""Sums over the width of a payload: formulas of one element of it become formulas of a score.

Given    a part that is linear in the adjoint d_out of one element of the width
Claim    its sum over the width is linear in dp = <d_out, v>, delta = <d_out, out> and
         total = <d_out, 1>
Use      d score and the gradients of tables, as slope * (scale * dp + shift) where that factors.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusedreduce.gradient.element import NoBackward, absent, mark
from fusedreduce.gradient.pair_state import FinalState, adjoint, saved_name, within
from fusedreduce.ir.differentiate import derivative
from fusedreduce.ir.expr import Expr, const, is_const, names, rewrite, substitute, var, walk, where
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import SCORE, Pair

DP = "dp"  # <d_out, v> of one element


@dataclass(frozen=True)
class RowSum:
    """A value of a query: the sum over the width DV of a product of two vectors, or of one.

    The factors are `out`, the vector result itself, or nothing; times the result's adjoint.
    """

    name: str
    with_result: bool


class Widths:
    """Turns formulas of one element of the width into formulas of their sums."""

    def __init__(self, b: FinalState, pair: Pair) -> None:
        self.vector = b.vector
        self.payload = mark(pair.record.payloads[0]) if pair.record.payloads else ""
        rows = [saved_name(n) for n in b.saved]
        rows += [adjoint(r.name) for r in pair.results if not r.vector]
        self.rows = {*rows, "delta", "total"}
        self.pair = pair
        self.sums: dict[str, RowSum] = {}
        self.shifts: list[tuple[str, Expr]] = []

    def element(self, e: Expr) -> tuple[Expr, Expr]:
        """The sum of e over the width: a scalar factor, and an element's value."""
        e, missing = unguarded(e, absences(self.pair))
        factor, value = self.factored([(c, x) for c, x in self.terms(e) if not is_const(c, 0)])
        if missing is not None and not vanishes(value, missing):
            value = where(missing, 0.0, value)
        return factor, value

    def row(self, name: str, e: Expr) -> str:
        """The name of a row value that is the sum of e over the width; "" of 0."""
        value = simplify(_sum([times(c, x) for c, x in self.terms(e)]))
        if is_const(value, 0):
            return ""
        self.shifts.append((name, value))
        self.rows.add(name)
        return name

    def terms(self, e: Expr) -> list[tuple[Expr, Expr]]:
        """Coefficients, and what each multiplies: dp, sums over the width, 1."""
        if not self.vector:
            return [(e, const(1.0))]
        d, v, out = adjoint(self.vector), self.payload, self.vector
        along = derivative(e, d)
        by_v, by_out = derivative(along, v), derivative(along, out)
        rest = simplify(substitute(along, {v: const(0.0), out: const(0.0)}))
        if {v, out} & set(names(by_v, by_out)) or d in names(along):
            raise NoBackward(f"the gradient is not linear in the vector {out}")
        scalar = simplify(substitute(e, {d: const(0.0)}))
        found = [(by_v, var(DP)), (scalar, const(1.0))]
        for name, coefficient in (("delta", by_out), ("total", rest)):
            if not is_const(coefficient, 0):
                self.sums[name] = RowSum(name, name == "delta")
                found.append((coefficient, var(name)))
        return found

    def factored(self, terms: list[tuple[Expr, Expr]]) -> tuple[Expr, Expr]:
        """slope * (scale * dp + shift), the slope being all that the coefficients share."""
        if not terms:
            return const(1.0), const(0.0)
        parts = [(*self.split(c), x) for c, x in terms]
        slope = [e for e in parts[0][0] if all(e in elements for elements, *_ in parts)]
        alike = len({scalar for _, _, scalar, _ in parts}) == 1
        if not alike or (not slope and any(elements for elements, *_ in parts)):
            return const(1.0), simplify(_sum([times(c, x) for c, x in terms]))
        inner: list[Expr] = []
        shift: list[Expr] = []
        for elements, row, _, x in parts:
            own = without(elements, slope)
            inside = bool(own) or x is var(DP)
            (inner if inside else shift).append(times(_product([*own, row]), x))
        if shift:
            inner.append(self.shift(simplify(_sum(shift))))
        return parts[0][2], simplify(times(_product(slope), simplify(_sum(inner))))

    def shift(self, e: Expr) -> Expr:
        """A row value of its own, unless it is one already."""
        if e.op in ("var", "const") or (e.op == "neg" and e.args[0].op == "var"):
            return e
        known = {e: name for name, e in self.shifts}
        if e in known:
            return var(known[e])
        name = f"shift{len(self.shifts) or ''}"
        self.shifts.append((name, e))
        self.rows.add(name)
        return var(name)

    def split(self, e: Expr) -> tuple[list[Expr], Expr, Expr]:
        """The factors that vary along the keys; the product of row values; of scalars."""
        found: dict[str, list[Expr]] = {"element": [], "row": [], "scalar": []}
        sign, stack = False, [e]
        while stack:
            node = stack.pop()
            below = self.place(node.args[1]) if node.op == "div" else "element"
            if node.op == "mul":
                stack += [node.args[1], node.args[0]]
            elif node.op == "neg":
                sign = not sign
                stack.append(node.args[0])
            elif below in ("row", "scalar") and not is_const(node.args[0], 1):
                found[below].append(const(1.0) / node.args[1])
                stack.append(node.args[0])
            else:
                place = self.place(node)
                found["element" if place == "column" else place].append(node)
        row = _product(found["row"])
        return found["element"], simplify(-row if sign else row), _product(found["scalar"])

    def place(self, e: Expr) -> str:
        return self.pair.place(e, self.rows)


def unguarded(e: Expr, absences: frozenset[Expr]) -> tuple[Expr, Expr | None]:
    """e without the selects that make absent elements 0, and the condition they share."""
    found: dict[Expr, None] = {}

    def open_(node: Expr) -> Expr | None:
        if node.op == "where" and is_const(node.args[1], 0) and node.args[0] in absences:
            found[node.args[0]] = None
            return node.args[2]
        return None

    opened = rewrite(e, open_)
    return (opened, next(iter(found))) if len(found) == 1 else (e, None)


def absences(pair: Pair) -> frozenset[Expr]:
    """Edge rule (a) over scores and indices: the conditions under which an element is absent."""
    inside = within(pair)
    found = [absent(pair.record), *(absent(pair.record, f) for f in pair.record.fields)]
    return frozenset(substitute(e, inside) for e in found if e is not None)


def vanishes(value: Expr, missing: Expr) -> bool:
    """Is the value 0 by itself where x = -inf: is it exp(x - r) times what does not read x?"""
    if missing.op != "eq" or not is_const(missing.args[1], float("-inf")):
        return False
    x, factors, stack = missing.args[0], [], [value]
    while stack:
        node = stack.pop()
        if node.op in ("mul", "neg"):
            stack += node.args
        else:
            factors.append(node)
    reading = [f for f in factors if any(n is x or n is var(SCORE) for n in walk(f))]
    return (
        len(reading) == 1
        and reading[0].op == "exp"
        and reading[0].args[0].op == "sub"
        and (reading[0].args[0].args[0] is x)
    )


def without(factors: list[Expr], others: list[Expr]) -> list[Expr]:
    """The factors but for the others, each as often as it is there."""
    left = [*factors]
    for e in others:
        left.remove(e)
    return left


def times(a: Expr, b: Expr) -> Expr:
    return simplify(a * b)


def _sum(terms: list[Expr]) -> Expr:
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    return total


def _product(factors: list[Expr]) -> Expr:
    total: Expr = const(1.0)
    for f in factors:
        total = f if is_const(total, 1) else total * f
    return total


def bare(weight: Expr, pair: Pair) -> Expr:
    """The payload's weight without a select that it does not need."""
    opened, missing = unguarded(weight, absences(pair))
    return weight if missing is not None and not vanishes(opened, missing) else opened
