"""Absence where no operand moves the contribution in proportion: x * w, x ** 3, -x * x."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, names
from fusedreduce.laws.complete import term_sign
from fusedreduce.laws.powers import operands_of
from fusedreduce.laws.refute import number_at
from fusedreduce.laws.separate import replaced

FAR = (1e1, 1e2, 1e3, 1e4)


@dataclass(frozen=True)
class Path:
    """One operand run off to +inf or -inf, the others kept: what the contribution and a term do."""

    operand: str
    direction: int
    values: tuple[float, ...]

    def at(self, e: Expr, place: int, **more: float) -> float:
        """An expression at one of FAR."""
        here = {n: 0.5 + 0.25 * i for i, n in enumerate(names(e))}
        return float(number_at(e, {**here, self.operand: self.values[place], **more}))


def paths(record: Record, contribution: Expr, identity: float) -> Iterator[Path]:
    """The ways along which a contribution tends to an infinite identity."""
    domain = dict(record.domain)
    for n in names(contribution):
        signs = (1, -1) if domain.get(n, "real") in ("real", "int") else (1,)
        if n not in (*record.operands, *record.payloads) or domain.get(n) == "bool":
            continue
        for sign in signs:
            path = Path(n, sign, tuple(sign * v for v in FAR))
            sizes = [path.at(contribution, i) for i in range(len(FAR))]
            if all(v * identity > 0 for v in sizes) and abs(sizes[-1]) > 10 * abs(sizes[0]) + 10:
                yield path


def never_near(record: Record, contribution: Expr, identity: float) -> bool:
    """Has the contribution one sign, away from the identity?"""
    away = contribution if identity < 0 else -contribution
    return bool(term_sign(away, tuple(sorted(operands_of(record).items()))))


def by_contribution(term: Expr, contribution: Expr, value: Expr) -> Expr | None:
    """The term with the contribution replaced, if it depends on its operands in no other way."""
    moved = replaced(term, {contribution: value})
    return None if set(names(moved)) & set(names(contribution)) else moved


def tends_to_zero(f: Field, reference: Field, path: Path) -> bool:
    """Do the term's values along a path tend to 0, the reference kept?"""
    assert f.term is not None
    assert reference.term is not None
    kept = {reference.name: path.at(reference.term, 0)}
    sizes = [abs(path.at(f.term, i, **kept)) for i in range(len(FAR))]
    return sizes[-1] < 1e-9 and sizes[-1] <= sizes[0]
