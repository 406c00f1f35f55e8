"""The functions of the element that a term is made of, apart from those of its references.

Given    a term, separated: sum over functions k of the element of k times a function of references
Claim    term = sum_i h_i(r) g_i(x) with the h_i independent; the g_i are what is answered
Use      a sum of the term moves with its reference by sums of the g_i (closure.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from fusedreduce.ir.expr import Expr
from fusedreduce.laws.cases import Case
from fusedreduce.laws.ratios import Ratio
from fusedreduce.laws.separate import Separation, eliminate, solve
from fusedreduce.laws.writing import total, write


def functions(case: Case, own: Separation) -> list[Expr]:
    """Functions g of the element with term = sum h(r) g(x) and the h independent."""
    keys = list(own)
    monomials = list(dict.fromkeys(m for k in keys for m in _terms(case, own[k])))
    rows = [[_terms(case, own[k]).get(m, case.tower.zero) for m in monomials] for k in keys]
    basis = _independent(case, rows)
    out = []
    for place in range(len(basis)):
        parts = []
        for k, row in zip(keys, rows, strict=True):
            share = _coordinates(case, [rows[b] for b in basis], row)[place]
            if not case.tower.is_zero(share):
                parts.append(write(case.tower, k * share))
        out.append(total(parts))
    return out


def _terms(case: Case, h: Ratio) -> dict[Ratio, Ratio]:
    """h as constants times monomials of the references."""
    case.tower.check_time()
    return {unit: case.tower.number(c) for unit, c in case.tower.parts(h)}


def _coordinates(case: Case, basis: Sequence[Sequence[Ratio]], row: Sequence[Ratio]) -> list[Ratio]:
    columns = [{case.tower.number(i): v for i, v in enumerate(b)} for b in basis]
    target = {case.tower.number(i): v for i, v in enumerate(row)}
    found = solve(case.tower, columns, target)
    assert found is not None
    return found


def _independent(case: Case, rows: Sequence[Sequence[Ratio]]) -> list[int]:
    """Indices of rows that span all rows; each is independent of those before it."""
    columns = [list(c) for c in zip(*rows, strict=True)] if rows else []
    return eliminate(case.tower, columns, len(rows)) if columns else []
