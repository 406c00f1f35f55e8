"""The gradient: what the derived backward sends to an element is the derivative of the result.

Given    elements x_1 .. x_n, the two-pass state S of all of them, any adjoints of the outputs
Claim    element_gradient(x_i, S) = d (sum_o adjoint_o * finish_o(S)) / d x_i
         corrected form: S holds sums of f(x_j; r). At fixed r that is a derivative term by term;
         along r a sum moves by A = d correct / d new, since a corrected sum is the sum of the
         corrected terms (faithful, additive); of a gauge output that movement is 0
         general form: S is a function of sums of psi(lift(x_j)) and of extremes (slopes.py)
Use      the backward kernels: elementwise in (element, final state), nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusedreduce.declare.record import Record
from fusedreduce.gradient.element import NoBackward, inlined
from fusedreduce.ir.expr import names
from fusedreduce.laws.certificate import Law, Status
from fusedreduce.laws.coordinates import Known
from fusedreduce.laws.decide import Verdict
from fusedreduce.laws.derivatives import differentiable, floating, trials
from fusedreduce.laws.obligations import Obligation
from fusedreduce.laws.refute import Search, search
from fusedreduce.laws.settle import Clock, undecided
from fusedreduce.laws.stated import of_stated
from fusedreduce.trace import function_line

DERIVED = (
    "what the derived backward sends to a present element is the derivative of the result by it"
)
STATED = "`grad` is the derivative of the result by every element"
COUNT = 12  # draws a trial


def gradient(
    record: Record, laws: Sequence[Law], known: Known | None, clock: Clock
) -> tuple[list[Law], str]:
    """The law, [] where no backward is made of the declaration; and the fact that tells which."""
    if not floating(record) or not differentiable(record):
        return [], ""
    try:
        found = search(trials(record), count=COUNT)
    except NoBackward:
        return [], "run again"
    stated = record.functions.grad is not None
    o = _obligation(record)
    if found.example is not None:
        how = f"counterexample in trial {found.tried}"
        advice = _advice(record)
        law = Law(o.law, "", Status.REFUTED, o.statement, how, found.example, o.line, advice)
    elif not found.tried:
        law = undecided(o, 0, Verdict("undefined"))
    elif stated:
        law = of_stated(record, o, found, known, clock)
    else:
        law = _of_derived(record, o, found, laws)
    return [law], "stated" if stated else "derived"


def _obligation(record: Record) -> Obligation:
    if record.functions.grad is None:
        return Obligation("gradient", "", DERIVED, (), line=record.line)
    return Obligation("gradient", "", STATED, (), line=function_line(record.functions.grad))


# ---- why it holds --------------------------------------------------------------------------------


def _of_derived(
    record: Record,
    o: Obligation,
    found: Search,
    laws: Sequence[Law],
) -> Law:
    agree = f"{found.tried} trials agree"
    if record.form == "general":
        how = f"the state is a function of sums over the elements; {agree}"
        return Law(o.law, "", Status.PROVED, o.statement, how, line=o.line)
    moved = [n for n in floating(record) if n not in record.gauge and record.references]
    sums = _moved_sums(record, moved)
    open_ = [
        law
        for law in laws
        if law.name == "meaning"
        or (law.name in ("faithfulness", "additivity") and law.field in sums)
        if not _everywhere(law)
    ]
    if open_:
        why = f"it follows from {', '.join(law.title for law in open_)}, which is open"
        return undecided(o, found.tried, Verdict("open", why=why))
    how = f"{_reason(record, moved)}; {agree}"
    return Law(o.law, "", Status.PROVED, o.statement, how, line=o.line)


def _moved_sums(record: Record, outputs: Sequence[str]) -> set[str]:
    """The sums through which a gradient of these outputs moves a reference."""
    todo = [n for o, e in record.finish if o in outputs for n in names(inlined(record, e))]
    found: set[str] = set()
    while todo:
        f = record.by_name[todo.pop()]
        if f.is_bound and f.term is not None:
            todo += [n for n in names(f.term) if n in record.by_name]
        elif f.correct is not None and f.name not in found:
            found.add(f.name)
            todo += f.reads
    return found


def _everywhere(law: Law) -> bool:
    """Proved, and of a correction at every value of the reference."""
    return law.status is Status.PROVED and not law.how.startswith("holds at the field's own")


def _reason(record: Record, moved: Sequence[str]) -> str:
    if not record.references:
        return "term by term"
    if not moved:
        return "term by term: the references are gauge"
    return (
        f"term by term, and along the references of {', '.join(n or 'the result' for n in moved)}"
    )


def _advice(record: Record) -> str:
    if record.functions.grad is None:
        return "report it: a derived backward is wrong only if a fact of the certificate is"
    return (
        "leave `grad` out where the backward can be derived, or differentiate finish by the element"
    )
