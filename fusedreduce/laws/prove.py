"""prove(R): numbers, then exact arguments, law by law; always a certificate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fusedreduce.declare.record import Field, Record
from fusedreduce.declare.reduction import require_reduction
from fusedreduce.errors import DeclarationError
from fusedreduce.ir.expr import const, names
from fusedreduce.laws import states
from fusedreduce.laws.certificate import Certificate, Facts, Law, Status
from fusedreduce.laws.closure import Answer
from fusedreduce.laws.complete import complete, gap, refusal
from fusedreduce.laws.coordinates import Known
from fusedreduce.laws.corrected import laws_of_corrected
from fusedreduce.laws.decide import soon
from fusedreduce.laws.definitions import stated
from fusedreduce.laws.edges import choose_guards
from fusedreduce.laws.facts import facts_of, facts_of_merge
from fusedreduce.laws.general import laws_of_general
from fusedreduce.laws.gradients import gradient
from fusedreduce.laws.refute import digits, value
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.slopes import slopes

PROOF_S = 15.0


def prove(R: Any) -> Certificate:
    """The certificate of a declaration: every law with its status. A wrong one raises nothing."""
    if isinstance(R, Record):
        return _proved(R)
    return _with_parts(_proved(require_reduction(R, "prove(R)").record), R.parts)


def _proved(record: Record) -> Certificate:
    lacking = gap(with_indices(record)) if record.form == "corrected" else None
    return certified(record)[1] if lacking is None else _without_correction(record, *lacking)


def _with_parts(certificate: Certificate, parts: Iterable[Any]) -> Certificate:
    """The certificate of a join, with what its parts say of their own definitions."""
    own = [(part.__name__, prove(part)) for part in parts]
    told = [
        replace(law, field=name if not law.field else f"{name}.{law.field}")
        for name, proof in own
        for law in proof.laws
        if law.name == "definition"
    ]
    stated = certificate.meaning_stated or (
        bool(own) and all(proof.meaning_stated for _, proof in own)
    )
    if not told and stated == certificate.meaning_stated:
        return certificate
    return replace(certificate, laws=(*certificate.laws, *told), meaning_stated=stated)


def certified(record: Record) -> tuple[Record, Certificate]:
    """The record with derived corrections, guards and commutative flag; its certificate."""
    functions = record.functions
    wide = with_indices(record)
    whole, certificate = _certified(wide, functions.definition, functions.grad, record.line)
    return replace(whole, operands=record.operands, domain=record.domain), certificate


def with_indices(record: Record) -> Record:
    """The indices b, h, i that terms read as operands: what holds for any values holds for one."""
    read = {n for e in (*(f.term for f in record.fields), *record.lift) if e for n in names(e)}
    indices = tuple(n for n in ("b", "h", "i") if n in read)
    domain = (*record.domain, *((n, "index") for n in indices))
    return replace(record, operands=(*record.operands, *indices), domain=domain)


@lru_cache(maxsize=512)
def _certified(
    record: Record,
    definition: Callable[..., Any] | None,
    grad: Callable[..., Any] | None,
    line: str,
) -> tuple[Record, Certificate]:
    """Records are equal whatever their functions and line: these belong to the key."""
    whole = complete(record)
    fields = tuple(
        replace(f, line=g.line) for f, g in zip(whole.fields, record.fields, strict=True)
    )
    whole = replace(whole, fields=fields, functions=record.functions, line=record.line)
    clock = Clock(soon(PROOF_S))
    known: Known | None = None
    guards = None
    if whole.form == "general":
        laws, known = laws_of_general(whole, clock)
        whole = replace(whole, slopes=slopes(known))
        facts = facts_of_merge(whole, known, clock)
    else:
        laws = laws_of_corrected(whole, clock)
        guards = tuple(sorted(choose_guards(whole)))
        whole = whole.with_guards(frozenset(guards))
        facts = facts_of(whole, clock)
    whole = replace(whole, commutative=bool(facts.commutative), gauge=facts.flat)
    law, how = gradient(whole, laws, known, clock)
    certificate = Certificate(
        name=record.name,
        form=record.form,
        laws=(*laws, *law, *_empty(whole)),
        facts=replace(facts, gradient=how),
        meaning_stated=record.form == "corrected" or _states_all(record),
        subject=whole.text,
        assumptions=_readable(clock.assumed),
        guards=guards,
    )
    return whole, certificate


def _readable(assumed: Iterable[str]) -> tuple[str, ...]:
    """Told once for every side and element: k != 0 for old.k != 0, new.k != 0; x for x[1]."""
    return tuple(sorted({re.sub(r"\b(a|b|c|old|mid|new|r)\.|\[1\]", "", t) for t in assumed}))


def _without_correction(record: Record, f: Field, found: Answer) -> Certificate:
    """The certificate of a declaration one of whose sums cannot follow its reference."""
    status = Status.REFUTED if found.certain else Status.UNKNOWN
    why = refusal(record, f, found)
    statement = f"a term moved to a new reference is the term at the new reference; {why.fact}"
    law = Law("faithfulness", f.name, status, statement, line=f.line, advice=why.do)
    return Certificate(record.name, record.form, (law,), Facts(), True, record.text)


def _states_all(record: Record) -> bool:
    """Does the definition speak of every output?"""
    if record.functions.definition is None:
        return False
    try:
        return set(record.outputs) <= dict(stated(record)[1][1]).keys()
    except DeclarationError:
        return True  # the law of the definition tells the reason


def _empty(record: Record) -> list[Law]:
    """Given   `empty` as stated
    Claim   it is the finish of nothing wherever that has a value, or replaces it by the user's wish
    Use     rows that are empty or all masked.
    """
    if not record.empty:
        return []
    finished = states.finish(record, states.identity(record) | _bound_identities(record))
    told = [f"{name or 'the result'} = {v}" for name, v in record.empty]
    other = [
        f"{name or 'the result'} would be {digits(at)}"
        for name, v in record.empty
        if (at := value(finished[name])) == at and at != v
    ]
    how = (
        f"stated; by finish {', '.join(other)}"
        if other
        else "the finish of the identity, or stated where it has none"
    )
    return [
        Law("empty", "", Status.PROVED, f"of nothing, {', '.join(told)}", how, line=record.line)
    ]


def _bound_identities(record: Record) -> states.State:
    bound = (f for f in record.fields if f.is_bound)
    return {f.name: const(math.nan if f.identity is None else f.identity) for f in bound}
