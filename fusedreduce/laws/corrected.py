"""The laws of the corrected form, settled in the order in which one helps the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, call, const, walk
from fusedreduce.ir.show import show, spell
from fusedreduce.laws import meaning as means
from fusedreduce.laws import running, states
from fusedreduce.laws.absence import absences
from fusedreduce.laws.certificate import Counterexample, Law, Status
from fusedreduce.laws.closure import answer
from fusedreduce.laws.complete import problem_of
from fusedreduce.laws.decide import Verdict
from fusedreduce.laws.definitions import definition
from fusedreduce.laws.neutral import neutrals
from fusedreduce.laws.obligations import Obligation, known_signs, of_corrections
from fusedreduce.laws.refute import Trial, search
from fusedreduce.laws.settle import Clock, settle, undecided

BY_MEANING = "follows from meaning: the merge of two two-pass states is the two-pass state of both"
REFUSED_S = 0.3


def laws_of_corrected(record: Record, clock: Clock) -> list[Law]:
    """Every law that applies to a corrected form."""
    own = [_with_advice(record, settle(o, clock)) for o in of_corrections(record)]
    meaning = _meaning(record, own, clock)
    if meaning.status in (Status.PROVED, Status.CHECKED):
        own = [_on_reachable_states(record, law, meaning.status) for law in own]
    laws = [*_identities(record, clock), _associativity(record, meaning, clock), *own]
    laws += [*absences(record, clock), *neutrals(record, clock), meaning]
    if record.functions.definition is not None:
        laws.append(definition(record, clock))
    return laws


# ---- meaning -------------------------------------------------------------------------------------


def _meaning(record: Record, own: Sequence[Law], clock: Clock) -> Law:
    o = means.meaning(record)
    found = search(o.trials, count=24)
    if found.example is not None:
        field = _culprit(record, own, found.example.left[0].split(" ")[0])
        line = record.by_name[field].line if field in record.by_name else o.line
        return Law(
            o.law, "", Status.REFUTED, o.statement, f"counterexample in trial {found.tried}",
            found.example, line, _advice(record, field, found.example),
        )  # fmt: skip
    if not found.tried:
        return undecided(o, 0, Verdict("undefined"))
    needed = [law for law in own if law.name in ("faithfulness", "additivity")]
    if all(law.status is Status.PROVED for law in needed):
        how = (
            "faithful on one element and additive, so for every n"
            if needed
            else "sums and extremes only"
        )
        return Law(
            o.law, "", Status.PROVED, o.statement, f"{how}; {found.tried} trials agree", line=o.line
        )
    verdict = means.by_power_sums(record, clock)
    if verdict.proved:
        clock.assumed |= dict.fromkeys(verdict.assumed)
        how = f"exact for every n, by power sums; {found.tried} trials agree"
        return Law(o.law, "", Status.PROVED, o.statement, how, line=o.line)
    return undecided(o, found.tried, verdict)


def _culprit(record: Record, own: Sequence[Law], slot: str) -> str:
    """The field whose correction is to blame for a wrong slot."""
    refuted = [law.field for law in own if law.status is Status.REFUTED]
    return slot if slot in refuted or not refuted else refuted[0]


def _on_reachable_states(record: Record, law: Law, known: Status) -> Law:
    """At a bound reference a correction need only be right at the reference's own value."""
    if law.status is Status.PROVED or not any(r.is_bound for r in record.all_references(law.field)):
        return law
    return replace(
        law,
        status=known,
        how="holds at the field's own reference (by meaning), not at every value of it",
        counterexample=None,
        advice="",
    )


def _associativity(record: Record, meaning: Law, clock: Clock) -> Law:
    """Given   states a, b, c
    Claim   merge(merge(a, b), c) = merge(a, merge(b, c))
    Use     tiles, lanes and chunks may be merged in any grouping.
    """
    statement = "merge(merge(a, b), c) = merge(a, merge(b, c))"
    if meaning.status is Status.PROVED:
        return Law("associativity", "", Status.PROVED, statement, BY_MEANING, line=record.line)
    if meaning.status is Status.REFUTED:  # it is refused anyway: no long search for a proof
        clock = replace(clock, law_s=REFUSED_S)
    a, b, c = (running.lift(record, i) for i in (1, 2, 3))
    x, y, z = (states.symbols(record, side) for side in "abc")
    signs = {**known_signs(record), **_state_signs(record)}
    return settle(
        Obligation(
            "associativity",
            "",
            statement,
            (_grouped(record, a, b, c),),
            tuple(
                zip(
                    states.values(record, states.merge(record, states.merge(record, x, y), z)),
                    states.values(record, states.merge(record, x, states.merge(record, y, z))),
                    strict=True,
                )
            ),
            signs,
            line=record.line,
        ),
        clock,
    )


def _grouped(record: Record, a: states.State, b: states.State, c: states.State) -> Trial:
    left = running.merge(record, running.merge(record, a, b), c)
    right = running.merge(record, a, running.merge(record, b, c))
    return Trial(
        pairs=tuple(zip(states.values(record, left), states.values(record, right), strict=True)),
        domains=states.elements(record, 3),
        titles=states.labels(record),
        shown=means.shown_elements(record, 3),
        sides=("{} of merge(merge(a, b), c)", "{} of merge(a, merge(b, c))"),
    )


def _state_signs(record: Record) -> dict[str, str]:
    flags = [f.name for f in record.fields if f.type == "bool"]
    return {f"{side}.{n}": "bool" for side in "abc" for n in flags}


# ---- identity ------------------------------------------------------------------------------------


def _identities(record: Record, clock: Clock) -> list[Law]:
    """Given   the identity e of a field
    Claim   e joined with any contribution is that contribution
    Use     masked and padded elements, empty chunks and first tiles hold e.
    """
    laws = [_ordered(record, f, clock) for f in record.fields if f.kind in ("Max", "Min")]
    wrong = [law for law in laws if law.status is not Status.PROVED]
    how = "0 + s = s, max(-inf, m) = m; of a side with no element the other is returned"
    statement = "merge(identity, s) = s = merge(s, identity)"
    return wrong or [Law("identity", "", Status.PROVED, statement, how, line=record.line)]


def _ordered(record: Record, f: Field, clock: Clock) -> Law:
    """The identity of a Max is not above any contribution, of a Min not below any."""
    assert f.term is not None
    assert f.identity is not None
    op, word = ("maximum", "max") if f.kind == "Max" else ("minimum", "min")
    start = const(f.identity)
    contribution = states.at_element(record, f.term, 1)
    joined = call(op, start, contribution)
    law = settle(
        Obligation(
            "identity",
            f.name,
            f"{word}({f.identity:g}, {show(f.term)}) = {show(f.term)} for every element",
            (
                Trial(
                    pairs=((joined, contribution),),
                    domains=states.elements(record, 1),
                    shown=means.shown_elements(record, 1),
                    sides=(f"{word}({f.identity:g}, {show(f.term)})", show(f.term)),
                ),
            ),
            ((joined, contribution),),
            states.operand_signs(record, 1),
            line=f.line,
        ),
        clock,
    )
    usual = "-inf" if f.kind == "Max" else "inf"
    return replace(
        law,
        advice=f'leave `identity` out ({usual}), or state the domain: domain = {{"x": "positive"}}',
    )


# ---- what to change ------------------------------------------------------------------------------


def _with_advice(record: Record, law: Law) -> Law:
    if law.status is not Status.REFUTED:
        return law
    return replace(law, advice=_advice(record, law.field, law.counterexample))


def _advice(record: Record, field: str, example: Counterexample | None) -> str:
    """The correction that would be right, if it can be derived; or what is missing beside it."""
    f = record.by_name.get(field)
    if f is None or f.correct is None:
        return ""
    found = answer(problem_of(record, f))
    if found.correction is None:
        return "leave `correct` out: the refusal then says what is missing"
    if found.correction is f.correct and example and "nan" in (example.left[1], example.right[1]):
        return (
            f"`{f.name}` has no value where `{f.reads[0]}` is as here: state that value of "
            f"`{f.reads[0]}` as identity=, and as neutral= what is read instead (0.0 and 1.0, say)"
        )
    plain = {n: show(n) for n in _variables(found.correction)}
    text = spell(found.correction, "torch", plain)
    return f"leave `correct` out, or write correct=lambda {f.name}, old, new: {text}"


def _variables(e: Expr) -> list[Expr]:
    return [n for n in walk(e) if n.op == "var"]
