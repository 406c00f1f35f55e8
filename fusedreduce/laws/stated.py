"""A stated `grad`: proved for every number of elements, checked on few, or left open.

Given    grad(x, S, adjoints), the element x, the final state S
Claim    it is what the derived backward sends, in free symbols; or, where none is derived and the
         merge commutes: with the state r of all others, S = merge(r, lift(x)), it is the derivative
         of finish(S) by x at that r
Use      the backward prints `grad` instead of a derived one.
"""

from __future__ import annotations

from dataclasses import replace

from fusedreduce.declare.record import Record
from fusedreduce.gradient.element import NoBackward
from fusedreduce.gradient.extras import extras
from fusedreduce.ir.expr import Expr, var
from fusedreduce.laws import states
from fusedreduce.laws.certificate import Law, Status
from fusedreduce.laws.coordinates import Known
from fusedreduce.laws.decide import Verdict, equal
from fusedreduce.laws.derivatives import on_elements, sent, sides
from fusedreduce.laws.obligations import Obligation, known_signs
from fusedreduce.laws.refute import Search
from fusedreduce.laws.settle import Clock, undecided

MOST_ELEMENTS = 3


def of_stated(
    record: Record, o: Obligation, found: Search, known: Known | None, clock: Clock
) -> Law:
    """As the derived one where there is one; else as the derivative of merge(rest, lift(x))."""
    verdict = _as_derived(record, known, clock)
    if not verdict.proved and known is not None and record.commutative:
        verdict = _with_rest(record, known, clock)
    if verdict.proved:
        clock.assumed |= dict.fromkeys(verdict.assumed)
        how = f"exact for every n; {found.tried} trials agree"
        return Law(o.law, "", Status.PROVED, o.statement, how, line=o.line)
    law = undecided(o, found.tried, verdict)
    done = _up_to(record, clock)
    if not done:
        return law
    how = (
        f"exact for up to {done} element{'s' * (done > 1)}; for every n not proved ({verdict.why})"
    )
    return replace(law, status=Status.CHECKED, how=how)


def _as_derived(record: Record, known: Known | None, clock: Clock) -> Verdict:
    """The stated and the derived gradient, in free symbols for the element and the state."""
    state: dict[str, Expr] = {}
    for f in record.fields:
        state[f.name] = states.formula(f, state) if f.is_bound else var(f"s.{f.name}")
    extra = {f.name: var(f"s.{f.name}") for f in extras(record).fields}
    try:
        derived = sent(replace(record, grad=()), state, extra, 1, 1)
    except NoBackward as error:
        return Verdict("open", why=str(error))
    stated = sent(record, state, extra, 1, 1)
    pairs = [(e, derived[n]) for n, e in stated.items()]
    signs = states.operand_signs(record, 1)
    facts = known.invariants.of(state) if known is not None else ()
    if known is None:
        refs = known_signs(record)
        signs |= {f"s.{f.name}": refs.get(f"old.{f.name}", "") for f in record.fields}
    return equal(pairs, signs, facts, deadline=clock.deadline())


def _with_rest(record: Record, known: Known, clock: Clock) -> Verdict:
    """Given   the state r of all other elements (the merge commutes), and the element x
    Claim   grad(x, merge(r, lift(x))) = d (sum_o adjoint_o * finish_o(merge(r, lift(x)))) / d x
    Use     with the same for the element alone: every n at once, and r need not be had back.
    """
    cases, assumed = 0, dict[str, None]()
    rest = states.symbols(record, "a")
    for state, facts in (
        (states.merge(record, rest, states.lift(record, 1)), known.invariants.of(rest)),
        (states.lift(record, 1), ()),
    ):
        pairs = sides(record, state, {}, 1, 1).values()
        verdict = equal(
            pairs, states.operand_signs(record, 1), facts, deadline=clock.deadline(),
            where_defined=True,
        )  # fmt: skip
        if not verdict.proved:
            return verdict
        cases += verdict.cases
        assumed |= dict.fromkeys(verdict.assumed)
    return Verdict("proved", cases, "", tuple(assumed))


def _up_to(record: Record, clock: Clock) -> int:
    """For how many elements both sides are equal exactly."""
    signs = {**states.operand_signs(record, MOST_ELEMENTS)}
    for n in range(1, MOST_ELEMENTS + 1):
        pairs = on_elements(record, tuple(range(1, n + 1)), 1).values()
        if not equal(pairs, signs, deadline=clock.deadline()).proved:
            return n - 1
    return MOST_ELEMENTS
