"""The stated definition: finish of any merge is what the user's two-pass formula says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusedreduce import trace
from fusedreduce.declare.record import Record
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import Expr, substitute, var
from fusedreduce.laws import powers, running, states
from fusedreduce.laws.certificate import Law, Status
from fusedreduce.laws.coordinates import Known, definition_by_coordinates
from fusedreduce.laws.decide import Verdict, equal
from fusedreduce.laws.meaning import shown_elements
from fusedreduce.laws.obligations import Obligation, known_signs
from fusedreduce.laws.powers import Expansion
from fusedreduce.laws.refute import Search, Trial, search
from fusedreduce.laws.separate import NotSeparable
from fusedreduce.laws.settle import BY_ROUNDING, Clock, undecided
from fusedreduce.vectors import Definition, Outputs, of_elements, population

TRIED = (1, 2, 3, 5)  # numbers of elements for trials
MOST_ELEMENTS = 3  # and for exact arguments when there is none for every n


def stated(record: Record) -> tuple[Definition | None, dict[int, Outputs]]:
    """The definition for any number of elements (None: it needs to know), and for TRIED."""
    fn = record.functions.definition
    assert fn is not None
    domain = dict(record.domain)
    every = (*record.operands, *record.payloads)
    wanted = trace.signature(fn, f"{record.name}.definition").parameters
    strange = [n for n in wanted if n not in every]
    if strange:
        raise DeclarationError(
            message(
                f"definition takes `{strange[0]}`, which is no operand",
                expected=f"operands: {', '.join(every)}",
                where=trace.function_line(fn),
            )
        )
    kinds = {
        n: {"int": "int", "index": "int", "bool": "bool"}.get(domain.get(n, ""), "float")
        for n in wanted
    }
    small = {k: of_elements(fn, kinds, states.operand, k) for k in TRIED}
    try:
        return population(fn, kinds), small
    except DeclarationError:
        return None, small


def definition(record: Record, clock: Clock, known: Known | None = None) -> Law:
    """Given   the user's two-pass formula D on all elements
    Claim   finish(merge of lifts of X) = D(X)
    Use     the only law that says what a general form computes.
    """
    fn = record.functions.definition
    assert fn is not None
    o = Obligation(
        "definition",
        "",
        "the finish of any merge is what `definition` says",
        (),
        line=trace.function_line(fn),
    )
    try:
        whole, small = stated(record)
        trials = [_on_elements(record, k, outputs) for k, outputs in small.items()]
    except DeclarationError as error:
        return Law(
            o.law, "", Status.UNKNOWN, o.statement, str(error).replace("\n", ";"), line=o.line
        )
    outputs = small[TRIED[0]]
    found = search(trials, count=24)
    if found.example is not None:
        how = f"counterexample in trial {found.tried}"
        blame = "finish" if record.form == "corrected" else "merge, or finish"
        advice = f"compare both sides: change {blame}, or the definition"
        return Law(o.law, "", Status.REFUTED, o.statement, how, found.example, o.line, advice)
    if any(n not in record.outputs for n, _ in outputs):
        why = _strange(record, outputs).replace("\n", ";")
        return Law(o.law, "", Status.UNKNOWN, o.statement, why, line=o.line)
    blank = [t for t in trials[0].titles if t not in found.valued]
    if blank:
        why = f"{', '.join(blank)} had no value in any trial"
        return undecided(o, 0, Verdict("undefined", why=why))
    verdict = Verdict("open", why="it is written for a known number of elements")
    if whole is not None:
        verdict = for_every_n(record, whole, clock, known)
        if verdict.proved:
            clock.assumed |= dict.fromkeys(verdict.assumed)
            how = f"exact for every n, by power sums; {found.tried} trials agree"
            how += _uncovered(record, outputs)
            return Law(o.law, "", Status.PROVED, o.statement, how, line=o.line)
    return _up_to(record, small, o, found, verdict, clock)


def _uncovered(record: Record, outputs: Outputs) -> str:
    """Words about the outputs that the definition leaves out."""
    left = [n or "the result" for n in record.outputs if n not in dict(outputs)]
    return f"; it says nothing of {', '.join(left)}" if left else ""


def _strange(record: Record, outputs: Outputs) -> str:
    """The message about outputs that finish does not return."""
    strange = [n or "a bare result" for n, _ in outputs if n not in record.outputs]
    return message(
        f"definition states {', '.join(strange)}, which finish does not return",
        expected=", ".join(n or "a bare result" for n in record.outputs),
        came=", ".join(n or "a bare result" for n, _ in outputs),
    )


def _on_elements(record: Record, count: int, outputs: Outputs) -> Trial:
    finished = states.finish(record, _grown(record, count))
    pairs = [(finished[n], e) for n, e in outputs if n in finished]
    if not pairs:
        raise DeclarationError(_strange(record, outputs))
    return Trial(
        pairs=tuple(pairs),
        domains=states.elements(record, count),
        titles=tuple(n or "the result" for n, _ in outputs if n in finished),
        shown=shown_elements(record, count),
        sides=("{} by merging", "{} by definition"),
        lost=True,
    )


def _grown(record: Record, count: int) -> states.State:
    """The state of elements 1 to count, as the merge of two halves."""
    cut = count // 2
    late = running.fold(record, range(cut + 1, count + 1))
    return running.merge(record, running.fold(record, range(1, cut + 1)), late) if cut else late


def _up_to(
    record: Record,
    small: Mapping[int, Outputs],
    o: Obligation,
    found: Search,
    verdict: Verdict,
    clock: Clock,
) -> Law:
    """The last resort: exact on one to three elements, which is no proof."""
    signs = known_signs(record) if record.form == "corrected" else states.operand_signs(record, 5)
    done = 0
    for k, outputs in small.items():
        if (
            k > MOST_ELEMENTS
            or not equal(
                _on_elements(record, k, outputs).pairs, signs, deadline=clock.deadline()
            ).proved
        ):
            break
        done = k
    law = undecided(o, found.tried, verdict, found.rounded)
    if not done:
        return law
    exact = (
        f"exact for up to {done} element{'s' * (done > 1)}; for every n not proved ({verdict.why})"
    )
    rounded = found.rounded and f"; {found.rounded} trials {BY_ROUNDING}"
    return replace(law, status=Status.CHECKED, how=f"{exact}{rounded or ''}")


def for_every_n(
    record: Record, whole: Definition, clock: Clock, known: Known | None = None
) -> Verdict:
    """finish of the two-pass state = definition, both over the same power sums."""
    if known is not None:
        return definition_by_coordinates(record, whole, known, clock)
    row, totals, terms = totals_of(record, whole)
    try:
        e = powers.expand(
            {**powers.terms_of(record), **terms},
            [*powers.rows_of(record), *row],
            powers.operands_of(record),
        )
    except NotSeparable as error:
        return Verdict("unsupported", why=str(error).replace("old.", ""))
    sums = e.symbols("r")
    state = powers.state_of(record, e, sums, "r")
    refs = known_signs(record)
    signs = e.known("r") | {f"r.{f.name}": refs.get(f"old.{f.name}", "") for f in record.fields}
    pairs = tuple(_outputs(states.finish(record, state), whole, totals, state, e, sums))
    return e.readable(equal(pairs, signs, deadline=clock.deadline(), where_defined=True))


def totals_of(
    record: Record, whole: Definition
) -> tuple[list[str], dict[str, str], dict[str, Expr]]:
    """Names of the row, totals that are a field of the state already, and the terms of the sums."""
    fields = {(f.kind.lower(), f.term): f.name for f in record.fields}
    same = {t.name: fields[t.kind, t.term] for t in whole.totals if (t.kind, t.term) in fields}
    terms = {t.name: t.term for t in whole.totals if t.kind == "sum"}
    return [t.name for t in whole.totals], same, terms


def _outputs(
    finished: Mapping[str, Expr],
    whole: Definition,
    same: Mapping[str, str],
    state: Mapping[str, Expr],
    e: Expansion,
    sums: Mapping[int, Expr],
) -> Sequence[tuple[Expr, Expr]]:
    values = values_of_totals(whole, same, state, e, sums)
    return [(finished[n], substitute(d, values)) for n, d in whole.outputs if n in finished]


def values_of_totals(
    whole: Definition,
    same: Mapping[str, str],
    state: Mapping[str, Expr],
    e: Expansion,
    sums: Mapping[int, Expr],
) -> dict[str, Expr]:
    """Every total over power sums; a maximum is the field that holds it, or a symbol of its own."""
    values: dict[str, Expr] = {}
    for t in whole.totals:
        if t.kind == "sum":
            values[t.name] = e.total(t.name, sums, values)
        elif t.name in same:
            values[t.name] = state[same[t.name]]
        else:
            values[t.name] = var(t.name)
    return values
