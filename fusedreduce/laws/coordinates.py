"""Additive coordinates of a state: functions psi with psi(merge(a, b)) = psi(a) + psi(b).

Given    a merge such as Chan's, with n > 0 on non-empty states
Claim    n, n * mean and m2 + n * mean ** 2 are additive, and the state is a function of them
Use      merge is then addition in other clothes: associative and commutative, and the state after
         any elements is given by the sums of psi(lift(x)): the definition for every n.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, call, names, substitute, var
from fusedreduce.laws import powers, states
from fusedreduce.laws.decide import Verdict, equal
from fusedreduce.laws.fitting import fitted
from fusedreduce.laws.invariants import Invariants
from fusedreduce.laws.refute import Trial, search, value
from fusedreduce.laws.separate import NotSeparable
from fusedreduce.laws.settle import Clock
from fusedreduce.vectors import Definition

VALUE = var("value")


@dataclass(frozen=True)
class Coordinate:
    """One field: psi over field names, and the field as a function of psi's `value`.

    An extreme (merged by maximum or minimum) is its own coordinate, and no sum.
    """

    field: str
    psi: Expr
    inverse: Expr
    extreme: str = ""  # "max" or "min"


@dataclass(frozen=True)
class Known:
    """What is known of the states of a general form before a law is asked."""

    record: Record
    invariants: Invariants
    coordinates: tuple[Coordinate, ...] | None


def coordinates(record: Record, known: Invariants, clock: Clock) -> tuple[Coordinate, ...] | None:
    """A coordinate for every field, each proved additive; None if some field has none."""
    found: list[Coordinate] = []
    left = [f.name for f in record.fields if f.type != "bool"]
    if len(left) < len(record.fields):
        return None
    progress = True
    while left and progress:
        progress = False
        for name in list(left):
            c = _coordinate(record, name, found, known, clock)
            if c is not None:
                found.append(c)
                left.remove(name)
                progress = True
    return None if left else tuple(found)


def _coordinate(
    record: Record, name: str, done: Sequence[Coordinate], known: Invariants, clock: Clock
) -> Coordinate | None:
    extreme = _extreme(record, name)
    if extreme:
        return Coordinate(name, var(name), VALUE, extreme)
    candidates = itertools.chain(_candidates(name, done, known), _polynomials(record, name, done))
    for c in candidates:
        if _tried(record, c.psi) and _additive(record, c.psi, known, clock):
            return c
    return None


def _extreme(record: Record, name: str) -> str:
    """Is the field merged as maximum(a.f, b.f)?"""
    merged = dict(zip((f.name for f in record.fields), record.merge, strict=True))[name]
    sides = {var(f"a.{name}"), var(f"b.{name}")}
    if merged.op in ("maximum", "minimum") and set(merged.args) == sides:
        return merged.op[:3]
    return ""


def _candidates(name: str, done: Sequence[Coordinate], known: Invariants) -> Iterator[Coordinate]:
    """The field; times a count; times a scale to a power; times exp of an extreme; its exp."""
    f = var(name)
    yield Coordinate(name, f, VALUE)
    if {("gt", name), ("ge", name)} & known.facts:
        yield Coordinate(name, call("pow", f, 2.0), call("sqrt", VALUE))
    if ("gt", name) in known.facts:
        yield Coordinate(name, call("reciprocal", f), call("reciprocal", VALUE))
        yield Coordinate(name, call("log", f), call("exp", VALUE))
    for c in done:
        g = var(c.field)
        if c.extreme:
            e = call("exp", g if c.extreme == "max" else -g)
            yield Coordinate(name, f * e, VALUE / e)
        if ("gt", c.field) not in known.facts:
            continue
        for p in (1,) if not c.extreme else (1, 2, 3, 4):
            scale = g if p == 1 else call("pow", g, float(p))
            yield Coordinate(name, f * scale, VALUE / scale)
    yield Coordinate(name, call("exp", f), call("log", VALUE))
    yield Coordinate(name, call("exp", -f), -call("log", VALUE))


def _defect(record: Record, psi: Expr) -> tuple[Expr, Expr]:
    """psi(merge(a, b)) and psi(a) + psi(b), on states of elements 1, 2 and 3."""
    a, b = states.fold(record, (1, 2)), states.fold(record, (3,))
    return substitute(psi, states.merge(record, a, b)), substitute(psi, a) + substitute(psi, b)


def _tried(record: Record, psi: Expr) -> bool:
    trial = Trial(pairs=(_defect(record, psi),), domains=states.elements(record, 3))
    found = search([trial], count=6)
    return found.example is None and found.tried > 0


def _additive(record: Record, psi: Expr, known: Invariants, clock: Clock) -> bool:
    """The exact claim, on all states with the invariants; and psi(identity) = 0."""
    at_nothing = value(substitute(psi, states.identity(record)))
    if at_nothing == at_nothing and at_nothing != 0:
        return False
    a, b = (states.symbols(record, side) for side in "ab")
    merged = substitute(psi, states.merge(record, a, b))
    pair = merged, substitute(psi, a) + substitute(psi, b)
    return equal([pair], {}, known.of(a, b), deadline=clock.deadline()).proved


def _polynomials(record: Record, name: str, done: Sequence[Coordinate]) -> Iterator[Coordinate]:
    """name + a polynomial in fields done before: m2 + n mean ** 2, m3 + 3 mean m2 + ..."""
    plain = [c.field for c in done if c.psi.op != "mul"]
    means = [c.field for c in done if c.psi.op == "mul"]
    rest = None if any(c.extreme for c in done) else fitted(record, name, plain, means)
    if rest is not None:
        yield Coordinate(name, var(name) + rest, VALUE - rest)


# ---- the definition for every n ------------------------------------------------------------------


def definition_by_coordinates(
    record: Record, whole: Definition, known: Known, clock: Clock
) -> Verdict:
    """finish of the state with these power sums = definition, in free symbols."""
    found = known.coordinates
    if found is None:
        return Verdict("open", why="no additive coordinates of the state were found")
    if known.invariants.or_identity:
        clock.assumed["not every element lifts to the identity"] = None
    lifted = dict(zip((f.name for f in record.fields), record.lift, strict=True))
    terms = {f"psi.{c.field}": substitute(c.psi, lifted) for c in found if not c.extreme}
    totals = {t.name: t.term for t in whole.totals if t.kind == "sum"}
    terms = {n: _as_in(record, t, totals, clock) for n, t in terms.items()}
    row = [t.name for t in whole.totals]
    try:
        e = powers.expand({**terms, **totals}, row, powers.operands_of(record))
    except NotSeparable as error:
        return Verdict("unsupported", why=str(error).replace("old.", ""))
    sums = e.symbols("r")
    state = _state(record, found, e, sums)
    values = _totals(record, whole, found, state, e, sums)
    finished = states.finish(record, state)
    pairs = [(finished[n], substitute(d, values)) for n, d in whole.outputs if n in finished]
    signs = {**e.known("r"), **{f"r.{f}": "+" for op, f in known.invariants.facts if op == "gt"}}
    return e.readable(equal(pairs, signs, deadline=clock.deadline(), where_defined=True))


def _as_in(record: Record, term: Expr, totals: Mapping[str, Expr], clock: Clock) -> Expr:
    """The term as the definition writes it, if it does: |x| ** 2 and x * x are one function."""
    signs = powers.operands_of(record)
    of_elements = (t for t in totals.values() if names(t) and set(names(t)) <= set(signs))
    for other in of_elements:
        if equal([(term, other)], signs, deadline=clock.deadline()).proved:
            return other
    return term


def _state(
    record: Record, found: Sequence[Coordinate], e: powers.Expansion, sums: Mapping[int, Expr]
) -> dict[str, Expr]:
    """Every field as a function of power sums, in the order the coordinates were found."""
    state: dict[str, Expr] = {}
    for c in found:
        if c.extreme:
            state[c.field] = var(f"r.{c.field}")
        else:
            value = e.total(f"psi.{c.field}", sums, {})
            state[c.field] = substitute(c.inverse, {**state, "value": value})
    return state


def _totals(
    record: Record,
    whole: Definition,
    found: Sequence[Coordinate],
    state: Mapping[str, Expr],
    e: powers.Expansion,
    sums: Mapping[int, Expr],
) -> dict[str, Expr]:
    lifted = dict(zip((f.name for f in record.fields), record.lift, strict=True))
    extremes = {(c.extreme, lifted[c.field]): c.field for c in found if c.extreme}
    values: dict[str, Expr] = {}
    for t in whole.totals:
        if t.kind == "sum":
            values[t.name] = e.total(t.name, sums, values)
        elif (t.kind, t.term) in extremes:
            values[t.name] = state[extremes[t.kind, t.term]]
        else:
            values[t.name] = var(t.name)
    return values
