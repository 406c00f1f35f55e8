"""Corrections derived: how a sum of terms f(x; r) moves when its reference moves, or why it cannot.

Given    a term f(x; r) and candidate companions g_j(x; r)
Claim    if f(x; r') = T_0 f(x; r) + sum_j T_j g_j(x; r) for all x, with T free of x, then the sum
         over any elements moves by the same T: that is the correction, and it is faithful,
         additive and composes by construction
Use      `complete` fills corrections that were left out. Missing companions are named, with the
         line to add; where no finite set of sums will do, that is told as the reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from fusedreduce.ir.expr import Expr, call, names, rename, substitute, var, walk
from fusedreduce.laws import growth
from fusedreduce.laws.basis import functions
from fusedreduce.laws.cases import Case
from fusedreduce.laws.ratios import Ratio
from fusedreduce.laws.separate import (
    NotSeparable,
    Separation,
    elements_only,
    in_tower,
    replaced,
    separate,
    solve,
)
from fusedreduce.laws.transport import assemble, lost_at_zero, printed, ways
from fusedreduce.laws.writing import write

MOST_TRIED = 6  # sums of which all choices are looked at
_STEP = "step"  # a symbol for the step by which x and r are moved together
Sum: TypeAlias = "tuple[Expr, Separation]"

_CHOICES = frozenset(["maximum", "minimum", "abs", "sign", "where"])


@dataclass(frozen=True)
class Problem:
    """What is to be corrected.

    field, term   the sum and its term, over operands and references by their bare names
    references    those the term reads
    companions    (name, term) of other sums that may be used
    signs         known signs of operands and references, "+", "0+" or ""; all names are here
    facts         comparisons that hold for references and elements, over operands, old.r, new.r
    """

    field: str
    term: Expr
    references: tuple[str, ...]
    companions: tuple[tuple[str, Expr], ...]
    signs: tuple[tuple[str, str], ...]
    facts: tuple[Expr, ...] = ()
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The correction; or the terms of missing companions; or the reason why there is none.

    certain   the reason is a proof; `growing` numbers speak for it where it is none
    positive  what would have to be positive for an answer
    nonzero   references that the correction divides by, and the term does not: taken not to be 0
    """

    correction: Expr | None = None
    missing: tuple[Expr, ...] = ()
    reason: str = ""
    certain: bool = True
    growing: bool = False
    positive: Expr | None = None
    nonzero: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def answer(problem: Problem) -> Answer:
    """The correction of a sum, by linear algebra over functions of the reference."""
    elements = frozenset(n for n, _ in problem.signs) - {*problem.references, *problem.parameters}
    table = elements_only([problem.term, *(t for _, t in problem.companions)], elements)
    opaque = {str(v.value): e for e, v in table.items()}
    signs = {n: s for n, s in problem.signs if n not in problem.references}
    for name, sign in problem.signs:
        if name in problem.references:
            signs |= {f"old.{name}": sign, f"new.{name}": sign}
    signs |= {**dict.fromkeys(opaque, ""), _STEP: "+"}
    choices = any(n.op in _CHOICES for n in walk(replaced(problem.term, table)))
    try:
        return in_tower(
            lambda case: _Search(case, problem, table, elements | {*opaque}).answer(),
            signs,
            problem.facts if choices else (),
        )
    except NotSeparable as error:
        return _none(problem, error)


def _none(problem: Problem, error: NotSeparable) -> Answer:
    """No answer: a proof that there is none, or numbers that speak for it."""
    reason = re.sub(r"\b(old|new)\.", "", str(error))
    if error.certain or _of_one_side(problem, error.positive):
        return Answer(reason=reason, certain=error.certain, positive=error.positive)
    reason = reason.removesuffix(": state a domain")
    found = growth.ranks(problem.term, problem.references, dict(problem.signs))
    reason += growth.told(found)
    return Answer(reason=reason, certain=False, growing=growth.growing(found))


def _of_one_side(problem: Problem, factor: Expr | None) -> bool:
    """Can a domain tell the sign of a factor, since it is not of element and reference together?"""
    if factor is None:
        return False
    used = {re.sub(r"^(old|new)\.", "", n) for n in names(factor)}
    return not used & set(problem.references) or used <= set(problem.references)


class _Search:
    """One search in one tower: the term at both references, and the sums at hand."""

    def __init__(
        self, case: Case, problem: Problem, table: dict[Expr, Expr], elements: frozenset[str]
    ) -> None:
        self.case = case
        self.references = problem.references
        self.may_vanish = [r for r in problem.references if dict(problem.signs).get(r) != "+"]
        self.elements = elements
        self.table = table
        self.field = problem.field
        self.term = replaced(problem.term, table)
        self.target = self.parts(self.term, "new")
        self.own = self.parts(self.term, "old")
        self.sums: list[Sum] = [
            (var(f"old.{n}"), self.parts(replaced(t, table), "old")) for n, t in problem.companions
        ]

    def parts(self, e: Expr, side: str) -> Separation:
        value = self.case.number(rename(e, {r: f"{side}.{r}" for r in self.references}))
        return separate(self.case.tower, value, self.elements)

    def answer(self) -> Answer:
        found = self.over_moves(self.sums)
        if self.solved(self.sums) and (found is None or found.nonzero):
            whole = found or self.over_moves([*self.sums, *self.composed()]) or self.plain()
            missing = self.missing_at_zero() if whole and whole.nonzero else ()
            return Answer(missing=missing, certain=not self.table) if missing else whole or Answer()
        if found is not None:
            return found
        # NOTE functions without an exact meaning count as independent, which they may not be.
        return Answer(missing=self.missing(), certain=not self.table)

    def corrected(self, sums: Sequence[Sum], factors: Sequence[Expr]) -> Answer:
        """The correction by these factors, of the field and of the sums."""
        term = rename(self.term, {r: f"old.{r}" for r in self.references})
        lost = [r for r in self.may_vanish if lost_at_zero(self.case, term, factors, r)]
        e = assemble([var(self.field), *(e for e, _ in sums)], factors)
        return Answer(correction=e, nonzero=tuple(lost))

    def solved(self, sums: Sequence[Sum]) -> list[Ratio] | None:
        """T with target = T_0 own + sum T_j sums_j."""
        return solve(self.case.tower, [self.own, *(c for _, c in sums)], self.target)

    def over_moves(self, sums: Sequence[Sum]) -> Answer | None:
        """The correction by the fewest sums, over differences (or ratios) of references.

        One that asks for a reference that is not 0 is the last choice.
        """
        asking: Answer | None = None
        span = set(self.target) | set(self.own)
        usable = [s for s in sums if s[1] and set(s[1]) <= span]
        usable.sort(key=lambda s: -len(s[1]))
        if len(usable) > MOST_TRIED:
            usable = self.needed(usable)
        for size in range(min(len(usable), len(span)) + 1):
            found = [
                (chosen, factors)
                for chosen in self.choices(usable, size)
                if (factors := self.solved(chosen)) is not None
            ]
            for way, (chosen, factors) in itertools.product(ways(self.references), found):
                tidy = [self.case.tower.tidy(f) for f in factors]
                short = printed(self.case, tidy, way)
                if short is not None:
                    made = self.corrected(chosen, short)
                    if not made.nonzero:
                        return made
                    asking = asking or made
        return asking

    def needed(self, sums: Sequence[Sum]) -> list[Sum]:
        """The sums that one solution over all of them uses."""
        factors = self.solved(sums)
        if factors is None:
            return []
        pairs = zip(sums, factors[1:], strict=True)
        return [s for s, f in pairs if not self.case.tower.is_zero(f)]

    def choices(self, sums: Sequence[Sum], size: int) -> Iterator[Sequence[Sum]]:
        """All choices of `size` sums; of many only the whole, for they are needed together."""
        if len(sums) <= MOST_TRIED:
            yield from itertools.combinations(sums, size)
        elif size == len(sums):
            yield sums

    def composed(self) -> list[Sum]:
        """Sums of the moved functions, such as old.t - old.mean * old.n for the sum of x - mean."""
        out: list[Sum] = []
        for _, parts in self.moved():
            factors = solve(self.case.tower, [c for _, c in self.sums], parts)
            if factors is not None:
                written = [write(self.case.tower, f) for f in factors]
                e = assemble([e for e, _ in self.sums], written)
                out += [(e, parts)] if e.args else []
        return out

    def plain(self) -> Answer | None:
        """The correction with factors as they come, where nothing is tied by x - r or x / r."""
        factors = self.solved(self.sums)
        if factors is None:
            return None
        written = [write(self.case.tower, self.case.tower.tidy(f)) for f in factors]
        return self.corrected(self.sums, written)

    def missing(self) -> tuple[Expr, ...]:
        """Terms that close the span together with the term and the sums at hand, simplest first."""
        have, lacking = [self.own, *(c for _, c in self.sums)], list[Sum]()
        for e, parts in sorted(self.moved(), key=_simplicity):
            if solve(self.case.tower, have, self.target) is not None:
                break
            if solve(self.case.tower, have, parts) is None:
                lacking.append((e, parts))
                have.append(parts)
        found = self.over_moves([*self.sums, *lacking])
        better = self.missing_at_zero() if found is not None and found.nonzero else ()
        return better or self.meant(lacking)

    def missing_at_zero(self) -> tuple[Expr, ...]:
        """Terms with whose sums a reference may be 0; () if none help."""
        known, lacking = [c for _, c in self.sums], list[Sum]()
        for e, parts in sorted(self.moved(), key=_simplicity):
            if solve(self.case.tower, known, parts) is None:
                lacking.append((e, parts))
            if self.at_zero(lacking):
                break
        else:
            return ()
        for one in tuple(lacking):
            others = [s for s in lacking if s is not one]
            lacking = others if self.at_zero(others) else lacking
        return self.meant(lacking)

    def at_zero(self, more: Sequence[Sum]) -> bool:
        """Is there a correction, with these sums too, that asks for no reference other than 0?"""
        found = self.over_moves([*self.sums, *more])
        return found is not None and not found.nonzero

    def meant(self, sums: Sequence[Sum]) -> tuple[Expr, ...]:
        back = {str(v.value): e for e, v in self.table.items()}
        return tuple(substitute(e, back) for e, _ in sums)

    def moved(self) -> list[Sum]:
        """The functions of the element that the term is made of, moved to the reference."""
        move = self.move()
        terms = [substitute(g, move) for g in functions(self.case, self.own)]
        return [(e, self.parts(e, "old")) for e in terms]

    def move(self) -> dict[str, Expr]:
        """x -> x - r or x / r for every operand that the term ties to a reference in that way."""
        start = rename(self.term, {r: f"old.{r}" for r in self.references})
        found: dict[str, Expr] = {}
        for r, x in itertools.product(self.references, names(self.term)):
            if x not in self.elements or x in found:
                continue
            for op, stepped in (("sub", "add"), ("div", "mul")):
                both = {n: call(stepped, var(n), var(_STEP)) for n in (x, f"old.{r}")}
                change = self.case.number(substitute(start, both)) - self.case.number(start)
                if self.case.tower.is_zero(change):
                    found[x] = call(op, var(x), var(r))
                    break
        return found


def _simplicity(pair: tuple[Expr, Separation]) -> tuple[int, int]:
    return len(pair[1]), sum(1 for _ in walk(pair[0]))
