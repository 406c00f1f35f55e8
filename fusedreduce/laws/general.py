"""The laws of the general form: identity, associativity, commutativity (a fact), definition."""

from __future__ import annotations

from dataclasses import replace

from fusedreduce.declare.record import Record
from fusedreduce.ir.show import show
from fusedreduce.laws import states
from fusedreduce.laws.certificate import Law, Status
from fusedreduce.laws.coordinates import Coordinate, Known, coordinates
from fusedreduce.laws.definitions import definition
from fusedreduce.laws.identities import identity
from fusedreduce.laws.invariants import Invariants, invariants
from fusedreduce.laws.merges import Claim, merge_line, proved, settled, tried
from fusedreduce.laws.refute import Search
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.states import State


def laws_of_general(record: Record, clock: Clock) -> tuple[list[Law], Known]:
    """Every law that applies to a general form, and what is known of its states."""
    known, first = known_of(record, clock)
    grouped = tried(record, grouping(record))
    if grouped.example is None:
        known = replace(known, coordinates=coordinates(record, known.invariants, clock))
    laws = [first, _associativity(known, grouped, clock)]
    if record.functions.definition is not None:
        laws.append(definition(record, clock, known))
    return laws, known


def known_of(record: Record, clock: Clock) -> tuple[Known, Law]:
    """The invariants of non-empty states, and the law of the identity.

    NOTE where an element may lift to the identity itself, the invariants are inductive only with
    merge(identity, s) = s: without that law there are none. (A mutant of the 2-norm showed it.)
    """
    known = Known(record, invariants(record, clock), None)
    law = identity(known, clock)
    if known.invariants.or_identity and law.status is not Status.PROVED:
        known = Known(record, Invariants(frozenset()), None)
    return known, law


def grouping(record: Record) -> Claim:
    """Given   non-empty states a, b, c
    Claim   merge(merge(a, b), c) = merge(a, merge(b, c))
    Use     tiles, lanes and chunks may be merged in any grouping.
    """

    def sides(a: State, b: State, c: State) -> tuple[State, State]:
        left = states.merge(record, states.merge(record, a, b), c)
        return left, states.merge(record, a, states.merge(record, b, c))

    return Claim(
        "associativity",
        "merge(merge(a, b), c) = merge(a, merge(b, c))",
        sides,
        3,
        ("{} of merge(merge(a, b), c)", "{} of merge(a, merge(b, c))"),
    )


def _associativity(known: Known, found: Search, clock: Clock) -> Law:
    """By additive coordinates if there are any, else by cases."""
    claim = grouping(known.record)
    if found.example is None and known.coordinates is not None:
        psi = ", ".join(_told(c) for c in known.coordinates)
        how = f"the merge is addition of {psi}; {found.tried} trials agree"
        line = merge_line(known.record)
        return Law(claim.law, "", Status.PROVED, claim.statement, how, line=line)
    law = settled(known, claim, found, clock)
    if law.counterexample is None:
        return law
    advice = "a merge must not depend on the grouping: keep sums and counts, and divide in finish"
    return Law(
        law.name, "", law.status, law.statement, law.how, law.counterexample, law.line, advice
    )


def _told(c: Coordinate) -> str:
    return f"{c.extreme} of {c.field}" if c.extreme else show(c.psi)


def commutative(known: Known, clock: Clock) -> bool | None:
    """Given   non-empty states a, b
    Claim   merge(a, b) = merge(b, a)
    Use     reductions that reorder; a fact, no law: True, False, or None when it is open.
    """
    record = known.record

    def sides(a: State, b: State) -> tuple[State, State]:
        return states.merge(record, a, b), states.merge(record, b, a)

    claim = Claim("commutativity", "", sides, 2, ("{}", "{}"), lone=True)
    if tried(record, claim).example is not None:
        return False
    if known.coordinates is not None:
        return True
    return True if proved(known, claim, clock).proved else None
