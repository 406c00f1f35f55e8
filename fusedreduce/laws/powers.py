"""Power sums: the homomorphism from sums of functions of the element to states and to definitions.

Given    terms f(x; r) with finite separations sum_k h_k(r) g_k(x)
Claim    over any elements X, sum_X f(x; r) = sum_k h_k(r) G_k with G_k = sum_X g_k(x); and the G
         of two sets together are the sums of their G
Use      an identity in free symbols G_k and r is an identity for every number of elements at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, call, rename, substitute, var
from fusedreduce.ir.show import show
from fusedreduce.laws.cases import Case
from fusedreduce.laws.complete import signs_of, term_sign
from fusedreduce.laws.decide import Verdict
from fusedreduce.laws.separate import elements_only, in_tower, replaced, separate
from fusedreduce.laws.states import formula
from fusedreduce.laws.writing import total, write


@dataclass(frozen=True)
class Expansion:
    """functions g_k of the element, and for every term its (k, h_k), h_k over the row's symbols."""

    functions: tuple[Expr, ...]
    rows: Mapping[str, tuple[tuple[int, Expr], ...]]
    signs: tuple[str, ...]

    def total(self, name: str, sums: Mapping[int, Expr], row: Mapping[str, Expr]) -> Expr:
        """The sum of a term over the elements whose power sums these are."""
        return total(
            h * sums[k] if h.op != "const" or h.value != 1 else sums[k]
            for k, h in ((k, substitute(h, dict(row))) for k, h in self.rows[name])
        )

    def symbols(self, side: str) -> dict[int, Expr]:
        return {k: var(f"{side}.G{k}") for k in range(len(self.functions))}

    def readable(self, verdict: Verdict) -> Verdict:
        """A verdict whose texts name the sums by their terms: sum(x ** 2) for r.G2."""

        def told(text: str) -> str:
            for k in reversed(range(len(self.functions))):
                for side in ("a", "b", "r"):
                    text = text.replace(f"{side}.G{k}", f"sum({show(self.functions[k])})")
            return text

        assumed = tuple(told(t) for t in verdict.assumed)
        return replace(verdict, why=told(verdict.why), assumed=assumed)

    def known(self, side: str) -> dict[str, str]:
        """The signs of those symbols: the sum of something positive is positive."""
        return {f"{side}.G{k}": s for k, s in enumerate(self.signs)}


def expand(terms: Mapping[str, Expr], row: Iterable[str], operands: Mapping[str, str]) -> Expansion:
    """The common expansion of several terms; `NotSeparable` if one has none.

    row       names of symbols that are equal for all elements
    operands  names of the others, with their signs
    """
    row = tuple(row)
    elements = frozenset(operands)
    table = elements_only(terms.values(), elements)
    place = {r: f"old.{r}" for r in row}
    back = {f"old.{r}": r for r in row}
    opaque = {str(v.value): e for e, v in table.items()}
    signs = {**operands, **dict.fromkeys(place.values(), ""), **dict.fromkeys(opaque, "")}

    def ask(case: Case) -> Expansion:
        order: dict[object, int] = {}
        functions: list[Expr] = []
        rows: dict[str, tuple[tuple[int, Expr], ...]] = {}
        for name, t in terms.items():
            value = case.number(rename(replaced(t, table), place))
            parts = separate(case.tower, value, elements | {*opaque})
            for g in parts:
                if g not in order:
                    order[g] = len(order)
                    functions.append(substitute(write(case.tower, g), opaque))
            rows[name] = tuple(
                (order[g], rename(write(case.tower, h), back)) for g, h in parts.items()
            )
        known = tuple(sorted(operands.items()))
        return Expansion(tuple(functions), rows, tuple(_sign(g, known) for g in functions))

    return in_tower(ask, signs)


def _sign(g: Expr, operands: tuple[tuple[str, str], ...]) -> str:
    return term_sign(g, operands)


def terms_of(record: Record) -> dict[str, Expr]:
    return {f.name: f.term for f in record.fields if f.kind == "Sum" and f.term is not None}


def rows_of(record: Record) -> list[str]:
    """Symbols of the row: every field a term may read."""
    return [f.name for f in record.fields if f.is_reference]


def operands_of(record: Record) -> dict[str, str]:
    return signs_of(record, (*record.operands, *record.payloads, "j"))


def state_of(
    record: Record, expansion: Expansion, sums: Mapping[int, Expr], side: str
) -> dict[str, Expr]:
    """The two-pass state with these power sums; free references are symbols of a side."""
    state: dict[str, Expr] = {}
    for f in record.fields:
        if f.is_bound:
            state[f.name] = formula(f, state)
        elif f.kind == "Sum":
            state[f.name] = expansion.total(f.name, sums, {r: state[r] for r in f.reads})
        else:
            state[f.name] = var(f"{side}.{f.name}")
    return state


def joined(a: Mapping[int, Expr], b: Mapping[int, Expr]) -> dict[int, Expr]:
    return {k: call("add", a[k], b[k]) for k in a}
