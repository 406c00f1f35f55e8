"""A law of a merge: tried on folds of elements, proved on symbols with invariants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fusedreduce import trace
from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, call
from fusedreduce.laws import states
from fusedreduce.laws.certificate import Law, Status
from fusedreduce.laws.coordinates import Known
from fusedreduce.laws.decide import Verdict, equal
from fusedreduce.laws.invariants import flag_signs
from fusedreduce.laws.obligations import Obligation
from fusedreduce.laws.refute import Search, Trial, search
from fusedreduce.laws.settle import Clock, undecided
from fusedreduce.laws.states import State
from fusedreduce.laws.tropical import equal_forms


@dataclass(frozen=True)
class Claim:
    """left = right for the given number of states; `sides` builds both.

    words  what the two sides are; `{}` takes the name of a field
    lone   all states are tried as single elements too, not only the first as a fold of two
    """

    law: str
    statement: str
    sides: Callable[..., tuple[State, State]]
    count: int
    words: tuple[str, str]
    lone: bool = False
    strict: bool = False

    def trials(self, record: Record) -> list[Trial]:
        """Short states first; in those of three elements the higher moments differ from 0."""
        short = [((1, 2), (3,), (4,)), *([((1,), (3,), (4,))] if self.lone else [])]
        return [self.trial(record, some[: self.count]) for some in (*short, _LONG)]

    def trial(self, record: Record, elements: Sequence[Sequence[int]]) -> Trial:
        """The law on folds of these elements."""
        some = [states.fold(record, which) for which in elements]
        left, right = self.sides(*some)
        names = "abc" if self.count > 1 else "s"
        return Trial(
            pairs=tuple((left[n], right[n]) for n in left),
            domains=states.elements(record, max(map(max, elements))),
            titles=tuple(n.removeprefix("right.") for n in left),
            shown=tuple(
                (f"{side}.{n}", e)
                for side, s in zip(names, some, strict=False)
                for n, e in s.items()
            ),
            sides=self.words,
            strict=self.strict,
        )


_LONG = ((1, 2, 3), (4, 5, 6), (7, 8, 9))


def merge_line(record: Record) -> str:
    """Where the user wrote the merge."""
    return trace.function_line(record.functions.merge) if record.functions.merge else record.line


def settled(known: Known, claim: Claim, found: Search, clock: Clock) -> Law:
    """The law after its trials: refuted, proved, or honestly open."""
    record = known.record
    o = Obligation(claim.law, "", claim.statement, (), line=merge_line(record))
    if found.example is not None:
        how = f"counterexample in trial {found.tried}"
        return Law(claim.law, "", Status.REFUTED, claim.statement, how, found.example, o.line)
    verdict = proved(known, claim, clock) if found.tried else Verdict("undefined")
    if not verdict.proved:
        return undecided(o, found.tried, verdict)
    clock.assumed |= dict.fromkeys(verdict.assumed)
    facts = known.invariants.texts()
    given = f" with {', '.join(facts)}" if facts else ""
    cases = f"{verdict.cases} case{'s' * (verdict.cases != 1)}"
    how = f"exact{given}, {cases}; {found.tried} trials agree"
    return Law(claim.law, "", Status.PROVED, claim.statement, how, line=o.line)


def tried(record: Record, claim: Claim, count: int = 40) -> Search:
    return search(claim.trials(record), count=count)


def proved(known: Known, claim: Claim, clock: Clock) -> Verdict:
    """The law on every non-empty state: symbols, or infinities that lift puts."""
    record, cases, assumed = known.record, 0, dict[str, None]()
    choices = [_variants(record, side) for side in "abc"[: claim.count]]
    for some in itertools.product(*choices):
        left, right = claim.sides(*some)
        pairs = [(left[n], right[n]) for n in left]
        if equal_forms(pairs):
            cases += 1
            continue
        facts = (*known.invariants.of(*some), *_distinct(record, some))
        verdict = equal(pairs, flag_signs(record), facts, deadline=clock.deadline())
        if not verdict.proved:
            return verdict
        cases += verdict.cases
        assumed |= dict.fromkeys(verdict.assumed)
    return Verdict("proved", cases, "", tuple(assumed))


def _variants(record: Record, side: str) -> list[State]:
    """A non-empty state: every field a symbol, or the infinity that lift itself puts there."""
    symbols = states.symbols(record, side)
    choices = []
    for f, e in zip(record.fields, record.lift, strict=True):
        infinite = e.op == "const" and isinstance(e.value, float) and math.isinf(e.value)
        choices.append((symbols[f.name], e) if infinite else (symbols[f.name],))
    order = [f.name for f in record.fields]
    return [dict(zip(order, some, strict=True)) for some in itertools.product(*choices)]


def _distinct(record: Record, some: Sequence[Mapping[str, Expr]]) -> tuple[Expr, ...]:
    """Different elements have different indices: a field that lift fills with one never ties."""
    domain = dict(record.domain)
    fields = [
        f.name
        for f, e in zip(record.fields, record.lift, strict=True)
        if e.op == "var" and (e.value == "j" or domain.get(str(e.value)) == "index")
    ]
    return tuple(call("ne", a[n], b[n]) for n in fields for a, b in itertools.combinations(some, 2))
