"""How the state of a general merge moves with one element: elementwise in (element, final state).

Given    additive coordinates (coordinates.py): psi_k(S) = sum_j psi_k(lift(x_j)), and each field as
         a function of its psi_k and of fields before it
Claim    d S_k / d x_j = d S_k / d psi_k * d psi_k(lift(x_j)) / d x_j  +  the same through those
         fields, for every number of elements; along an extreme m likewise, with psi held
Use      the derived backward of a general form. A merge without coordinates has none: its `rest`,
         final = merge(rest, lift(x)), cannot be had back without dividing by what may be 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusedreduce.declare.record import Record
from fusedreduce.ir.differentiate import derivative
from fusedreduce.ir.expr import Expr, call, const, is_const, names, substitute, var
from fusedreduce.ir.simplify import simplify
from fusedreduce.laws import powers
from fusedreduce.laws.cases import Case
from fusedreduce.laws.coordinates import Coordinate, Known
from fusedreduce.laws.decide import equal
from fusedreduce.laws.ratios import Undefined
from fusedreduce.laws.separate import NotSeparable, in_tower
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.spelling import stable
from fusedreduce.laws.writing import write

Slopes = tuple[tuple[str, str, Expr], ...]


def slopes(known: Known) -> Slopes:
    """(field, operand or extreme, d field / d that); () where some field has no stable one."""
    if known.coordinates is None:
        return ()
    record = known.record
    moves: dict[tuple[str, str], Expr] = {}
    for c in known.coordinates:
        for by in _movers(known):
            raw = _slope(record, c, by, moves)
            if not is_const(raw, 0):
                moves[c.field, by] = raw
    found = [(f, by, _spelled(known, e)) for (f, by), e in moves.items()]
    return (
        () if any(e is None for _, _, e in found) else tuple((f, by, e) for f, by, e in found if e)
    )


def _movers(known: Known) -> tuple[str, ...]:
    extremes = tuple(c.field for c in known.coordinates or () if c.extreme)
    return (*known.record.operands, *known.record.payloads, *extremes)


def _slope(record: Record, c: Coordinate, by: str, before: dict[tuple[str, str], Expr]) -> Expr:
    """d (field of c) / d by, as the chain rule gives it, over operands and fields."""
    if c.extreme:
        return const(1.0 if by == c.field else 0.0)
    lifted = dict(zip((f.name for f in record.fields), record.lift, strict=True))
    parts = [derivative(c.inverse, "value") * derivative(substitute(c.psi, lifted), by)]
    for (f, mover), e in before.items():
        if mover == by and f in names(c.inverse):
            parts.append(derivative(c.inverse, f) * e)
    total = parts[0]
    for p in parts[1:]:
        total = total + p
    return simplify(substitute(total, {"value": c.psi}))


def _spelled(known: Known, e: Expr) -> Expr | None:
    """The slope in lowest terms, over x - mean or x / k where that is exact; None if unstable.

    A divisor that may be 0 in a reachable state makes it unstable.
    """
    record = known.record
    fields = [f.name for f in record.fields]
    if not set(names(e)) & set(fields):
        return e
    signs = {**powers.operands_of(record), **dict.fromkeys(fields, "")}
    signs = {n: s for n, s in signs.items() if n in names(e)}
    facts = [
        f for f in known.invariants.of({n: var(n) for n in fields}) if set(names(f)) <= {*signs}
    ]

    def ask(case: Case) -> Expr | None:
        v = case.tower.tidy(case.number(e))
        if not v.den.is_ground and case.holds(v.den, ">") is not True:
            return None
        return next(_shifted(case, write(case.tower, v), record), None) or write(case.tower, v)

    try:
        return in_tower(ask, signs, facts)
    except NotSeparable:
        return None


def _shifted(case: Case, e: Expr, record: Record) -> Iterator[Expr]:
    """e(x, f) as e(x - f, 0) or e(x / f, 1), where that is the same function."""
    fields = {f.name for f in record.fields}
    read = dict.fromkeys(names(e))
    for op, unit in (("sub", 0.0), ("div", 1.0)):
        for x in (n for n in read if n not in fields):
            for f in (n for n in read if n in fields):
                try:
                    short = case.number(substitute(e, {f: const(unit)}))
                    moved = substitute(
                        write(case.tower, case.tower.tidy(short)), {x: call(op, var(x), var(f))}
                    )
                    if case.tower.is_zero(case.number(moved) - case.number(e)):
                        yield stable(moved)
                except Undefined:
                    continue


def gauge_of_merge(record: Record, known: Known, clock: Clock) -> tuple[tuple[str, str], ...]:
    """Given   an output and an extreme m that other fields are relative to
    Claim   d finish / d m + sum_f d finish / d f * d f / d m = 0
    Use     no gradient flows through m.
    """
    moved = [(f, by, e) for f, by, e in record.slopes if by in record.by_name and by != f]
    answers = []
    for output, e in record.finish if moved else ():
        pairs = []
        for m in dict.fromkeys(by for _, by, _ in moved):
            along = derivative(e, m)
            for f, by, slope in moved:
                along = along + derivative(e, f) * slope if by == m else along
            pairs.append((along, const(0.0)))
        facts = known.invariants.of({f.name: var(f.name) for f in record.fields})
        verdict = equal(pairs, {}, facts, deadline=clock.deadline())
        answers.append((output, "free" if verdict.proved else "no"))
    return tuple(answers)
