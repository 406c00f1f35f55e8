"""T(old, new) as it should run: over differences or ratios of references, never in normal form.

Given    T, the factor by which a field or companion enters a correction, as an exact value
Claim    if T(r, r') = T(r - r', 0), printing T(d, 0) at d = old.r - new.r is exact; likewise
         T(r, r') = T(r / r', 1)
         where T is undefined at r = 0 and the term is not, no rule is right: all sums of x r are 0
Use      the normal form r^2 - 2 r r' + r'^2 cancels and exp(m) / exp(m') overflows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fusedreduce.ir.expr import Expr, call, const, is_const, substitute, var
from fusedreduce.laws.cases import Case, Open
from fusedreduce.laws.ratios import Ratio, Undefined
from fusedreduce.laws.reading import Unsupported
from fusedreduce.laws.spelling import stable
from fusedreduce.laws.writing import product, total, write

MOVES = ("sub", "div", "keep")
_NEUTRAL = {"sub": 0.0, "div": 1.0}


def ways(references: Sequence[str]) -> list[dict[str, str]]:
    """How each reference may enter: by differences of all of them first.

    One that is kept enters as it is, such as the scale s of (x - r) / s; not all are.
    """
    kinds = itertools.product(MOVES, repeat=len(references))
    some = [k for k in kinds if set(k) != {"keep"}]
    some.sort(key=lambda k: k.count("keep"))
    return [dict(zip(references, k, strict=True)) for k in some]


def printed(case: Case, factors: Sequence[Ratio], way: dict[str, str]) -> list[Expr] | None:
    """Every factor over old.r - new.r or old.r / new.r; None if some factor has no such form."""
    out = []
    for f in factors:
        e = _moved(case, f, way)
        if e is None:
            return None
        out.append(e)
    return out


def _moved(case: Case, factor: Ratio, moves: dict[str, str]) -> Expr | None:
    """One factor, each reference moved its way, if that is exact."""
    start = write(case.tower, factor)
    moved = {r: op for r, op in moves.items() if op != "keep"}
    to = {f"new.{r}": const(_NEUTRAL[op]) for r, op in moved.items()}
    try:
        short = write(case.tower, case.tower.tidy(case.number(substitute(start, to))))
        steps = {f"old.{r}": call(op, var(f"old.{r}"), var(f"new.{r}")) for r, op in moved.items()}
        whole = stable(substitute(short, steps))
        return whole if case.tower.is_zero(case.number(whole) - factor) else None
    except Undefined:
        return None


def lost_at_zero(case: Case, term: Expr, factors: Sequence[Expr], r: str) -> bool:
    """Is the term, over old.r, defined where r = 0, and one of the factors not?"""
    if not _defined(case, term, f"old.{r}"):
        return False
    sides = (f"old.{r}", f"new.{r}")
    return not all(_defined(case, f, side) for f in factors for side in sides)


def _defined(case: Case, e: Expr, name: str) -> bool:
    try:
        case.number(substitute(e, {name: const(0.0)}))
    except Undefined:
        return False
    except (Open, Unsupported):  # which value it has depends on the element
        return True
    return True


def assemble(fields: Sequence[Expr], factors: Sequence[Expr]) -> Expr:
    """sum of field * factor, a common exponential factor taken out."""
    pairs = [(f, t) for f, t in zip(fields, factors, strict=True) if not is_const(t, 0)]
    common = _common_factor([t for _, t in pairs])
    if common is None:
        return total(_times(f, t) for f, t in pairs)
    inner = total(_times(f, _without(t, common)) for f, t in pairs)
    return product([inner, common])


def _common_factor(factors: Sequence[Expr]) -> Expr | None:
    """The exponential that ends every factor."""
    ends = {t.args[1] if t.op == "mul" else t for t in factors}
    end = ends.pop() if len(ends) == 1 else None
    return end if end is not None and end.op == "exp" else None


def _without(t: Expr, common: Expr) -> Expr:
    return const(1.0) if t is common else t.args[0]


def _times(f: Expr, t: Expr) -> Expr:
    """f * t as one product: a number first, then the field, no factor 1."""
    if t.op == "neg":
        return -_times(f, t.args[0])
    factors = _factors(t)
    numbers = [x for x in factors[:1] if x.op == "const"]
    rest = factors[len(numbers) :]
    return product([*(x for x in numbers if not is_const(x, 1)), f, *rest])


def _factors(t: Expr) -> list[Expr]:
    """The factors of a product written from left to right."""
    return [*_factors(t.args[0]), t.args[1]] if t.op == "mul" else [t]
