"""The laws of the general form: identity, associativity, commutativity (a fact), definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusedreduce import trace
from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, call
from fusedreduce.ir.show import show
from fusedreduce.laws import meaning as means
from fusedreduce.laws import states
from fusedreduce.laws.certificate import Counterexample, Law, Status
from fusedreduce.laws.coordinates import Coordinate, coordinates
from fusedreduce.laws.decide import Verdict, equal
from fusedreduce.laws.invariants import Invariants, flag_signs, invariants
from fusedreduce.laws.obligations import Obligation
from fusedreduce.laws.refute import Trial, digits, search, value
from fusedreduce.laws.settle import Clock, undecided
from fusedreduce.laws.states import State
from fusedreduce.laws.tropical import equal_forms

Sides = Callable[..., tuple[State, State]]


@dataclass(frozen=True)
class Known:
    """What is known of the states before a law is asked."""

    record: Record
    invariants: Invariants
    coordinates: tuple[Coordinate, ...] | None


def laws_of_general(record: Record, clock: Clock) -> tuple[list[Law], bool | None]:
    """Every law that applies to a general form, and whether its merge commutes."""
    laws = [_identity_of_nothing(record)]
    found = invariants(record, clock)
    associative = search(
        [_trial(record, _grouping(record), 3, ("merge(merge(a, b), c)", "merge(a, merge(b, c))"))]
    )
    good = associative.example is None
    known = Known(record, found, coordinates(record, found, clock) if good else None)
    laws.append(_identity(known, clock))
    laws.append(_associativity(known, associative.example, associative.tried, clock))
    commutative = _commutative(known, clock)
    if record.functions.definition is not None:
        laws.append(means.definition(record, clock))
    return _one_identity(laws), commutative


def _one_identity(laws: Sequence[Law]) -> list[Law]:
    """The law for nothing merged with nothing is told only if it fails."""
    nothing, identity, *rest = laws
    if nothing.status is Status.REFUTED:
        return [nothing, *rest]
    return [identity, *rest]


# ---- the laws --------------------------------------------------------------------------------------------


def _identity_of_nothing(record: Record) -> Law:
    """Given   the identity e
    Claim   merge(e, e) = e
    Use     empty chunks. Where e holds an infinity, rule (e) of the edges decides: e is not merged.
    """
    start = states.identity(record)
    merged = states.merge(record, start, start)
    statement = "merge(identity, identity) = identity"
    infinite = any(f.has_infinite_identity for f in record.fields)
    for name, e in merged.items():
        got, want = value(e), value(start[name])
        if (got != got and infinite) or got == want:
            continue
        advice = (
            "guard the division: torch.where(n > 0, b.n / n, 0.0)"
            if got != got
            else "check fr.state(...)"
        )
        return Law(
            "identity", "", Status.REFUTED, statement, "evaluated",
            Counterexample((), (f"{name} of merge(identity, identity)", digits(got)), (f"{name} of identity", digits(want))),
            record.fields[0].line, advice,
        )  # fmt: skip
    return Law("identity", "", Status.PROVED, statement, "evaluated", line=record.line)


def _identity(known: Known, clock: Clock) -> Law:
    """Given   the identity e and a non-empty state s
    Claim   merge(e, s) = s = merge(s, e)
    Use     masked and padded elements, empty chunks and first tiles hold e.
    """
    record = known.record
    statement = "merge(identity, s) = s = merge(s, identity)"
    law = _settled(
        known, "identity", statement, [_identity_trial(record)], _both_sides(record), 1, clock
    )
    if law.counterexample is None:
        return law
    return replace(law, line=record.fields[0].line, advice=_identity_advice(record))


def _identity_advice(record: Record) -> str:
    """The identity that would do, looked for among the usual numbers."""
    fields = record.fields
    choices = [(f.identity, *_USUAL) if f.type != "bool" else (False, True) for f in fields]
    some = itertools.islice(itertools.product(*choices), 1024)
    for identities in sorted(
        some, key=lambda i: sum(a != f.identity for a, f in zip(i, fields, strict=True))
    ):
        tried = replace(record, fields=tuple(
            replace(f, identity=v) for f, v in zip(fields, identities, strict=True)
        ))  # fmt: skip
        if search([_identity_trial(tried)], count=4).example is None:
            told = ", ".join(
                f'float("{v}")' if math.isinf(float(v)) else repr(v)
                for v in identities
                if v is not None
            )
            return f"state the identity fr.state({told})"
    return "no state of 0, 1, -inf and inf is an identity of this merge: change the merge"


_USUAL = (0.0, 1.0, -math.inf, math.inf)


def _both_sides(record: Record) -> Sides:
    """merge(e, s) and merge(s, e) beside s and s."""
    start = states.identity(record)

    def sides(s: State) -> tuple[State, State]:
        ways = {"l": states.merge(record, start, s), "r": states.merge(record, s, start)}
        merged = {f"{way}.{n}": e for way, state in ways.items() for n, e in state.items()}
        return merged, {f"{way}.{n}": e for way in ways for n, e in s.items()}

    return sides


def _identity_trial(record: Record) -> Trial:
    trial = _trial(record, _both_sides(record), 1, ("{} of merge(identity, s)", "{} of s"))
    titles = (*states.labels(record), *states.labels(record))
    infinite = any(f.has_infinite_identity for f in record.fields)
    return replace(trial, titles=titles, strict=not infinite)


def _grouping(record: Record) -> Sides:
    def sides(a: State, b: State, c: State) -> tuple[State, State]:
        left = states.merge(record, states.merge(record, a, b), c)
        return left, states.merge(record, a, states.merge(record, b, c))

    return sides


def _associativity(known: Known, example: Counterexample | None, tried: int, clock: Clock) -> Law:
    """Given   non-empty states a, b, c
    Claim   merge(merge(a, b), c) = merge(a, merge(b, c))
    Use     tiles, lanes and chunks may be merged in any grouping.
    """
    statement = "merge(merge(a, b), c) = merge(a, merge(b, c))"
    line = merge_line(known.record)
    if example is not None:
        advice = (
            "a merge must not depend on the grouping: keep sums and counts, and divide in finish"
        )
        return Law(
            "associativity",
            "",
            Status.REFUTED,
            statement,
            f"counterexample in trial {tried}",
            example,
            line,
            advice,
        )
    if known.coordinates is not None:
        psi = ", ".join(_told(c) for c in known.coordinates)
        return Law(
            "associativity",
            "",
            Status.PROVED,
            statement,
            f"the merge is addition of {psi}; {tried} trials agree",
            line=line,
        )
    return _settled(known, "associativity", statement, [], _grouping(known.record), 3, clock, tried)


def merge_line(record: Record) -> str:
    return trace.function_line(record.functions.merge) if record.functions.merge else record.line


def _told(c: Coordinate) -> str:
    return f"{c.extreme} of {c.field}" if c.extreme else show(c.psi)


def _commutative(known: Known, clock: Clock) -> bool | None:
    """merge(a, b) = merge(b, a), which unordered reductions need: True, False, or None (open)."""
    record = known.record

    def sides(a: State, b: State) -> tuple[State, State]:
        return states.merge(record, a, b), states.merge(record, b, a)

    if (
        search([_trial(record, sides, 2, ("merge(a, b)", "merge(b, a)"))], count=60).example
        is not None
    ):
        return False
    if known.coordinates is not None:
        return True
    return True if _proved(known, sides, 2, clock).proved else None


# ---- how they are settled --------------------------------------------------------------------------------


def _trial(record: Record, sides: Sides, count: int, words: tuple[str, str]) -> Trial:
    """The law on folds: of one element each, or of two for the first state."""
    lifts = [states.fold(record, (1, 2)), *(states.lift(record, i) for i in range(3, count + 2))]
    left, right = sides(*lifts)
    told = [w if "{}" in w else "{} of " + w for w in words]
    return Trial(
        pairs=tuple((left[n], right[n]) for n in left),
        domains=states.elements(record, count + 1),
        titles=tuple(n for n in left),
        shown=tuple(
            (f"{side}.{n}", e)
            for side, s in zip(("abc" if count > 1 else "s"), lifts, strict=False)
            for n, e in s.items()
        ),
        sides=(told[0], told[1]),
    )


def _settled(
    known: Known, name: str, statement: str, trials: Sequence[Trial], sides: Sides, count: int, clock: Clock,
    tried: int = 0,
) -> Law:  # fmt: skip
    o = Obligation(name, "", statement, tuple(trials), line=merge_line(known.record))
    found = search(trials)
    if found.example is not None:
        return Law(
            name,
            "",
            Status.REFUTED,
            statement,
            f"counterexample in trial {found.tried}",
            found.example,
            o.line,
        )
    verdict = _proved(known, sides, count, clock)
    tried += found.tried
    if not verdict.proved:
        return undecided(o, tried, verdict)
    clock.assumed |= dict.fromkeys(verdict.assumed)
    facts = known.invariants.texts()
    given = f" with {', '.join(facts)}" if facts else ""
    how = f"exact{given}, {verdict.cases} case{'s' * (verdict.cases != 1)}; {tried} trials agree"
    return Law(name, "", Status.PROVED, statement, how, line=o.line)


def _proved(known: Known, sides: Sides, count: int, clock: Clock) -> Verdict:
    """The law on every non-empty state: symbols with the invariants, or the infinities that lift puts."""
    record, cases, assumed = known.record, 0, dict[str, None]()
    choices = [_variants(record, side) for side in "abc"[:count]]
    for some in itertools.product(*choices):
        left, right = sides(*some)
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
