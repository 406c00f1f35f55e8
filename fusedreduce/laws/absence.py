"""Absence and boundedness: what terms do while a contribution or a reference runs off."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, TypeAlias

from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, call, const, is_const, names, substitute, var
from fusedreduce.ir.show import show
from fusedreduce.laws.cases import Case
from fusedreduce.laws.certificate import Counterexample, Law, Status
from fusedreduce.laws.complete import signs_of
from fusedreduce.laws.decide import in_every_case
from fusedreduce.laws.paths import by_contribution, never_near, paths, tends_to_zero
from fusedreduce.laws.refute import digits, number_at
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.symbols import Tower

_AWAY = (1e1, 1e2, 1e3, 1e4)


def absences(record: Record, clock: Clock) -> list[Law]:
    """Absence of every sum, for every free reference it reads, directly or through others."""
    return [
        absence(record, f, r, clock)
        for f in record.fields
        if f.kind == "Sum" and f.reads
        for r in record.free_references(f.name)
    ]


def absence(record: Record, f: Field, reference: Field, clock: Clock) -> Law:
    """Given   a term f(x; r) whose reference has an infinite identity
    Claim   as the element's contribution tends to that identity, f(x; r) tends to 0
    Use     such an element (a masked score of -inf) is absent: its term is taken as 0.
    """
    assert f.term is not None
    assert reference.term is not None
    identity = float(reference.identity or 0.0)
    reference = replace(reference, term=_besides(reference.term, identity))
    assert reference.term is not None
    towards = "-inf" if identity < 0 else "inf"
    statement = f"as {show(reference.term)} tends to {towards}, {show(f.term)} tends to 0"

    def law(
        status: Status, how: str, example: Counterexample | None = None, advice: str = ""
    ) -> Law:
        return Law("absence", f.name, status, statement, how, example, f.line, advice)

    operand = carrier(record, reference, identity)
    if never_near(record, reference.term, identity):
        return law(
            Status.PROVED, f"no element of the domain brings {show(reference.term)} near {towards}"
        )
    if operand is None:
        step = var("away") if identity > 0 else -var("away")
        moved = by_contribution(f.term, reference.term, var(reference.name) + step)
        if moved is None:
            return law(*_along_paths(record, f, reference, identity))
    else:
        moved = moved_away(f.term, reference, operand, identity)
    if decays(record, moved, clock):
        return law(Status.PROVED, "every monomial of the term holds a decaying exponential")
    values = along(moved)
    sizes = [abs(v) for v in values]
    if sizes[-1] < 1e-9 and sizes[-1] <= sizes[0]:
        return law(
            Status.CHECKED, f"the term is {digits(values[-1])} at a distance of {_AWAY[-1]:g}"
        )
    return law(
        Status.REFUTED,
        "followed along the way to the identity",
        Counterexample(
            (("distance from the reference", f"{_AWAY[2]:g}"),),
            (show(f.term), digits(values[2])),
            ("an absent element's term", "0"),
        ),
        _other(reference),
    )


def _other(reference: Field) -> str:
    other = {"Max": "Min", "Min": "Max"}.get(reference.kind, "First")
    return f"take fr.{other} as the reference, or fr.First for a term that does not decay"


Found: TypeAlias = "tuple[Status, str] | tuple[Status, str, Counterexample, str]"


def _along_paths(record: Record, f: Field, reference: Field, identity: float) -> Found:
    """The verdict by numbers, where no substitution says how far an element is away."""
    assert f.term is not None
    assert reference.term is not None
    tried = 0
    for path in paths(record, reference.term, identity):
        tried += 1
        if not tends_to_zero(f, reference, path):
            kept = path.at(reference.term, 0)
            here = ((path.operand, f"{path.values[2]:g}"), (reference.name, digits(kept)))
            value = path.at(f.term, 2, **{reference.name: kept})
            sides = (show(f.term), digits(value)), ("an absent element's term", "0")
            how = "followed along the way to the identity"
            return Status.REFUTED, how, Counterexample(here, *sides), _other(reference)
    if not tried:
        return Status.CHECKED, f"no operand was found that brings {show(reference.term)} there"
    return Status.CHECKED, f"the term tends to 0 along {tried} ways"


def _besides(term: Expr, identity: float) -> Expr:
    """A contribution where it is not the identity by choice: there the element is absent anyway."""
    while term.op == "where":
        here = [e for e in term.args[1:] if not is_const(e, identity)]
        if len(here) != 1:
            break
        (term,) = here
    return term


def carrier(record: Record, reference: Field, identity: float) -> str | None:
    """An operand that alone can drive the contribution to the identity."""
    assert reference.term is not None
    term, domain = reference.term, dict(record.domain)
    direction = -1 if identity < 0 else 1
    for n in names(term):
        if n not in (*record.operands, *record.payloads):
            continue
        slope = call("sub", substitute(term, {n: var(n) + 1.0}), term)
        way = direction * _constant_sign(slope, record)
        if way and (way > 0 or domain.get(n, "real") in ("real", "int")):
            return n
    return None


def _constant_sign(slope: Expr, record: Record) -> int:
    """The sign of a slope that does not depend on anything; 0 if it varies."""
    signed = any(d not in ("real", "int") for d in dict(record.domain).values())
    places = (0.3, 1.0, 1.7) if signed else (0.3, 1.0, -0.6, -1.7)
    at = [number_at(slope, dict.fromkeys(names(slope), v)) for v in places]
    if any(abs(v - at[0]) > 1e-12 for v in at):
        return 0
    return 1 if at[0] > 0 else -1 if at[0] < 0 else 0


def moved_away(term: Expr, reference: Field, operand: str, identity: float) -> Expr:
    """The term with the element `away` beyond the reference: contribution = reference -+ away."""
    assert reference.term is not None
    slope = number_at(
        call(
            "sub",
            substitute(reference.term, {operand: const(1.0)}),
            substitute(reference.term, {operand: const(0.0)}),
        ),
        dict.fromkeys(names(reference.term), 0.0),
    )
    step = var("away") if identity > 0 else -var("away")
    rest = substitute(reference.term, {operand: const(0.0)})
    value = (var(reference.name) + step - rest) / float(slope)
    return substitute(term, {operand: value})


def _elsewhere(e: Expr) -> dict[str, float]:
    return {n: 0.5 + 0.25 * i for i, n in enumerate(names(e)) if n != "away"}


def along(moved: Expr) -> list[Any]:
    """The values of an expression as `away` grows, everything else kept."""
    return [number_at(moved, {**_elsewhere(moved), "away": a}) for a in _AWAY]


def grows(moved: Expr) -> bool:
    """Does the value run off with the distance?"""
    near, *_, far = (abs(v) for v in along(moved))
    return bool(far > 50 * (near + 1))


def decays(record: Record, moved: Expr, clock: Clock, *, or_constant: bool = False) -> bool:
    """Every monomial holds exp(away) to a negative power, so the value tends to 0 as away grows.

    With `or_constant`, monomials without `away` are allowed: the value then stays bounded.
    """
    known = signs_of(record, (*record.operands, *record.payloads))
    signs = {n: known.get(n, "") for n in names(moved)}

    def ask(case: Case) -> str | None:
        tower, v = case.tower, case.number(moved)
        if len(v.den) != 1:
            return "a sum in the denominator"
        ((below, _),) = v.den.terms()
        away = tower.symbols.index("away") if "away" in tower.symbols else -1
        for m in v.num:
            powers = {i: k for i, k in enumerate(map(operator.sub, m, below)) if k}
            touched = {i for i in powers if i == away or "away" in tower.symbols_of([i])}
            if or_constant and not touched:
                continue
            decay = [i for i in touched if _is_decay(tower, i, away)]
            if not decay or touched - {*decay, away} or powers[decay[0]] >= 0:
                return "a monomial that does not decay"
        return None

    return in_every_case(ask, {**signs, "away": "+"}, deadline=clock.deadline()).proved


def _is_decay(tower: Tower, i: int, away: int) -> bool:
    """Is a generator exp of the distance, or of a positive multiple of it such as log(2)?"""
    atom = tower.atoms.get(i)
    if atom is None or atom.kind != "exp" or len(atom.unit.num) != 1 or atom.unit.den != 1:
        return False
    ((powers, _),) = atom.unit.num.terms()
    others = (*powers[:away], 0, *powers[away + 1 :])
    alone = "away" not in tower.symbols_of(k for k, e in enumerate(others) if e)
    return powers[away] == 1 and alone and tower.term_sign(others) == "+"
