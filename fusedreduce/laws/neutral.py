"""References at a finite identity although there are elements: is their neutral value right?

Given    a reference r that elements may leave at its identity e: a Max with identity 0.0 where all
         |x| are 0, a bound reference without a count in its formula where its sums are 0
Claim    for such an element f(x; neutral) = f(x; new) at every new reference
Use      the edge rule reads r as its neutral value there and moves the sum without a correction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fusedreduce import trace
from fusedreduce.declare.edges import at_identity, is_count
from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, call, const, names, substitute, var
from fusedreduce.ir.show import show
from fusedreduce.laws import running, states
from fusedreduce.laws.certificate import Law
from fusedreduce.laws.complete import term_sign
from fusedreduce.laws.obligations import Obligation, known_signs
from fusedreduce.laws.powers import operands_of
from fusedreduce.laws.refute import Trial, search
from fusedreduce.laws.settle import Clock, settle

_USUAL = (0.0, 1.0)


def neutrals(record: Record, clock: Clock) -> list[Law]:
    """The law for every sum and every reference it reads that can stand at its identity."""
    return [
        _law(record, f, r, facts, clock)
        for f in record.fields
        if f.correct is not None
        for r in (record.by_name[n] for n in f.reads)
        if (facts := _there(record, r)) is not None
    ]


def _there(record: Record, r: Field) -> tuple[Expr, ...] | None:
    """What is true of each element of a state with r at its identity; None if there is no such.

    A sum of terms of one sign is 0 where every term is; what elements do not tell is left out.
    """
    if r.kind == "First" or r.has_infinite_identity:
        return None
    assert r.term is not None
    if r.kind in ("Max", "Min"):
        return (call("eq", r.term, const(float(r.identity or 0.0))),)
    if r.kind == "Sum":
        sign = term_sign(r.term, tuple(sorted(operands_of(record).items()))) if not r.reads else ""
        return None if sign == "+" else (call("eq", r.term, const(0.0)),) if sign else ()
    if not r.is_bound:
        return ()
    read = [record.by_name[n] for n in names(r.term)]
    if any(is_count(g) for g in read):
        return None
    parts = [_there(record, g) for g in read if g.kind != "First"]
    if not parts or any(p is None for p in parts):
        return None
    return tuple(e for p in parts if p is not None for e in p)


def _law(record: Record, f: Field, r: Field, facts: tuple[Expr, ...], clock: Clock) -> Law:
    assert f.term is not None
    new = {n: var(f"new.{n}") for n in f.reads}
    one = states.at_element(record, f.term, 1)
    pair = substitute(one, {**new, r.name: const(r.neutral)}), substitute(one, new)
    given = tuple(states.at_element(record, e, 1) for e in facts)
    if not r.is_bound:
        given += (call("ne", new[r.name], const(float(r.identity or 0.0))),)
    law = settle(
        Obligation(
            "absence",
            f.name,
            _statement(record, f, r),
            tuple(_trials(record, f, r)),
            (pair,),
            known_signs(record),
            given,
            f.line,
        ),
        clock,
    )
    if law.counterexample is None:
        return law
    return replace(law, advice=_advice(record, f, r), line=r.line)


def _statement(record: Record, f: Field, r: Field) -> str:
    assert f.term is not None
    assert r.term is not None
    same = f"{show(f.term)} is the same at every {r.name}"
    if not r.is_bound:
        return f"where {show(r.term)} is {r.identity:g}, the identity of `{r.name}`, {same}"
    nothing = ", ".join(f"{n} = {record.by_name[n].identity:g}" for n in names(r.term))
    return f"where `{r.name}` = {show(r.term)} reads as nothing ({nothing}), {same}"


def _trials(record: Record, f: Field, r: Field) -> Iterator[Trial]:
    """Elements 1 (and 2) leave r at its identity; one more moves it away."""
    for count in (1, 2):
        first = running.fold(record, range(1, count + 1))
        merged = running.merge(record, first, running.lift(record, count + 1))
        whole = running.direct(record, range(1, count + 2))
        yield Trial(
            pairs=((merged[f.name], whole[f.name]),),
            domains=states.elements(record, count + 1),
            shown=tuple((n, var(n)) for n, _ in states.elements(record, count + 1)),
            require=(_stands(record, r, first),),
            sides=(f"{f.name} by merging", f"{f.name} in two passes"),
            lost=True,
        )


def _stands(record: Record, r: Field, state: states.State) -> Expr:
    """Is r at its identity in a state?"""
    scalars = {g.name: trace.scalar(g.name, g.type) for g in record.fields}
    return substitute(trace.to_expr(at_identity(record, r, scalars), r.name)[0], state)


def _advice(record: Record, f: Field, r: Field) -> str:
    """Another neutral value that stands the trials; else what makes the identity no value."""
    for neutral in _USUAL:
        fields = tuple(
            replace(g, neutral=neutral) if g.name == r.name else g for g in record.fields
        )
        other = replace(record, fields=fields)
        if search(tuple(_trials(other, f, r))).example is None:
            return f"state the value `{f.name}` reads where nothing is there: neutral={neutral}"
    if r.is_bound:
        return (
            f"let the formula of `{r.name}` read a count, n = fr.Sum(lambda x: 1.0): "
            "it tells nothing from a sum that is 0"
        )
    assert r.term is not None
    return (
        f"leave `identity` out of `{r.name}`, or state a domain where {show(r.term)} "
        f"is never {r.identity:g}"
    )
