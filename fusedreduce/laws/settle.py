"""One obligation settled: numbers first, then the exact decision, then an honest word."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedreduce.laws.certificate import Counterexample, Law, Status
from fusedreduce.laws.decide import Verdict, equal, soon
from fusedreduce.laws.obligations import Obligation
from fusedreduce.laws.refute import search

LAW_S = 5.0
BY_ROUNDING = "agree up to the rounding of a literal"


@dataclass
class Clock:
    """When to stop: the whole proof, and each law of it."""

    end: float
    law_s: float = LAW_S
    assumed: dict[str, None] = field(default_factory=dict)

    def deadline(self) -> float:
        return min(self.end, soon(self.law_s))


def settle(o: Obligation, clock: Clock) -> Law:
    """Refuted by the first counterexample; else Proved; else Checked or Unknown, and why."""
    found = search(o.trials)
    if found.example is not None:
        return _law(o, Status.REFUTED, f"counterexample in trial {found.tried}", found.example)
    verdict = (
        equal(o.pairs, o.signs, o.facts, deadline=clock.deadline()) if o.pairs else Verdict("open")
    )
    if verdict.proved and not verdict.cases:
        return _law(o, Status.PROVED, "there is no such element")
    if verdict.proved and o.trials and not found.tried:
        verdict = Verdict("undefined")
    if verdict.proved:
        clock.assumed |= dict.fromkeys(verdict.assumed)
        cases = "" if verdict.cases == 1 else f", {verdict.cases} cases"
        return _law(o, Status.PROVED, f"exact{cases}; {found.tried} trials agree")
    return undecided(o, found.tried, verdict, found.rounded)


def undecided(o: Obligation, tried: int, verdict: Verdict, rounded: int = 0) -> Law:
    why = f"{verdict.status}: {verdict.why}" if verdict.why else verdict.status
    why += f"; {rounded} trials {BY_ROUNDING}" if rounded else ""
    if tried:
        return _law(o, Status.CHECKED, f"{tried} trials at 40 digits agree; not proved ({why})")
    return _law(o, Status.UNKNOWN, f"no trial had a value; not proved ({why})")


def _law(o: Obligation, status: Status, how: str, example: Counterexample | None = None) -> Law:
    return Law(o.law, o.field, status, o.statement, how, example, o.line)
