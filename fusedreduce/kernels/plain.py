"""Expressions as plain PyTorch in float64: conversions, constants, spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fusedreduce.ir.check import all_kinds, kind_of_dtype
from fusedreduce.ir.expr import Expr, cast, make, walk
from fusedreduce.ir.ops import OPS
from fusedreduce.ir.show import number, spell
from fusedreduce.ir.simplify import COMPARISONS, simplify_node

DECIDED = frozenset(COMPARISONS) | {"where"}
_OPERAND = r"(?:[A-Za-z_][\w.]*|\d[\w.]*)"
_POWER = re.compile(rf"(?<![\w.)\]])({_OPERAND}) \*\* (-?{_OPERAND})(?![\w.(\[])")


def plain(expr: Expr, kinds: Mapping[str, str], state: str) -> Expr:
    """The expression with its conversions as float64 arithmetic needs them.

    A conversion to a narrow dtype rounds and comes back; one to the state's dtype is nothing. A
    choice between constants is made here: torch.where takes no Python bool.
    """
    kind = all_kinds(expr, kinds)
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        args = tuple(done[a] for a in node.args)
        if node.op == "cast":
            done[node] = _converted(args[0], str(node.value), kind[node.args[0]], state)
        else:
            made = make(node.op, args, node.value)
            done[node] = simplify_node(made) if node.op in DECIDED else made
    return done[expr]


def _converted(x: Expr, dtype: str, kind: str, state: str) -> Expr:
    if kind_of_dtype(dtype) != "float":
        return x if dtype == kind else cast(x, {"int": "int64"}.get(dtype, dtype))
    if dtype in ("float", "float64", state):
        return x if kind == "float" else cast(x, "float64")
    return cast(cast(x, dtype), "float64")


def unrounded(expr: Expr) -> Expr:
    """The value before a last conversion to the output's dtype."""
    while expr.op == "cast" and kind_of_dtype(str(expr.value)) == "float":
        expr = expr.args[0]
    return expr


def tensor_arguments(node: Expr) -> tuple[Expr, ...]:
    """The arguments for which torch takes no Python number."""
    if not node.args or not OPS[node.op].torch.startswith("torch."):
        return ()
    return node.args[:1] if node.op == "where" else node.args


def literals(expr: Expr) -> dict[Expr, str]:
    """Constants that must be tensors, as in torch.maximum(x, torch.tensor(0.5))."""
    found = [a for node in walk(expr) for a in tensor_arguments(node) if a.op == "const"]
    return {a: f"torch.tensor({number(a.value).text})" for a in found}


def spelled(expr: Expr, known: Mapping[Expr, str], bare: int = 0) -> str:
    """PyTorch's spelling; powers of plain names without spaces, as the formatter wants them."""
    return _POWER.sub(r"\1**\2", spell(expr, "torch", known, bare=bare))


def unnamed(roots: Sequence[Expr], known: Mapping[Expr, str]) -> list[Expr]:
    """The nodes with arguments that will be printed, arguments first."""
    order: dict[Expr, None] = {}

    def visit(node: Expr) -> None:
        if node not in order and node not in known:
            for a in node.args:
                visit(a)
            order[node] = None

    for root in roots:
        visit(root)
    return [n for n in order if n.args]
