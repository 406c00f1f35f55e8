"""d expr / d name, as an expression of the same language.

Given the partial rules t -> (d op / d argument) t of the table, linear in t:
    forward   tangent(node)  = sum over its arguments of rule(tangent(argument))
    backward  adjoint(arg)   = sum over the nodes that use it of rule(adjoint(node))
Both walk the shared graph once. `partials` states what is chosen at ties and corners. Results
contain the nodes of the original expression unchanged, so the two can be printed together.
"""

from __future__ import annotations

from collections.abc import Collection

from fusedreduce.ir.expr import Expr, Number, as_expr, const, var, walk
from fusedreduce.ir.ops import OPS
from fusedreduce.ir.simplify import simplify, simplify_all


def _plus(a: Expr | None, b: Expr) -> Expr:
    return b if a is None else a + b


def derivative(expr: Expr, name: str) -> Expr:
    """d expr / d name; 0.0 where the expression does not depend on it.

    >>> from fusedreduce.ir.expr import call, var
    >>> from fusedreduce.ir.show import show
    >>> x, m = var("x"), var("m")
    >>> show(derivative(call("exp", x - m) * (x - m), "x"))
    'exp(x - m) * (x - m) + exp(x - m)'
    """
    order = list(walk(expr))
    tangents: dict[Expr, Expr] = {var(name): const(1.0)}
    for node in order:
        for rule, argument in zip(OPS[node.op].derivative, node.args, strict=True):
            if rule is not None and argument in tangents:
                part = rule(tangents[argument], node, *node.args)
                tangents[node] = _plus(tangents.get(node), part)
    return simplify(tangents.get(expr, const(0.0)), frozenset(order))


def gradient(expr: Expr, names: Collection[str], seed: Expr | Number = 1.0) -> dict[str, Expr]:
    """seed * d expr / d name for every name, in one walk: what a backward pass sends to each.

    >>> from fusedreduce.ir.expr import call, var
    >>> from fusedreduce.ir.show import listing
    >>> x, w, b = var("x"), var("w"), var("b")
    >>> print(listing(gradient(call("where", b, w * x, w), ("x", "w"), var("g")).items()))
    x = where(b, g, 0.0) * w
    w = where(b, 0.0, g) + where(b, g, 0.0) * x
    """
    order = list(walk(expr))
    needed = {var(name) for name in names}
    for node in order:
        if not needed.isdisjoint(node.args):
            needed.add(node)
    adjoints: dict[Expr, Expr] = {expr: as_expr(seed)}
    for node in reversed(order):
        if node not in adjoints or node not in needed:
            continue
        for rule, argument in zip(OPS[node.op].derivative, node.args, strict=True):
            if rule is not None and argument in needed:
                part = rule(adjoints[node], node, *node.args)
                adjoints[argument] = _plus(adjoints.get(argument), part)
    results = [adjoints.get(var(name), const(0.0)) for name in names]
    return dict(zip(names, simplify_all(results, frozenset(order)), strict=True))
