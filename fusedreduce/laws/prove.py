"""prove(R): numbers, then exact arguments, law by law; always a certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import require_reduction
from fusedreduce.ir.show import show
from fusedreduce.laws.certificate import Certificate, Facts
from fusedreduce.laws.complete import complete
from fusedreduce.laws.corrected import laws_of_corrected
from fusedreduce.laws.decide import soon
from fusedreduce.laws.edges import choose_guards
from fusedreduce.laws.facts import facts_of
from fusedreduce.laws.settle import Clock

PROOF_S = 15.0


def prove(R: Any) -> Certificate:
    """The certificate of a declaration: every law with its status; never an exception for a wrong one."""
    return certified(R if isinstance(R, Record) else require_reduction(R, "prove(R)").record)[1]


def certified(record: Record) -> tuple[Record, Certificate]:
    """The record with derived corrections, chosen guards and the commutative flag; its certificate."""
    return _certified(record, record.functions.definition, record.line)


@lru_cache(maxsize=512)
def _certified(
    record: Record, definition: Callable[..., Any] | None, line: str
) -> tuple[Record, Certificate]:
    """Records are equal whatever their definition and line: both belong to the key."""
    whole = complete(record)
    whole = replace(whole, functions=record.functions, line=record.line)
    clock = Clock(soon(PROOF_S))
    if whole.form == "general":
        from fusedreduce.laws.general import laws_of_general

        laws, commutative = laws_of_general(whole, clock)
        guards = None
    else:
        laws, commutative = laws_of_corrected(whole, clock), True
        guards = tuple(sorted(choose_guards(whole)))
        whole = whole.with_guards(frozenset(guards))
    facts = facts_of(whole, commutative, clock)
    certificate = Certificate(
        name=record.name,
        form=record.form,
        laws=tuple(laws),
        facts=facts,
        meaning_stated=record.form == "corrected" or definition is not None,
        subject=subject(whole),
        assumptions=tuple(sorted(clock.assumed)),
        guards=guards,
    )
    return replace(whole, commutative=bool(facts.commutative)), certificate


def subject(record: Record) -> str:
    """The declaration as text, the same on every machine."""
    lines = [f"{f.name} {f.kind} {f.identity} {f.neutral}" for f in record.fields]
    lines += [show(e) for f in record.fields for e in (f.term, f.correct) if e is not None]
    lines += [show(e) for e in (*record.lift, *record.merge)]
    lines += [f"{name} {show(e)}" for name, e in record.finish]
    return "\n".join([*lines, repr(record.empty), repr(record.domain)])


__all__ = ["Facts", "certified", "prove"]
