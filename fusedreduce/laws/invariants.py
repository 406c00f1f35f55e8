"""Inductive invariants of a general form: facts that lift gives and merge keeps, such as n > 0.

Given    candidates f > 0, f >= 0 for every number of the state
Claim    those kept hold in every non-empty reachable state: lift has them (or is the identity
         itself) and merge keeps them, all together
Use      laws need hold on reachable states only; n > 0 makes b.n / (a.n + b.n) exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, call, const, names
from fusedreduce.laws import states
from fusedreduce.laws.cases import Case
from fusedreduce.laws.decide import in_every_case, same, soon
from fusedreduce.laws.refute import Trial, search
from fusedreduce.laws.settle import Clock

Fact = tuple[str, str]  # ("gt" or "ge", field): field > 0, field >= 0


@dataclass(frozen=True)
class Invariants:
    facts: frozenset[Fact]
    or_identity: bool = (
        False  # an element may lift to the identity itself, where they need not hold
    )

    def of(self, *some: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """The facts about given states."""
        ordered = sorted(self.facts)
        found = [call(op, state[f], const(0.0)) for state in some for op, f in ordered]
        return tuple(e for e in found if e.args[0].op != "const")

    def texts(self) -> list[str]:
        return [f"{f} {'>' if op == 'gt' else '>='} 0" for op, f in sorted(self.facts)]


def invariants(record: Record, clock: Clock) -> Invariants:
    """The largest set of candidates that is inductive (found by dropping what fails)."""
    facts = frozenset(c for c in _candidates(record) if _tried(record, c))
    lifted = states.lift(record, 1)
    signs = states.operand_signs(record, 1)
    facts = frozenset(
        c for c in facts if _holds(record, c, lifted, signs, (), clock, or_identity=True)
    )
    a, b = (states.symbols(record, side) for side in "ab")
    merged = states.merge(record, a, b)
    flags = flag_signs(record)
    while True:
        known = Invariants(facts).of(a, b)
        kept = frozenset(c for c in facts if _holds(record, c, merged, flags, known, clock))
        if kept == facts:
            break
        facts = kept
    strict = {f for op, f in facts if op == "gt"}
    kept = frozenset(c for c in facts if c[0] == "gt" or c[1] not in strict)
    always = all(_holds(record, c, lifted, signs, (), clock) for c in kept)
    return Invariants(kept, not always)


def flag_signs(record: Record) -> dict[str, str]:
    """Boolean fields of the states a, b, c."""
    flags = [f.name for f in record.fields if f.type == "bool"]
    return {f"{side}.{n}": "bool" for side in "abc" for n in flags}


def _candidates(record: Record) -> list[Fact]:
    numbers = [f.name for f in record.fields if f.type != "bool"]
    return [(op, n) for op in ("gt", "ge") for n in numbers]


def _tried(record: Record, fact: Fact) -> bool:
    """Does the fact hold on random folds that are not the identity?"""
    op, f = fact
    state = states.fold(record, (1, 2))
    start = states.identity(record)
    told = [call("ne", state[s], start[s]) for s in state]
    some = told[0]
    for t in told[1:]:
        some = call("or", some, t)
    trial = Trial(
        pairs=((call(op, state[f], const(0.0)), const(True)),),
        domains=states.elements(record, 2),
        require=(some,),
    )
    return search([trial], count=16).example is None


def _holds(
    record: Record,
    fact: Fact,
    state: Mapping[str, Expr],
    signs: Mapping[str, str],
    known: tuple[Expr, ...],
    clock: Clock,
    *,
    or_identity: bool = False,
) -> bool:
    op, f = fact
    start = states.identity(record)

    def ask(case: Case) -> str | None:
        if case.read(call(op, state[f], const(0.0))):
            return None
        if or_identity and all(same(case, case.read(state[s]), case.read(start[s])) for s in state):
            return None
        return "not kept"

    used = dict.fromkeys(n for e in (*state.values(), *known) for n in names(e))
    deadline = min(clock.end, soon(1.0))
    return in_every_case(ask, {n: signs.get(n, "") for n in used}, known, deadline=deadline).proved
