"""Facts select a lowering and refuse nothing: is it bounded, which outputs are gauge.

gauge     an output is gauge when it is the same at every reference the sums may be kept at; to
          first order when only its slope along a bound reference is 0 at the reference's own value
bounded   terms and corrections stay bounded while a Max (Min) only grows (falls); from below they
          are not: where the element that makes the reference may add 0, a sum may underflow
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedreduce.declare.record import Field, Record
from fusedreduce.gradient.element import inlined
from fusedreduce.ir.differentiate import derivative
from fusedreduce.ir.expr import Expr, const, names, substitute, var, walk
from fusedreduce.laws import powers, states
from fusedreduce.laws.absence import carrier, decays, grows, moved_away
from fusedreduce.laws.cases import Case
from fusedreduce.laws.certificate import Facts
from fusedreduce.laws.coordinates import Known
from fusedreduce.laws.decide import equal
from fusedreduce.laws.general import commutative
from fusedreduce.laws.obligations import drawn, known_signs, reached, terms
from fusedreduce.laws.powers import Expansion
from fusedreduce.laws.refute import Trial, number_at, search
from fusedreduce.laws.separate import NotSeparable, in_tower, replaced
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.slopes import gauge_of_merge


def facts_of(record: Record, clock: Clock) -> Facts:
    """Every fact of a corrected form; None or "unknown" where nothing was found."""
    return Facts(True, _bounded(record, clock), _underflows(record, clock), _gauge(record, clock))


def facts_of_merge(record: Record, known: Known, clock: Clock) -> Facts:
    """Every fact of a general form, whose slopes are in the record."""
    return Facts(commutative(known, clock), gauge=gauge_of_merge(record, known, clock))


# ---- gauge ---------------------------------------------------------------------------------------


def _gauge(record: Record, clock: Clock) -> tuple[tuple[str, str], ...]:
    """ "free", "first order", "no" or "unknown" for every output; () without references."""
    if not record.references:
        return ()
    try:
        e = powers.expand(
            powers.terms_of(record), powers.rows_of(record), powers.operands_of(record)
        )
    except NotSeparable:
        return tuple((name, "unknown") for name in record.outputs)
    return tuple((name, _gauge_of(record, name, e, clock)) for name in record.outputs)


def _gauge_of(record: Record, name: str, e: Expansion, clock: Clock) -> str:
    known = known_signs(record)
    signs = e.known("r") | {
        f"{side}.{f.name}": known.get(f"old.{f.name}", "")
        for f in record.fields
        for side in ("r", "new")
    }
    sums = e.symbols("r")
    record = _inlined(record)
    here = states.finish(record, _kept_at(record, e, sums, {}))[name]
    moving = [r for r in record.references if _differs(record, name, r.name)]
    if not moving:
        to = {r.name: var(f"new.{r.name}") for r in record.references}
        there = states.finish(record, _kept_at(record, e, sums, to))[name]
        return (
            "free" if equal([(here, there)], signs, deadline=clock.deadline()).proved else "unknown"
        )
    if not all(r.is_bound for r in moving):
        return "no"
    own = powers.state_of(record, e, sums, "r")
    at = {f"r.{f.name}": own[f.name] for f in record.fields if f.is_bound}
    slopes = [(substitute(derivative(here, f"r.{r.name}"), at), const(0.0)) for r in moving]
    return "first order" if equal(slopes, signs, deadline=clock.deadline()).proved else "no"


def _inlined(record: Record) -> Record:
    """A reference that no term reads is only a name for its formula, and moves with the others."""
    return replace(record, finish=tuple((o, inlined(record, e)) for o, e in record.finish))


def _kept_at(
    record: Record, e: Expansion, sums: Mapping[int, Expr], to: Mapping[str, Expr]
) -> dict[str, Expr]:
    """The state with its sums kept at free references: those in `to`, the others as symbols r.*."""
    row = {f.name: to.get(f.name, var(f"r.{f.name}")) for f in record.fields if f.kind != "Sum"}
    totals = {f.name: e.total(f.name, sums, row) for f in record.fields if f.kind == "Sum"}
    return {**row, **totals}


def _differs(record: Record, name: str, reference: str) -> bool:
    """Does an output change when the sums are kept at another reference? By numbers."""
    old = reached(record, "old")
    new = {**old, reference: reached(record, "new")[reference]}
    sides = []
    for references in (old, new):
        one, two = (terms(record, i, references) for i in (1, 2))
        state = {**references, **{g: one[g] + two[g] for g in one}}
        sides.append(states.finish(record, state)[name])
    return search([Trial(((sides[0], sides[1]),), drawn(record))], count=8).example is not None


# ---- bounded -------------------------------------------------------------------------------------


def _bounded(record: Record, clock: Clock) -> bool | None:
    """All terms and corrections over Max and Min references; None if it is open."""
    answers = [
        _term_bounded(record, f, r, clock)
        for f in record.fields
        if f.kind == "Sum"
        for r in (record.by_name[n] for n in f.reads)
        if r.kind in ("Max", "Min")
    ]
    if False in answers:
        return False
    return None if None in answers or not answers else True


def _term_bounded(record: Record, f: Field, r: Field, clock: Clock) -> bool | None:
    assert f.term is not None
    assert f.correct is not None
    direction = -1.0 if r.kind == "Max" else 1.0
    if _is_ratio(record, f):
        return True
    operand = carrier(record, r, direction)
    if operand is None:
        return None
    step = var("away") if direction > 0 else -var("away")
    term = moved_away(f.term, r, operand, direction)
    correct = substitute(f.correct, {f"old.{r.name}": var(f"new.{r.name}") + step})
    if decays(record, term, clock, or_constant=True) and decays(
        record, correct, clock, or_constant=True
    ):
        return True
    return False if grows(term) or grows(correct) else None


def _underflows(record: Record, clock: Clock) -> tuple[str, ...]:
    """Sums that decay from a reference whose own element may add nothing to them.

    A weightless element that is taken for the maximum leaves sum w exp(x - m) to the others, which
    may all be far below it. Only sums that finish divides by, or takes the log of, are harmed.
    """
    return tuple(
        f.name
        for f in record.fields
        if f.kind == "Sum" and any(_is_delicate(f.name, e) for _, e in record.finish)
        if any(_may_be_left(record, f, record.by_name[n], clock) for n in f.reads)
    )


def _is_delicate(name: str, e: Expr) -> bool:
    """Is `name` divided by, or inside a logarithm?"""
    below = {"div": slice(1, 2), "reciprocal": slice(0, 1), "rsqrt": slice(0, 1)}
    logs = dict.fromkeys(("log", "log2", "log10"), slice(0, 1))
    inside = {**below, **logs}
    return any(name in names(a) for n in walk(e) for a in n.args[inside.get(n.op, slice(0, 0))])


def _may_be_left(record: Record, f: Field, r: Field, clock: Clock) -> bool:
    """Is there an element that makes the reference and adds 0, while others decay from it?"""
    if r.kind not in ("Max", "Min") or f.term is None or r.term is None:
        return False
    direction = -1.0 if r.kind == "Max" else 1.0
    operand = carrier(record, r, direction)
    if operand is None:
        return False
    moved = moved_away(f.term, r, operand, direction)
    own = substitute(moved, {"away": const(0.0)})
    weights = [n for n in names(own) if n in (*record.operands, *record.payloads)]
    kept = dict.fromkeys((*names(own), *names(r.term)), 0.5)
    return decays(record, moved, clock) and any(
        number_at(own, {**kept, w: 0.0}) == 0
        and abs(number_at(r.term, {**kept, w: 0.0})) < float("inf")
        for w in weights
        if dict(record.domain).get(w) != "positive"
    )


def _is_ratio(record: Record, f: Field) -> bool:
    """A polynomial of ratios x / r, r the largest |x|: it lies within its values on [-1, 1]."""
    assert f.term is not None
    table, ratios = dict[Expr, Expr](), set[str]()
    for name in f.reads:
        largest = record.by_name[name].term
        if largest is None or largest.op != "abs" or largest.args[0].op != "var":
            return False
        ratios.add(f"ratio.{name}")
        ratio = var(name) * var(f"ratio.{name}")
        table |= {largest: ratio, largest.args[0]: ratio}
    e = replaced(f.term, table)

    def polynomial(case: Case) -> bool:
        v = case.number(e)
        return v.den.is_ground and case.tower.symbols_of(case.tower.used(v.num)) <= ratios

    try:
        return in_tower(polynomial, dict.fromkeys(names(e), ""))
    except NotSeparable:
        return False
