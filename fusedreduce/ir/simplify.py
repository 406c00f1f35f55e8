"""Clean-ups that keep the value over the reals: x * 0, x * 1, x + 0, --x, exact small numbers.

They tidy what differentiation leaves behind. Nothing is reordered or regrouped, and the nodes the
user wrote are handed in as `keep` and stay as they are, so that forward and backward share them.
The rules may drop a NaN (0 * x) and may turn x * 1.0 of an integer x into that integer.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from math import isfinite

from fusedreduce.ir.expr import Expr, Number, call, const, is_const, make, walk

Rule = Callable[..., "Expr | None"]


def _exact(value: Fraction, whole: bool) -> Number | None:
    """The number as a constant when float32 holds it without rounding."""
    if whole and value.denominator == 1:
        return int(value)
    if abs(value) > 2**24:
        return None
    number = float(value)
    kept = struct.unpack("f", struct.pack("f", number))[0]
    return number if Fraction(number) == value and kept == number else None


_FOLDS: Mapping[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
}


def _fold(node: Expr) -> Expr | None:
    """An operation on constants as a constant, when nothing is rounded."""
    values = [a.value for a in node.args if a.op == "const"]
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if node.op not in _FOLDS or len(numbers) != len(node.args) or not all(map(isfinite, numbers)):
        return None
    whole = all(isinstance(v, int) for v in numbers)
    value = _exact(_FOLDS[node.op](*map(Fraction, numbers)), whole)
    return None if value is None else const(value)


def _add(node: Expr, a: Expr, b: Expr) -> Expr | None:
    if is_const(a, 0):
        return b
    if is_const(b, 0):
        return a
    if b.op == "neg":
        return a - b.args[0]
    branches = a.op == b.op == "where" and a.args[0] is b.args[0]
    if branches and is_const(a.args[2], 0) and is_const(b.args[1], 0):
        return call("where", a.args[0], a.args[1], b.args[2])
    if branches and is_const(a.args[1], 0) and is_const(b.args[2], 0):
        return call("where", a.args[0], b.args[1], a.args[2])
    return None


def _sub(node: Expr, a: Expr, b: Expr) -> Expr | None:
    if is_const(b, 0):
        return a
    if is_const(a, 0):
        return _neg(node, b) or -b
    return a + b.args[0] if b.op == "neg" else None


def _mul(node: Expr, a: Expr, b: Expr) -> Expr | None:
    for one, other in ((a, b), (b, a)):
        if is_const(one, 0):
            return one
        if is_const(one, 1):
            return other
        if is_const(one, -1):
            return _neg(node, other) or -other
    return None


def _div(node: Expr, a: Expr, b: Expr) -> Expr | None:
    return a if is_const(b, 1) or is_const(a, 0) else None


def _neg(node: Expr, x: Expr) -> Expr | None:
    return x.args[0] if x.op == "neg" else const(0.0) if is_const(x, 0) else None


def _pow(node: Expr, a: Expr, b: Expr) -> Expr | None:
    return a if is_const(b, 1) else const(1.0) if is_const(b, 0) else None


def _where(node: Expr, c: Expr, a: Expr, b: Expr) -> Expr | None:
    return a if a is b or is_const(c, True) else b if is_const(c, False) else None


def _compared(relation: Callable[[Number, Number], bool]) -> Rule:
    """A comparison of two constants is one."""

    def rule(node: Expr, a: Expr, b: Expr) -> Expr | None:
        if a.op != "const" or b.op != "const":
            return None
        assert isinstance(a.value, (bool, int, float))
        assert isinstance(b.value, (bool, int, float))
        return const(relation(a.value, b.value))

    return rule


COMPARISONS: Mapping[str, Rule] = {
    name: _compared(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_RULES: Mapping[str, Rule] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "neg": _neg, "pow": _pow, "where": _where,
    **COMPARISONS,
}  # fmt: skip


def simplify_node(node: Expr) -> Expr:
    """One clean-up at the root of a node whose arguments are clean."""
    rule = _RULES.get(node.op)
    return _fold(node) or (rule(node, *node.args) if rule else None) or node


def simplify_all(roots: Sequence[Expr], keep: Collection[Expr] = ()) -> tuple[Expr, ...]:
    """As `simplify`, for several expressions that share subexpressions, in one walk."""
    done: dict[Expr, Expr] = {}
    for node in walk(*roots):
        if node in keep:
            done[node] = node
        else:
            done[node] = simplify_node(make(node.op, tuple(done[a] for a in node.args), node.value))
    return tuple(done[root] for root in roots)


def simplify(root: Expr, keep: Collection[Expr] = ()) -> Expr:
    """The same value over the reals with less text; nodes in `keep` are left alone.

    >>> from fusedreduce.ir.expr import var
    >>> from fusedreduce.ir.show import show
    >>> x = var("x")
    >>> show(simplify(x * 1.0 + 0.0 * x - -(x ** (3.0 - 2.0))))
    'x + x'
    """
    return simplify_all((root,), keep)[0]
