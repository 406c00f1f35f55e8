"""The final state of a query, as the backward of a pair reads it: saved values, or solved for.

Given    the results of a pair
Claim    a number field is a saved value, as it is or in the gauge where a sum is 1; a vector field
         is solved for from the vector result that is linear in it: out = o / s, so o = out * s
Use      the formulas of one element of the width (pair_widths.py sums them up).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fusedreduce.declare.record import Field, Record
from fusedreduce.gradient.element import NoBackward, element_gradient, mark
from fusedreduce.gradient.extras import extras
from fusedreduce.ir.expr import Expr, call, const, names, rewrite, substitute, var
from fusedreduce.ir.show import show
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import BEFORE, INDICES, Pair, Result, is_vector


def within(pair: Pair) -> dict[str, Expr]:
    """What the operands and indices of a term are in the pair."""
    return {mark(n): var(n) for n in INDICES} | {mark(n): e for n, e in pair.operands}


def adjoint(result: str) -> str:
    return f"d_{result}"


def output_of(r: Result, record: Record) -> str:
    """The output that a result is; a bare one is called `value`."""
    return r.name if r.name in record.outputs else ""


def saved_name(field: str) -> str:
    return f"saved_{field}"


class FinalState:
    """The parts of the operands of one element, per element of the width."""

    def __init__(self, pair: Pair, gauged: bool) -> None:
        self.pair = pair
        record = pair.record
        asked = [r for r in pair.results if r.vector]
        if len(asked) > 1:
            raise NoBackward("more than one result is a vector")
        self.vector = asked[0].name if asked else ""
        self.vector_output = output_of(asked[0], record) if asked else ""
        self.saved: dict[str, Expr] = {}  # by field, over the fields of the forward
        self.state: dict[str, Expr] = {}  # each field over saved values and the vector result
        more = extras(record)
        self.extra = {f.name: var(saved_name(f.name)) for f in more.fields}
        self.record = replace(record, fields=(*record.fields, *more.fields))
        unit = unit_sum(record) if gauged else None
        for f in record.fields:
            if f.is_bound and f.term is not None:
                self.state[f.name] = substitute(f.term, self.state)
            elif is_vector(record, f):
                continue
            elif unit is not None:
                self.gauge(f, unit)
            else:
                self.state[f.name] = var(saved_name(f.name))
                self.saved[f.name] = var(f.name)
        self.saved |= {f.name: var(f.name) for f in more.fields}
        for f in pair.vectors:
            self.state[f.name] = self.solved(f)

    def gauge(self, f: Field, unit: Unit) -> None:
        """The state at the reference where the sum is 1: the same gauge results, fewer numbers."""
        if f.name == unit.sum:
            self.state[f.name] = const(1.0)
            return
        self.state[f.name] = var(saved_name(f.name))
        if f.name == unit.reference:
            self.saved[f.name] = unit.moved
        elif f.correct is not None:
            old = {f"old.{n}": var(n) for n in self.pair.record.by_name}
            self.saved[f.name] = substitute(f.correct, {**old, f"new.{unit.reference}": unit.moved})
        else:
            self.saved[f.name] = var(f.name)

    def solved(self, f: Field) -> Expr:
        """The vector field from the vector result: out = a * o + c, o = (out - c) / a."""
        if not self.vector:
            return const(0.0)
        if self.vector.startswith("state."):
            return var(self.vector) if self.vector == f"state.{f.name}" else const(0.0)
        finish = dict(self.pair.record.finish)[self.vector_output]
        return cancelled(substitute(inverted(finish, f.name, var(self.vector)), self.state))

    def operand_parts(self) -> dict[str, Expr]:
        """d loss / d operand, over `@operand`, row values, d_<result>, the vector result."""
        record = self.pair.record
        adjoints = {
            output_of(r, record): var(adjoint(r.name))
            for r in self.pair.results
            if "float" in r.dtype and not r.name.startswith("state.")
        }
        adjoints |= {
            r.name: var(adjoint(r.name)) for r in self.pair.results if r.name.startswith("state.")
        }
        start = BEFORE if self.pair.first else 0
        parts = element_gradient(record, adjoints, self.state, self.extra, start)
        return {n: cancelled(e) for n, e in parts.items()}


def inverted(e: Expr, name: str, value: Expr) -> Expr:
    """What `name` is where e has this value; e reads it once, through + - * / and signs.

    >>> from fusedreduce.ir.show import show
    >>> show(inverted(var("o") / var("s"), "o", var("out")))
    'out * s'
    """
    if e is var(name):
        return value
    at = [k for k, a in enumerate(e.args) if name in names(a)]
    if len(at) != 1 or (e.op, at[0]) not in _INVERSES:
        raise NoBackward(f"the result {show(e)} is not solved for {name}")
    other = e.args[1 - at[0]] if len(e.args) == 2 else value
    return inverted(e.args[at[0]], name, _INVERSES[e.op, at[0]](value, other))


_INVERSES: Mapping[tuple[str, int], Callable[[Expr, Expr], Expr]] = {
    ("add", 0): lambda y, a: y - a,
    ("add", 1): lambda y, a: y - a,
    ("sub", 0): lambda y, a: y + a,
    ("sub", 1): lambda y, a: a - y,
    ("mul", 0): lambda y, a: y / a,
    ("mul", 1): lambda y, a: y / a,
    ("div", 0): lambda y, a: y * a,
    ("neg", 0): lambda y, a: -y,
}


def cancelled(e: Expr) -> Expr:
    """x * a / a as x."""

    def rule(n: Expr) -> Expr | None:
        if n.op == "div" and n.args[0].op == "mul" and n.args[0].args[1] is n.args[1]:
            return n.args[0].args[0]
        return None

    return simplify(rewrite(e, rule))


@dataclass(frozen=True)
class Unit:
    """A sum s that a move of its reference m multiplies: at `moved` = m + log s it is 1."""

    sum: str
    reference: str
    moved: Expr


def unit_sum(record: Record) -> Unit | None:
    """The gauge in which a sum is 1, where every output is gauge and the sum moves by exp."""
    if set(record.gauge) < set(record.outputs) or record.form == "general":
        return None
    for f in record.fields:
        if f.correct is None or f.kind != "Sum" or len(f.reads) != 1 or is_vector(record, f):
            continue
        m = f.reads[0]
        move = call("exp", var(f"old.{m}") - var(f"new.{m}"))
        if f.correct is call("mul", var(f.name), move) and positive(f.term):
            return Unit(f.name, m, var(m) + call("log", var(f.name)))
    return None


def positive(term: Expr | None) -> bool:
    return term is not None and term.op in ("exp", "exp2")
