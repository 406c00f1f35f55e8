"""The identity of a general form, and the identity that would do where the stated one does not."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from fusedreduce.declare.record import Record
from fusedreduce.laws import states
from fusedreduce.laws.certificate import Counterexample, Law, Status
from fusedreduce.laws.coordinates import Known
from fusedreduce.laws.merges import Claim, settled, tried
from fusedreduce.laws.refute import digits, value
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.states import State

_USUAL = (0.0, 1.0, -math.inf, math.inf)
_MOST = 1024  # identities looked at for the advice


def identity(known: Known, clock: Clock) -> Law:
    """Given   the identity e and a non-empty state s
    Claim   merge(e, s) = s = merge(s, e), and merge(e, e) = e
    Use     masked and padded elements, empty chunks and first tiles hold e.
    """
    record = known.record
    nothing = of_nothing(record)
    if nothing is not None:
        return nothing
    law = settled(known, (c := claim(record)), tried(record, c), clock)
    if law.counterexample is None:
        return law
    return replace(law, line=record.fields[0].line, advice=_advice(record))


def claim(record: Record) -> Claim:
    """merge(e, s) and merge(s, e) beside s and s."""
    start = states.identity(record)

    def sides(s: State) -> tuple[State, State]:
        ways = {"": states.merge(record, start, s), "right.": states.merge(record, s, start)}
        merged = {f"{way}{n}": e for way, state in ways.items() for n, e in state.items()}
        return merged, {f"{way}{n}": e for way in ways for n, e in s.items()}

    return Claim(
        "identity",
        "merge(identity, s) = s = merge(s, identity)",
        sides,
        1,
        ("{} of s merged with the identity", "{} of s"),
        lone=True,
        strict=not any(f.has_infinite_identity for f in record.fields),
    )


def of_nothing(record: Record) -> Law | None:
    """merge(e, e) = e, evaluated; None if it holds.

    Where e holds an infinity and the merge has no value (-inf - -inf), rule (e) of the edges
    decides: a side with no element is not merged. A finite e must be merged without 0 / 0.
    """
    start = states.identity(record)
    infinite = any(f.has_infinite_identity for f in record.fields)
    for name, e in states.merge(record, start, start).items():
        got, want = value(e), value(start[name])
        if got == want or (got != got and infinite):
            continue
        guard = "guard the division, as in torch.where(n > 0, b.n / n, 0.0)"
        example = Counterexample(
            (),
            (f"{name} of merge(identity, identity)", digits(got)),
            (f"{name} of identity", digits(want)),
        )
        return Law(
            "identity", "", Status.REFUTED, "merge(identity, identity) = identity", "evaluated",
            example, record.fields[0].line, guard if got != got else _advice(record),
        )  # fmt: skip
    return None


def _advice(record: Record) -> str:
    """The identity that would do, among the usual numbers, fewest changes first."""
    fields = record.fields
    choices = [(False, True) if f.type == "bool" else (f.identity, *_USUAL) for f in fields]
    some = list(itertools.islice(itertools.product(*choices), _MOST))
    some.sort(key=lambda i: sum(a != f.identity for a, f in zip(i, fields, strict=True)))
    for numbers in some:
        changed = (replace(f, identity=v) for f, v in zip(fields, numbers, strict=True))
        other = replace(record, fields=tuple(changed))
        if of_usual(other):
            return f"state the identity fr.state({', '.join(_told(v) for v in numbers)})"
    return "no state of 0, 1, -inf and inf is an identity of this merge: change the merge"


def of_usual(record: Record) -> bool:
    """Does the stated identity stand a few trials?"""
    return tried(record, claim(record), count=4).example is None


def _told(v: float | None) -> str:
    return f'float("{v}")' if v is not None and math.isinf(float(v)) else repr(v)
