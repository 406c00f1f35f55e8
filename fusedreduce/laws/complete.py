"""Records completed: corrections that were left out are derived, or what is missing is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fusedreduce import trace
from fusedreduce.declare.record import Field, Record
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import Expr, call, is_const, names, var
from fusedreduce.ir.show import show, spell
from fusedreduce.laws.certificate import Status
from fusedreduce.laws.closure import Answer, Problem, answer
from fusedreduce.laws.decide import in_every_case, soon

_SIGNS = {"positive": "+", "nonnegative": "0+", "index": "0+", "bool": "0+"}


@lru_cache(maxsize=1024)
def complete(record: Record) -> Record:
    """The record with a correction for every sum that reads a reference.

    Those left out are derived from the terms (and marked `derived`). `DeclarationError` names the
    companion that is missing, with the line to add, or the reason why no correction exists.
    """
    if record.form == "general":
        return record
    fields = tuple(_completed(record, f) for f in record.fields)
    return record if fields == record.fields else replace(record, fields=fields)


def _completed(record: Record, f: Field) -> Field:
    if f.kind != "Sum" or not f.reads or f.correct is not None:
        return f
    found = answer(problem_of(record, f))
    if found.correction is None:
        raise DeclarationError(refusal(record, f, found).text)
    return replace(f, correct=found.correction, derived=True)


def gap(record: Record) -> tuple[Field, Answer] | None:
    """The first sum for which no correction is stated and none follows."""
    for f in record.fields:
        if f.kind == "Sum" and f.reads and f.correct is None:
            found = answer(problem_of(record, f))
            if found.correction is None:
                return f, found
    return None


def problem_of(record: Record, f: Field) -> Problem:
    """The closure problem of one sum; companions are the other sums over its references."""
    assert f.term is not None
    companions = tuple(
        (g.name, g.term)
        for g in record.fields
        if g.kind == "Sum"
        and g.name != f.name
        and g.term is not None
        and set(g.reads) <= set(f.reads)
    )
    return Problem(
        field=f.name,
        term=f.term,
        references=f.reads,
        companions=companions,
        signs=tuple(signs_of(record, (*record.operands, *record.payloads, "j", *f.reads)).items()),
        facts=reference_facts(record, f.reads),
    )


def signs_of(record: Record, wanted: Iterable[str]) -> dict[str, str]:
    """Known signs of operands by their domain, and of free references by their term."""
    domain = dict(record.domain)
    operands = {n: _SIGNS.get(d, "") for n, d in domain.items()}
    return {
        n: _reference_sign(record.by_name[n], operands)
        if n in record.by_name
        else operands.get(n, "0+" if n == "j" else "")
        for n in wanted
    }


def _reference_sign(f: Field, operands: Mapping[str, str]) -> str:
    """A reference chosen among positive values is positive."""
    if f.is_bound or f.term is None:
        return ""
    if f.term.op == "var":
        return operands.get(str(f.term.value), "")
    return term_sign(f.term, tuple(sorted(operands.items())))


@lru_cache(maxsize=1024)
def term_sign(e: Expr, operands: tuple[tuple[str, str], ...]) -> str:
    """The sign that an expression has whatever its operands are."""
    known = dict(operands)
    signs = {n: known.get(n, "") for n in names(e)}
    for sign, op in (("+", "gt"), ("0+", "ge")):
        question = call(op, e, 0.0)
        holds = in_every_case(
            lambda case, q=question: None if case.read(q) else "no",  # type: ignore[misc]
            signs,
            deadline=soon(0.5),
        )
        if holds.proved and not holds.assumed:
            return sign
    return ""


def reference_facts(record: Record, references: Sequence[str]) -> tuple[Expr, ...]:
    """An element lies on its side of a Max or Min, and these move one way only."""
    facts: list[Expr] = []
    for r in references:
        f = record.by_name[r]
        if f.kind in ("Max", "Min") and f.term is not None:
            op = "ge" if f.kind == "Max" else "le"
            old, new = var(f"old.{r}"), var(f"new.{r}")
            facts += [call(op, old, f.term), call(op, new, old), call(op, new, f.term)]
    return tuple(facts)


# ---- refusals ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """Why a sum has no correction: the fact, the whole message, what to do."""

    fact: str
    text: str
    do: str


def refusal(record: Record, f: Field, found: Answer) -> Refusal:
    """Why `f` has no correction, and what to do about it."""
    assert f.term is not None
    references = " and ".join(f.reads)
    if found.missing:
        terms = ", ".join(show(t) for t in found.missing)
        fact = f"the correction of `{f.name}` needs a companion that is not there"
        expected = (
            f"a sum of {terms}: moving {references} turns {show(f.term)} into multiples of it"
        )
        came = f"the sums {', '.join(g.name for g in record.fields if g.kind == 'Sum')}"
        do = f"add  {'; '.join(suggestions(record, f, found.missing))}"
    else:
        kind = "incremental form" if found.certain else "correction that could be derived"
        fact = f"`{f.name}` has no {kind}: {found.reason}"
        expected = f"a term that splits into functions of the element and functions of {references}"
        came = show(f.term)
        do = f"write it yourself: correct=lambda {f.name}, old, new: ..."
        if found.certain:
            do = "write the term over x - r or x / r, or a general form with lift and merge"
    text = message(f"{record.name}: {fact}", expected=expected, came=came, where=f.line, do=do)
    return Refusal(fact, text, do)


def suggestions(record: Record, f: Field, missing: Iterable[Expr]) -> list[str]:
    """The lines to add, one a companion, with names that are free."""
    taken = {*record.by_name, *record.operands, *record.payloads}
    lines = []
    for term in missing:
        name = _free_name(f.name, term, taken)
        taken.add(name)
        used = [n for n in (*record.operands, *record.payloads, *f.reads) if n in names(term)]
        arguments = ", ".join(used or record.operands[:1])
        lines.append(f"{name} = fr.Sum(lambda {arguments}: {spell(term, 'torch')})")
    return lines


def _free_name(field: str, term: Expr, taken: set[str]) -> str:
    """n for a count, s for an exponential, else the field's own letters with a number."""
    usual = "n" if is_const(term) else "s" if term.op == "exp" else ""
    if usual and usual not in taken:
        return usual
    stem = re.sub(r"\d+$", "", field) or "c"
    return next(n for i in range(1, 1000) if (n := f"{stem}{i}") not in taken)


# ---- the public question -------------------------------------------------------------------------


@dataclass(frozen=True)
class Derivation:
    """What `derive` found: a correction, or missing companions, or the reason for none.

    correction  the correction as text, over the sum's name, old.* and new.*; "" if there is none
    missing     terms whose sums it would need
    reason      why no finite set of sums will do
    status      Proved; Checked where numbers speak for the reason; Unknown where nothing was found
    assumed     what was taken as given, such as r > 0 for log(x / r)
    """

    field: str
    term: str
    correction: str
    missing: tuple[str, ...]
    reason: str
    expression: Expr | None = None
    status: Status = Status.PROVED
    assumed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.expression is not None

    def __str__(self) -> str:
        head = f"{self.field} = sum of {self.term}"
        given = f" (assuming {', '.join(self.assumed)})" if self.assumed else ""
        if self:
            return f"{head}: correct = {self.correction}{given}"
        if self.missing:
            return f"{head}: needs the sum of {', '.join(self.missing)}{given}"
        none = "no incremental form" + {
            Status.PROVED: "", Status.CHECKED: ", by numbers (Checked)"
        }.get(self.status, " found (Unknown)")  # fmt: skip
        return f"{head}: {none}: {self.reason}{given}"


def derive(
    term: Callable[..., Any],
    reference: str | Sequence[str] | None = None,
    companions: Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]] = (),
    parameters: Sequence[str] = (),
    domain: Mapping[str, str] | None = None,
) -> Derivation:
    """How a sum of `term` moves when its reference moves: closure alone, without a declaration.

    term        a function of operands and references, such as lambda x, m: torch.exp(x - m)
    reference   the name, or names, of its references; the last parameter if left out
    companions  other sums that may be used: {"n": lambda x: 1.0}, or functions without names
    parameters  names of values that are equal for all elements
    domain      {"x": "positive"}, as in a declaration

    >>> import torch
    >>> print(derive(lambda x, m: torch.exp(x - m), reference="m").correction)
    s * exp(old.m - new.m)
    >>> print(derive(lambda x, m: (x - m) ** 2))
    c = sum of (x - m) ** 2: needs the sum of 1.0, x - m
    """
    traced, order = _traced(term)
    chosen = (reference,) if isinstance(reference, str) else tuple(reference or order[-1:])
    if not isinstance(companions, Mapping):
        companions = {f"c{i}": f for i, f in enumerate(companions, 1)}
    others = tuple((n, _traced(f)[0]) for n, f in companions.items())
    known = dict(domain or {})
    every = dict.fromkeys([*order, *(v for _, t in others for v in names(t)), *chosen, *parameters])
    field = "s" if traced.op == "exp" and "s" not in {*every, *companions} else "c"
    problem = Problem(
        field=field,
        term=traced,
        references=chosen,
        companions=others,
        signs=tuple((n, _SIGNS.get(known.get(n, ""), "")) for n in every),
        parameters=tuple(parameters),
    )
    found, assumed = _assuming(problem)
    status = Status.PROVED if found.certain else Status.UNKNOWN
    status = Status.CHECKED if found.growing else status
    correction = "" if found.correction is None else show(found.correction)
    missing = tuple(show(t) for t in found.missing)
    return Derivation(
        field, show(traced), correction, missing, found.reason, found.correction, status, assumed
    )


def _assuming(problem: Problem) -> tuple[Answer, tuple[str, ...]]:
    """The answer, with every symbol of a log or power taken to be positive if that is needed."""
    found = answer(problem)
    needed = () if found.positive is None else names(found.positive)
    bare = [re.sub(r"^(old|new)\.", "", n) for n in needed]
    known = dict(problem.signs)
    open_signs = [n for n in bare if known.get(n) != "+"]
    if not open_signs:
        return found, tuple(f"{r} != 0" for r in found.nonzero)
    signs = tuple((n, "+" if n in open_signs else s) for n, s in problem.signs)
    other, more = _assuming(replace(problem, signs=signs))
    return other, tuple(dict.fromkeys([*(f"{n} > 0" for n in open_signs), *more]))


def _traced(fn: Callable[..., Any]) -> tuple[Expr, tuple[str, ...]]:
    parameters = trace.signature(fn, "the term").parameters
    value = trace.run(fn, {p: trace.scalar(p) for p in parameters})
    return trace.to_expr(value, "the term")[0], parameters
