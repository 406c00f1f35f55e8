"""Factors of corrections in the spelling that is shortest and keeps most digits.

exp(u) - 1 is expm1(u), exp(p log u) is u ** p, (exp(u) - exp(-u)) / 2 is sinh(u), u / sqrt(u) is
sqrt(u), 1 / (a / b) is b / a. Each rule is an identity; transport checks the whole again.
"""

from __future__ import annotations

from collections.abc import Callable

from fusedreduce.ir.expr import Expr, call, is_const, rewrite

Rule = Callable[[Expr], "Expr | None"]


def stable(e: Expr) -> Expr:
    """The expression respelt, from the inside out."""
    return rewrite(e, _respelt)


def _respelt(e: Expr) -> Expr | None:
    rule = _RULES.get(e.op)
    return None if rule is None else rule(e)


def _exponential(e: Expr) -> Expr | None:
    """exp(p * log(u)) is u ** p, exp2(p) for u = 2."""
    (inner,) = e.args
    if inner.op != "mul":
        return None
    for p, log in (inner.args, inner.args[::-1]):
        if log.op == "log":
            (u,) = log.args
            return call("exp2", p) if is_const(u, 2) else call("pow", u, p)
    return None


def _difference(e: Expr) -> Expr | None:
    """exp(u) - 1, and half the difference of exp(u) and exp(-u)."""
    a, b = e.args
    if a.op == "exp" and is_const(b, 1):
        return call("expm1", a.args[0])
    return _half("sinh", a, b)


def _half(name: str, a: Expr, b: Expr) -> Expr | None:
    halves = [t.args[0] for t in (a, b) if t.op == "div" and is_const(t.args[1], 2)]
    if len(halves) < 2 or any(t.op != "exp" for t in halves):
        return None
    u, v = (t.args[0] for t in halves)
    if v is -u:
        return call(name, u)
    if u is -v:
        return call(name, v) if name == "cosh" else -call(name, v)
    return None


def _quotient(e: Expr) -> Expr | None:
    """log(u) / log(2), u / sqrt(u), and 1 / (a / b) ** k."""
    a, b = e.args
    if a.op == "log" and b.op == "log" and is_const(b.args[0]):
        name = {2: "log2", 10: "log10"}.get(b.args[0].value)  # type: ignore[arg-type]
        return call(name, a.args[0]) if name else None
    if b.op == "sqrt" and b.args[0] is a:
        return b
    if is_const(a, 1) and b.op == "div":
        return call("div", b.args[1], b.args[0])
    if is_const(a, 1) and b.op == "sqrt" and b.args[0].op == "div":
        above, below = b.args[0].args
        return call("sqrt", call("div", below, above))
    if is_const(a, 1) and b.op == "pow" and b.args[0].op == "div":
        above, below = b.args[0].args
        return call("pow", call("div", below, above), b.args[1])
    if a.op == "pow" and b.op == "pow" and a.args[1] is b.args[1]:
        return call("pow", call("div", a.args[0], b.args[0]), a.args[1])
    return None


_RULES: dict[str, Rule] = {
    "exp": _exponential,
    "sub": _difference,
    "add": lambda e: _half("cosh", *e.args),
    "div": _quotient,
}
