"""Comparisons of integers with what needs i on one side and what needs j on the other.

i - s[i] >= j - s[i] + 2 becomes i - s[i] + s[i] - 2 >= j: each side then needs one index and is
known exactly, where intervals of i - s[i] and j - s[i] would forget that both have the same i.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from fusedreduce.ir.check import all_kinds
from fusedreduce.ir.dependence import depends
from fusedreduce.ir.expr import Expr, const, make, rewrite

RESTS = 61  # a prime number: equal integers leave the same rest when they are divided by it
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ON = {name: frozenset((name,)) for name in ("i", "j")}


def terms(expr: Expr, sign: int = 1) -> list[tuple[int, Expr]]:
    """The summands of an expression, each with its sign."""
    if expr.op in ("add", "sub"):
        second = -sign if expr.op == "sub" else sign
        return terms(expr.args[0], sign) + terms(expr.args[1], second)
    return terms(expr.args[0], -sign) if expr.op == "neg" else [(sign, expr)]


def total(parts: list[tuple[int, Expr]]) -> Expr:
    """Their sum."""
    parts = sorted(parts, key=lambda part: -part[0])  # a positive one first
    if not parts:
        return const(0)
    first = parts[0][1] if parts[0][0] > 0 else -parts[0][1]
    return reduce(lambda s, part: s + part[1] if part[0] > 0 else s - part[1], parts[1:], first)


def grouped(expr: Expr, kinds: Mapping[str, str]) -> Expr:
    """The same predicate, comparisons grouped wherever no summand needs both i and j.

    >>> from fusedreduce.ir.expr import call, var
    >>> from fusedreduce.ir.show import show
    >>> i, j = var("i"), var("j")
    >>> show(grouped(call("le", i - j - 2, j - i), {"i": "int", "j": "int"}))
    'i + i - 2 <= j + j'
    """
    kind = all_kinds(expr, kinds)

    def rule(node: Expr) -> Expr | None:
        if node.op not in _COMPARISONS or any(kind.get(a) != "int" for a in node.args):
            return None
        left, right = node.args
        needs = depends(left, right, on=_ON)
        if needs[left] | needs[right] != {"i", "j"}:
            return None
        parts = terms(left) + terms(right, -1)
        if any(len(needs[e]) == 2 for _, e in parts):
            return None
        rows = [(s, e) for s, e in parts if needs[e] != {"j"}]
        columns = [(-s, e) for s, e in parts if needs[e] == {"j"}]
        return make(node.op, (total(rows), total(columns)))

    return rewrite(expr, rule)
