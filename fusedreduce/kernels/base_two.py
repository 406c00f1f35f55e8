"""exp(x - m) as exp2(x' - m') with x' = x log2(e): what the hardware computes, one multiply less.

Given    a record whose references are maxima or minima of one operand x itself
Claim    with x' = x log2(e) and m' = m log2(e) every exp(x - m) is exp2(x' - m'); the factor goes
         into the scalar that scales x, and comes back in the finish
Use      pairs of 16 bits, forward (`in_base_two`) and backward (`exponentials`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, call, is_const, rewrite, substitute, var
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import HALF, Pair

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
INF = float("inf")


def counts_in_twos(pair: Pair) -> bool:
    """Is exp spelled as exp2? Where 16 bits hide what m log2(e), rounded, loses of a large m.

    Never beside what may be finfo.min: times log2(e) that is -inf.
    """
    return pair.dtype in HALF and pair.bounded


def scaled(e: Expr, factor: float, is_scalar: Callable[[Expr], bool]) -> Expr:
    """factor * e, with the factor at a scalar that multiplies e already.

    >>> from fusedreduce.ir.show import show
    >>> show(scaled(var("score") * var("scale"), 2.0, lambda e: e is var("scale")))
    'score * (scale * 2.0)'
    """
    if e.op == "mul" and is_scalar(e.args[1]):
        return e.args[0] * (e.args[1] * factor)
    if e.op == "mul" and is_scalar(e.args[0]):
        return e.args[1] * (e.args[0] * factor)
    return e * factor


def exponentials(e: Expr, is_scalar: Callable[[Expr], bool]) -> Expr:
    """Every exp(a - b) as exp2 of the scaled difference."""

    def rule(n: Expr) -> Expr | None:
        if n.op != "exp" or n.args[0].op != "sub":
            return None
        a, b = (scaled(x, LOG2_E, is_scalar) for x in n.args[0].args)
        return call("exp2", a - b)

    return rewrite(e, rule)


def in_base_two(record: Record) -> tuple[Record, str, dict[str, Expr]] | None:
    """The record over x', the operand's name, and each field over those of the new record.

    None where a reference is anything but a Max or Min of one operand.
    """
    references = [f for f in record.fields if f.is_reference]
    terms = {f.term for f in references}
    if record.form != "corrected" or len(terms) != 1:
        return None
    (x,) = terms
    if x is None or x.op != "var" or any(f.kind not in ("Max", "Min") for f in references):
        return None
    name = str(x.value)
    back = {name: var(name) * LN_2} | {f.name: var(f.name) * LN_2 for f in references}
    sides = {f"{s}.{f.name}": var(f"{s}.{f.name}") * LN_2
             for s in ("old", "new") for f in references}  # fmt: skip

    def moved(e: Expr | None) -> Expr | None:
        return None if e is None else simplify(rewrite(substitute(e, back | sides), _exponential))

    fields = tuple(
        replace(f, neutral=f.neutral * LOG2_E)
        if f.is_reference
        else replace(f, term=moved(f.term), correct=moved(f.correct))
        for f in record.fields
    )
    finish = tuple((o, substitute(e, back)) for o, e in record.finish)
    state = {n: e for n, e in back.items() if n != name}
    return replace(record, fields=fields, finish=finish), name, state


def _exponential(n: Expr) -> Expr | None:
    """exp(a ln 2 - b ln 2) as exp2(a - b)."""
    if n.op != "exp" or n.args[0].op != "sub":
        return None
    a, b = n.args[0].args
    if all(e.op == "mul" and is_const(e.args[1], LN_2) for e in (a, b)):
        return call("exp2", a.args[0] - b.args[0])
    return None


def tested(e: Expr) -> Expr:
    """Comparisons with infinity do not need the factor."""

    def rule(n: Expr) -> Expr | None:
        infinite = (
            n.op in ("eq", "ne") and n.args[1].op == "const" and abs(_number(n.args[1])) == INF
        )
        a = n.args[0] if n.args else n
        if infinite and a.op == "mul" and is_const(a.args[1], LN_2):
            return call(n.op, a.args[0], n.args[1])
        return None

    return rewrite(e, rule)


def _number(e: Expr) -> float:
    return float(e.value or 0.0)
