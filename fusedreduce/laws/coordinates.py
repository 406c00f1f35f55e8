"""Additive coordinates of a general form: functions psi of the state with psi(merge(a, b)) = psi(a) + psi(b).

Given    a merge such as Chan's, with n > 0 on non-empty states
Claim    n, n * mean and m2 + n * mean ** 2 are additive, and the state is a function of them
Use      merge is then addition in other clothes: associative and commutative, and the state after any
         elements is given by the sums of psi(lift(x)), which are power sums: the definition for every n.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from fusedreduce.declare.record import Record
from fusedreduce.ir.evaluate import Dialect, compiled_all, dialect
from fusedreduce.ir.expr import Expr, call, names, substitute, var
from fusedreduce.laws import powers, states
from fusedreduce.laws.decide import Verdict, equal
from fusedreduce.laws.invariants import Invariants, invariants
from fusedreduce.laws.refute import Trial, search, value
from fusedreduce.laws.separate import NotSeparable
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.writing import number, product
from fusedreduce.vectors import Definition

VALUE = var("value")
PRIME = 2**61 - 1
HIGHEST = 4  # the largest power of a mean that is tried


@dataclass(frozen=True)
class Coordinate:
    """One field: psi over field names, and the field as a function of psi's `value` and other fields.

    An extreme (merged by maximum or minimum) is its own coordinate, and no sum.
    """

    field: str
    psi: Expr
    inverse: Expr
    extreme: str = ""  # "max" or "min"


def coordinates(record: Record, known: Invariants, clock: Clock) -> tuple[Coordinate, ...] | None:
    """A coordinate for every field, each proved additive; None if some field has none."""
    found: list[Coordinate] = []
    left = [f.name for f in record.fields if f.type != "bool"]
    if len(left) < len(record.fields):
        return None
    progress = True
    while left and progress:
        progress = False
        for name in list(left):
            c = _coordinate(record, name, found, known, clock)
            if c is not None:
                found.append(c)
                left.remove(name)
                progress = True
    return None if left else tuple(found)


def _coordinate(
    record: Record, name: str, done: Sequence[Coordinate], known: Invariants, clock: Clock
) -> Coordinate | None:
    extreme = _extreme(record, name)
    if extreme:
        return Coordinate(name, var(name), VALUE, extreme)
    candidates = itertools.chain(_candidates(name, done, known), _polynomial(record, name, done))
    for c in candidates:
        if _tried(record, c.psi) and _additive(record, c.psi, known, clock):
            return c
    return None


def _extreme(record: Record, name: str) -> str:
    """Is the field merged as maximum(a.f, b.f)?"""
    merged = dict(zip((f.name for f in record.fields), record.merge, strict=True))[name]
    sides = {var(f"a.{name}"), var(f"b.{name}")}
    if merged.op in ("maximum", "minimum") and set(merged.args) == sides:
        return merged.op[:3]
    return ""


def _candidates(name: str, done: Sequence[Coordinate], known: Invariants) -> Iterator[Coordinate]:
    """The field itself; times a count; times a scale to a power; times exp of an extreme; its exp."""
    f = var(name)
    yield Coordinate(name, f, VALUE)
    for c in done:
        g = var(c.field)
        if c.extreme:
            e = call("exp", g if c.extreme == "max" else -g)
            yield Coordinate(name, f * e, VALUE / e)
        if ("gt", c.field) not in known.facts:
            continue
        for p in (1,) if not c.extreme else (1, 2, 3, 4):
            scale = g if p == 1 else call("pow", g, float(p))
            yield Coordinate(name, f * scale, VALUE / scale)
    yield Coordinate(name, call("exp", f), call("log", VALUE))
    yield Coordinate(name, call("exp", -f), -call("log", VALUE))


def _defect(record: Record, psi: Expr) -> tuple[Expr, Expr]:
    """psi(merge(a, b)) and psi(a) + psi(b), on states of elements 1, 2 and 3."""
    a, b = states.fold(record, (1, 2)), states.fold(record, (3,))
    return substitute(psi, states.merge(record, a, b)), substitute(psi, a) + substitute(psi, b)


def _tried(record: Record, psi: Expr) -> bool:
    trial = Trial(pairs=(_defect(record, psi),), domains=states.elements(record, 3))
    found = search([trial], count=6)
    return found.example is None and found.tried > 0


def _additive(record: Record, psi: Expr, known: Invariants, clock: Clock) -> bool:
    """The exact claim, on all states with the invariants; and psi(identity) = 0 where it has a value."""
    at_nothing = value(substitute(psi, states.identity(record)))
    if at_nothing == at_nothing and at_nothing != 0:
        return False
    a, b = (states.symbols(record, side) for side in "ab")
    merged = substitute(psi, states.merge(record, a, b))
    pair = merged, substitute(psi, a) + substitute(psi, b)
    return equal([pair], {}, known.of(a, b), deadline=clock.deadline()).proved


# ---- polynomials -----------------------------------------------------------------------------------------


def _polynomial(record: Record, name: str, done: Sequence[Coordinate]) -> Iterator[Coordinate]:
    """name + a polynomial in fields done before: m2 + n mean ** 2, m3 + 3 mean m2 + n mean ** 3, ..."""
    if any(c.extreme for c in done):
        return
    monomials = list(_monomials(done))
    factors = _fit(record, name, monomials) if monomials else None
    if factors is None:
        return
    parts = [
        product([number(Fraction(c)), m]) if c != 1 else m
        for c, m in zip(factors, monomials, strict=True)
        if c
    ]
    rest = parts[0]
    for p in parts[1:]:
        rest = rest + p
    yield Coordinate(name, var(name) + rest, VALUE - rest)


def _monomials(done: Sequence[Coordinate]) -> Iterator[Expr]:
    """At most one plain field times powers of scaled ones (means), up to HIGHEST in all."""
    plain = [var(c.field) for c in done if c.psi.op != "mul"]
    means = [var(c.field) for c in done if c.psi.op == "mul"]
    for powers_of in itertools.product(range(HIGHEST + 1), repeat=len(means)):
        if not 1 <= sum(powers_of) <= HIGHEST:
            continue
        scaled = [
            m if k == 1 else call("pow", m, float(k))
            for m, k in zip(means, powers_of, strict=True)
            if k
        ]
        for head in plain:
            yield product([head, *scaled])


def _fit(record: Record, name: str, monomials: Sequence[Expr]) -> list[Fraction] | None:
    """Factors that make name + sum factor * monomial additive, solved modulo a prime at random states."""
    a, b = states.fold(record, (1, 2)), states.fold(record, (3, 4))
    merged = states.merge(record, a, b)
    columns = [
        call("sub", substitute(m, merged), substitute(m, a) + substitute(m, b))
        for m in (var(name), *monomials)
    ]
    order = tuple(n for n, _ in states.elements(record, 4))
    domains = [d for _, d in states.elements(record, 4)]
    source = random.Random(1)
    rows = []
    try:
        run = compiled_all(tuple(columns), order, _rationals())
        for _ in range(len(monomials) + 4):
            values = [
                Fraction(source.randint(1 if d != "real" else -9, 9), source.randint(1, 4))
                for d in domains
            ]
            first, *rest = (_residue(v) for v in run(*values))
            rows.append([*rest, -first % PRIME])
    except (TypeError, ValueError, ZeroDivisionError, AttributeError):
        return None  # not a rational merge
    found = _solve(rows, len(monomials))
    return None if found is None else [_small(v) for v in found]


@lru_cache(maxsize=1)
def _rationals() -> Dialect:
    """Arithmetic on fractions; whatever needs more than that raises AttributeError."""
    rational = SimpleNamespace(power=lambda a, b: a ** int(b) if b == int(b) else None)
    return dialect("mpmath", {"mp": rational}, const=_fraction, value=lambda v: v)


def _fraction(value: Any) -> Any:
    return value if isinstance(value, bool) else Fraction(value)


def _residue(v: Fraction) -> int:
    return v.numerator * pow(v.denominator, -1, PRIME) % PRIME


def _solve(rows: list[list[int]], width: int) -> list[int] | None:
    """The solution of rows (factors | right side) modulo PRIME, free unknowns 0; None if none."""
    pivots: list[int] = []
    for j in range(width):
        top = len(pivots)
        i = next((i for i in range(top, len(rows)) if rows[i][j]), None)
        if i is None:
            continue
        rows[top], rows[i] = rows[i], rows[top]
        inverse = pow(rows[top][j], -1, PRIME)
        rows[top] = head = [v * inverse % PRIME for v in rows[top]]
        for k, row in enumerate(rows):
            if k != top and row[j]:
                by = row[j]
                rows[k] = [(v - by * h) % PRIME for v, h in zip(row, head, strict=True)]
        pivots.append(j)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    out = [0] * width
    for row, j in zip(rows, pivots, strict=False):
        out[j] = row[-1]
    return out


def _small(v: int) -> Fraction:
    """The fraction with a small denominator that has this residue."""
    for d in range(1, 25):
        n = v * d % PRIME
        n = n - PRIME if n > PRIME // 2 else n
        if abs(n) < 10**6:
            return Fraction(n, d)
    return Fraction(v)


# ---- the definition for every n --------------------------------------------------------------------------


def definition_by_coordinates(record: Record, whole: Definition, clock: Clock) -> Verdict:
    """finish of the state with these power sums = definition, in free symbols."""
    known = invariants(record, clock)
    found = coordinates(record, known, clock)
    if found is None:
        return Verdict("open", why="no additive coordinates of the state were found")
    if known.or_identity:
        clock.assumed["not every element lifts to the identity"] = None
    lifted = dict(zip((f.name for f in record.fields), record.lift, strict=True))
    terms = {f"psi.{c.field}": substitute(c.psi, lifted) for c in found if not c.extreme}
    totals = {t.name: t.term for t in whole.totals if t.kind == "sum"}
    terms = {n: _as_in(record, t, totals, clock) for n, t in terms.items()}
    row = [t.name for t in whole.totals]
    try:
        e = powers.expand({**terms, **totals}, row, powers.operands_of(record))
    except NotSeparable as error:
        return Verdict("unsupported", why=str(error).replace("old.", ""))
    sums = e.symbols("r")
    state = _state(record, found, e, sums)
    values = _totals(record, whole, found, state, e, sums)
    finished = states.finish(record, state)
    pairs = [(finished[n], substitute(d, values)) for n, d in whole.outputs if n in finished]
    signs = {**e.known("r"), **{f"r.{f}": "+" for op, f in known.facts if op == "gt"}}
    return equal(pairs, signs, deadline=clock.deadline())


def _as_in(record: Record, term: Expr, totals: Mapping[str, Expr], clock: Clock) -> Expr:
    """The term as the definition writes it, if it does: |x| ** 2 where(...) and x * x are one function."""
    signs = powers.operands_of(record)
    for other in totals.values():
        if names(other) and set(names(other)) <= set(signs):
            if equal([(term, other)], signs, deadline=clock.deadline()).proved:
                return other
    return term


def _state(
    record: Record, found: Sequence[Coordinate], e: powers.Expansion, sums: Mapping[int, Expr]
) -> dict[str, Expr]:
    """Every field as a function of power sums, in the order the coordinates were found."""
    state: dict[str, Expr] = {}
    for c in found:
        if c.extreme:
            state[c.field] = var(f"r.{c.field}")
        else:
            value = e.total(f"psi.{c.field}", sums, {})
            state[c.field] = substitute(c.inverse, {**state, "value": value})
    return state


def _totals(
    record: Record,
    whole: Definition,
    found: Sequence[Coordinate],
    state: Mapping[str, Expr],
    e: powers.Expansion,
    sums: Mapping[int, Expr],
) -> dict[str, Expr]:
    lifted = dict(zip((f.name for f in record.fields), record.lift, strict=True))
    extremes = {(c.extreme, lifted[c.field]): c.field for c in found if c.extreme}
    values: dict[str, Expr] = {}
    for t in whole.totals:
        if t.kind == "sum":
            values[t.name] = e.total(t.name, sums, values)
        elif (t.kind, t.term) in extremes:
            values[t.name] = state[extremes[t.kind, t.term]]
        else:
            values[t.name] = var(t.name)
    return values
