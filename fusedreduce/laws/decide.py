"""The decision: is left = right in every case, within the time given?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusedreduce.ir.expr import Expr, call, const, is_const, names
from fusedreduce.ir.show import show
from fusedreduce.laws.cases import Case, Open
from fusedreduce.laws.ratios import Grow, OutOfTime, Poly, Undefined
from fusedreduce.laws.reading import Infinite, Unsupported, Value
from fusedreduce.laws.symbols import Tower
from fusedreduce.laws.writing import text, write

CASES = 4000
Ask = Callable[[Case], "str | None"]


@dataclass(frozen=True)
class Verdict:
    """The answer of a decision.

    status   "proved", "open" (it may hold), "undefined" (a side has no value), "timeout",
             "unsupported" (an operation without an exact meaning)
    cases    how many cases were looked at
    why      what failed, and in which case
    assumed  what had to be taken as given
    """

    status: str
    cases: int = 0
    why: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        return self.status == "proved"


@dataclass(frozen=True)
class _Path:
    """One case: the booleans chosen, the comparisons added, a factor that is 0 here by a split."""

    truth: tuple[tuple[str, bool], ...]
    facts: tuple[Expr, ...] = ()
    edge: Expr | None = None

    def split(self, by: Open) -> list[_Path]:
        edge = self.edge
        return [
            _Path(self.truth, (*self.facts, f), by.edge if f.op == "eq" and by.edge else edge)
            for f in by.cases
        ]


def in_every_case(
    ask: Ask, signs: Mapping[str, str], facts: Sequence[Expr] = (), *, deadline: float
) -> Verdict:
    """Does `ask` answer None (no objection) in every case? Signs: "+", "0+", "" or "bool"."""
    numbers, booleans = _signs(signs, facts)
    choices = itertools.product((False, True), repeat=len(booleans))
    todo = [_Path(tuple(zip(booleans, values, strict=True))) for values in choices]
    room, scale, cases, assumed = 8, 1, 0, dict[str, None]()
    while todo:
        path = todo.pop()
        case = _case(numbers, path, Tower(numbers, atoms=room, scale=scale, deadline=deadline))
        try:
            if not _possible(case, (*facts, *path.facts)):
                continue
            objection = ask(case)
        except Open as split:
            todo += path.split(split)
            continue
        except Grow as more:
            room, scale = more.atoms, more.scale
            todo.append(path)
            continue
        except (OutOfTime, Undefined, Unsupported, RecursionError) as error:
            if path.edge is not None and isinstance(error, Undefined):
                assumed[f"{show(path.edge)} != 0"] = None
                continue
            return Verdict(_WORDS.get(type(error), "unsupported"), cases, f"{error}{_at(path)}")
        cases += 1
        assumed |= dict.fromkeys(f"{text(case.tower, p)} > 0" for p in case.tower.assumed)
        assumed |= dict.fromkeys(f"{text(case.tower, p)} != 0" for p in case.tower.divisors)
        if objection is not None or cases > CASES:
            return Verdict("open", cases, f"{objection}{_at(path)}", (*assumed,))
    return Verdict("proved", cases, "", tuple(assumed))


_WORDS: Mapping[type[Exception], str] = {OutOfTime: "timeout", Undefined: "undefined"}


def _case(numbers: Mapping[str, str], path: _Path, tower: Tower) -> Case:
    case = Case(tower, {**{n: tower.symbol(n) for n in numbers}, **dict(path.truth)})
    attach(case)
    return case


def _possible(case: Case, facts: Sequence[Expr]) -> bool:
    """Take all facts to be true; False if they contradict each other.

    NOTE a fact that splits the case waits for the others, since |x| <= k may need x < 0 from a
    split before, and a != b whatever is known of a and b: else it would split for ever.
    """
    left = sorted(facts, key=lambda f: f.op == "ne")
    while left:
        waiting: list[tuple[Expr, Open]] = []
        for f in left:
            try:
                if not case.learn(f):
                    return False
            except Open as split:
                waiting.append((f, split))
        if len(waiting) == len(left):
            raise waiting[0][1]
        left = [f for f, _ in waiting]
    return True


def equal(
    pairs: Iterable[tuple[Expr, Expr]],
    signs: Mapping[str, str],
    facts: Sequence[Expr] = (),
    *,
    deadline: float,
    where_defined: bool = False,
) -> Verdict:
    """left = right for every pair in every case?

    With `where_defined`, a pair asks nothing in a case where its right side has no value (the log
    of 0, the root of a negative number), as long as it has one in some case.
    """
    pairs = tuple(pairs)
    judged: set[int] = set()

    def ask(case: Case) -> str | None:
        for i, (left, right) in enumerate(pairs):
            try:
                wanted = case.read(right)
            except Undefined:
                if not where_defined:
                    raise
                continue
            if not same(case, case.read(left), wanted):
                return f"{show(left)} = {show(right)} is open"
            judged.add(i)
        return None

    used = dict.fromkeys(n for e in itertools.chain(*pairs, facts) for n in names(e))
    verdict = in_every_case(ask, {n: signs.get(n, "") for n in used}, facts, deadline=deadline)
    if verdict.proved and verdict.cases and len(judged) < len(pairs):
        return Verdict("undefined", verdict.cases, "the right side has no value in any case")
    return verdict


def same(case: Case, a: Value, b: Value) -> bool:
    """Are two values equal in this case?"""
    if isinstance(a, Infinite) or isinstance(b, Infinite):
        return a == b
    tower = case.tower
    x, y = (tower.number(int(v)) if isinstance(v, bool) else v for v in (a, b))
    difference = x - y
    return tower.is_zero(difference) or case.holds(tower.reduced(difference.num), "=") is True


def soon(seconds: float) -> float:
    """The deadline that many seconds from now."""
    return time.perf_counter() + seconds


def _signs(signs: Mapping[str, str], facts: Sequence[Expr]) -> tuple[dict[str, str], list[str]]:
    """Signs of the numbers, sharpened by facts about single symbols, and the booleans."""
    numbers = {n: s for n, s in signs.items() if s != "bool"}
    for f in facts:
        if f.op in ("gt", "ge") and f.args[0].op == "var" and is_const(f.args[1], 0):
            name = str(f.args[0].value)
            if f.op == "gt" or not numbers.get(name):
                numbers[name] = "+" if f.op == "gt" else "0+"
    return numbers, [n for n, s in signs.items() if s == "bool"]


def attach(case: Case) -> None:
    """Let the tower ask the case for signs."""

    def sign(p: Poly) -> bool | None:
        if case.holds(p, ">") is True:
            return True
        return False if case.holds(-p, ">") is True else None

    def settle(p: Poly) -> bool:
        """p > 0, p < 0, or p = 0, where it may count as positive: its root is 0 either way."""
        known = sign(p)
        if known is None and case.holds(p, "=") is not True:
            e = write(case.tower, case.tower.of(p))
            raise Open(*(call(op, e, const(0.0)) for op in ("gt", "lt", "eq")), edge=e)
        return known is not False

    case.tower.sign_of, case.tower.settle_sign = sign, settle


def _at(path: _Path) -> str:
    return f" where {' and '.join(map(show, path.facts))}" if path.facts else ""


def positive(e: Expr) -> Expr:
    return call("gt", e, const(0.0))


def nonnegative(e: Expr) -> Expr:
    return call("ge", e, const(0.0))
