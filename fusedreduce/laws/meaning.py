"""Meaning: streaming equals the two-pass value for every n."""

from __future__ import annotations

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, var
from fusedreduce.laws import powers, running, states
from fusedreduce.laws.decide import Verdict, equal
from fusedreduce.laws.obligations import Obligation, Pairs, known_signs, moved
from fusedreduce.laws.refute import Trial
from fusedreduce.laws.separate import NotSeparable
from fusedreduce.laws.settle import Clock


def meaning(record: Record) -> Obligation:
    """Given   elements X and Y, the two-pass state phi of each
    Claim   merge(phi(X), phi(Y)) = phi(X and Y), and lift(x) = phi(x)
    Use     tiles, chunks, devices: any tree of merges gives the two-pass value, for every n.
    """
    trials = []
    for left, right in (((1,), (2,)), ((1, 2), (3,)), ((1,), (2, 3)), ((1, 2, 3), (4, 5, 6))):
        whole = (*left, *right)
        merged = running.merge(record, running.fold(record, left), running.fold(record, right))
        two_pass = running.direct(record, whole)
        pairs = zip(states.values(record, merged), states.values(record, two_pass), strict=True)
        trials.append(
            Trial(
                pairs=tuple(pairs),
                domains=states.elements(record, len(whole)),
                titles=states.labels(record),
                shown=shown_elements(record, len(whole)),
                sides=("{} by merging", "{} in two passes"),
                lost=True,
            )
        )
    return Obligation(
        "meaning",
        "",
        "merging partial states gives the two-pass value: the sums at the final references",
        tuple(trials),
        line=record.line,
    )


def shown_elements(record: Record, count: int) -> tuple[tuple[str, Expr], ...]:
    return tuple((n, var(n)) for n, _ in states.elements(record, count))


def by_power_sums(record: Record, clock: Clock) -> Verdict:
    """The claim of `meaning` in free symbols: power sums of both sides, and free references."""
    try:
        e = powers.expand(
            powers.terms_of(record), powers.rows_of(record), powers.operands_of(record)
        )
    except NotSeparable as error:
        return Verdict("unsupported", why=str(error).replace("old.", ""))
    sums = {side: e.symbols(side) for side in ("a", "b")}
    sums["new"] = powers.joined(sums["a"], sums["b"])
    phi = {side: powers.state_of(record, e, s, side) for side, s in sums.items()}
    pairs: Pairs = tuple(
        (
            moved(f, phi["a"], phi["a"], phi["new"]) + moved(f, phi["b"], phi["b"], phi["new"]),
            phi["new"][f.name],
        )
        for f in record.fields
        if f.correct is not None
    )
    known = known_signs(record)
    signs = {**e.known("a"), **e.known("b")}
    for f in record.fields:
        signs |= {f"{side}.{f.name}": known.get(f"old.{f.name}", "") for side in ("a", "b", "new")}
    return e.readable(equal(pairs, signs, deadline=clock.deadline()))
