"""Numbers first: a law is tried at 40 digits on reachable values, seed fixed; mpmath's only door.

A reachable value is a fold of lifted elements or what such a fold implies; free states would
refute true laws (no Welford state has n = 0 and mean = 3).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mpmath import mp

from fusedreduce.ir.evaluate import Dialect, compiled_all, dialect
from fusedreduce.ir.expr import Expr, names, walk
from fusedreduce.laws.certificate import Counterexample
from fusedreduce.laws.rationals import exact

DIGITS = 40
TRIALS = 40
LARGEST = 10**9  # arguments of exp beyond it give inf or 0: the exponent would fill the memory
ROUNDING = 1e-14  # how far numbers may be apart that literals such as 1.4426950408889634 make
_FARTHEST = 1e6  # literals beyond are not tried as values
_POOL: Mapping[str, tuple[float, ...]] = {
    "real": (0.0, 1.0, -1.0, 2.0, -0.5, 3.25),
    "positive": (1.0, 2.0, 0.5, 3.25),
    "nonnegative": (0.0, 1.0, 2.0, 0.5),
}


@dataclass(frozen=True)
class Trial:
    """left = right for every pair, at random values of the variables in `domains`.

    shown    (name, expression): what a counterexample tells beside the two sides
    require  conditions; a draw that does not meet them is thrown away
    sides    what the two sides are, in words; `{}` takes the name of the pair
    strict   a side without a value (0 / 0) is a counterexample too, not a draw to throw away
    lost     the same only where the right side has a value
    """

    pairs: tuple[tuple[Expr, Expr], ...]
    domains: tuple[tuple[str, str], ...]
    titles: tuple[str, ...] = ()
    shown: tuple[tuple[str, Expr], ...] = ()
    require: tuple[Expr, ...] = ()
    sides: tuple[str, str] = ("left", "right")
    strict: bool = False
    lost: bool = False


@dataclass
class Search:
    """What came of the trials; `rounded` counts those that agree up to the rounding of literals."""

    tried: int = 0
    undefined: int = 0
    rounded: int = 0
    valued: set[str] = field(default_factory=set)  # titles of pairs that had a value some time
    example: Counterexample | None = None
    values: dict[str, Any] = field(default_factory=dict)


def _const(value: Any) -> Any:
    """A number as an mpf; a float literal by the fraction it means."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float) and abs(value) < float("inf"):
        fraction = exact(value)
        return mp.mpf(fraction.numerator) / fraction.denominator
    return mp.mpf(value)


def _exponential(f: Callable[..., Any], at_minus: float) -> Callable[..., Any]:
    """A growing function of one number; what it is at -inf."""

    def rule(v: Any) -> Any:
        return f(v) if not abs(v) > LARGEST else mp.inf if v > 0 else mp.mpf(at_minus)

    return rule


def _periodic(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda v: mp.nan if abs(v) > LARGEST else f(v)


def _power(a: Any, b: Any) -> Any:
    """a ** b, by its size where that is out of reach."""
    if a == 0 or abs(a) == 1 or mp.isinf(b) or mp.isinf(a) or a != a or b != b:
        return mp.power(a, b)
    size = b * mp.log(abs(a))
    if abs(size) <= LARGEST:
        return mp.power(a, b)
    return mp.mpf(0) if size < 0 else mp.inf if a > 0 else mp.nan


_BOUNDED: Mapping[str, Callable[..., Any]] = {
    "exp": _exponential(mp.exp, 0.0),
    "expm1": _exponential(mp.expm1, -1.0),
    "sinh": _exponential(mp.sinh, float("-inf")),
    "cosh": _exponential(mp.cosh, float("inf")),
    "tanh": lambda v: mp.tanh(v) if not abs(v) > LARGEST else mp.sign(v),
    **{n: _periodic(getattr(mp, n)) for n in ("sin", "cos", "tan")},
    "power": _power,
}


class _Reals:
    """mpmath, with functions that answer in bounded time and memory."""

    def __getattr__(self, name: str) -> Any:
        return _BOUNDED.get(name) or getattr(mp, name)


with mp.workdps(DIGITS):
    REALS: Dialect = dialect(
        "mpmath",
        {"mp": _Reals()},
        const=_const,
        value=lambda v: v if isinstance(v, bool) else mp.mpf(v),
    )


def search(trials: Sequence[Trial], *, count: int = TRIALS, seed: int = 0) -> Search:
    """The first counterexample of any trial; `count` draws each."""
    result = Search()
    with mp.workdps(DIGITS):
        for trial in trials:
            _try(trial, result, count, random.Random(seed))
            if result.example is not None:
                break
    return result


def _try(trial: Trial, result: Search, count: int, source: random.Random) -> None:
    order = tuple(n for n, _ in trial.domains)
    sides = tuple(e for pair in trial.pairs for e in pair)
    run = compiled_all((*trial.require, *sides), order, REALS)
    rounding = ROUNDING if _has_rounded(sides) else 0.0
    beyond = _beyond(sides)
    kept = 0
    for _ in range(4 * count):
        values = draw(trial.domains, source, beyond)
        answers = run(*values)
        conditions, numbers = answers[: len(trial.require)], answers[len(trial.require) :]
        if not all(conditions):
            continue
        kept += 1
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        valued = [i for i, (a, b) in enumerate(pairs) if not _no_value(trial, a, b)]
        result.undefined += len(valued) < len(pairs)
        if valued:
            result.tried += 1
            result.valued |= {trial.titles[i] for i in valued if trial.titles}
            differ = [i for i in valued if not close(*pairs[i])]
            wrong = [i for i in differ if not close(*pairs[i], rounding)]
            result.rounded += bool(differ) and not wrong
            if wrong:
                result.values = dict(zip(order, values, strict=True))
                result.example = _example(trial, wrong[0], pairs[wrong[0]], order, values)
                return
        if kept >= count or not order:
            return


def _no_value(trial: Trial, a: Any, b: Any) -> bool:
    """Is the draw to be thrown away because a side is not a number?"""
    if trial.strict:
        return False
    return _is_nan(b) or (_is_nan(a) and not trial.lost)


def _is_nan(v: Any) -> bool:
    return not isinstance(v, bool) and bool(mp.isnan(v))


def _has_rounded(sides: Sequence[Expr]) -> bool:
    """Is there a literal that stands for a number it cannot hold, such as 1.4426950408889634?"""
    literals = (e.value for e in walk(*sides) if e.op == "const" and isinstance(e.value, float))
    return any(abs(v) < float("inf") and exact(v).denominator > 10**7 for v in literals)


def _example(
    trial: Trial, i: int, pair: tuple[Any, Any], order: tuple[str, ...], values: list[Any]
) -> Counterexample:
    left, right = apart(*pair)
    shown = trial.shown
    told = compiled_all(tuple(e for _, e in shown), order, REALS)(*values) if shown else ()
    title = trial.titles[i] if trial.titles else ""
    return Counterexample(
        at=tuple((name, digits(v)) for (name, _), v in zip(shown, told, strict=True)),
        left=(trial.sides[0].format(title), left),
        right=(trial.sides[1].format(title), right),
    )


def draw(
    domains: Sequence[tuple[str, str]], source: random.Random, beyond: Sequence[float] = ()
) -> list[Any]:
    """One value a variable: from a pool with ties, or random; indices are all different.

    `beyond` are values out of the usual range that the law itself speaks of.
    """
    indices = iter(source.sample(range(64), sum(d == "index" for _, d in domains)))
    far = source.random() < 0.5 if beyond else False
    some = beyond if far else ()
    return [next(indices) if d == "index" else _one(d, source, some) for _, d in domains]


def _beyond(sides: Sequence[Expr]) -> tuple[float, ...]:
    """Around every literal larger than what is drawn otherwise: x < 50 may change at 50."""
    literals = {
        float(e.value)
        for e in walk(*sides)
        if e.op == "const" and isinstance(e.value, (int, float)) and 4 < abs(e.value) < _FARTHEST
    }
    return tuple(v for c in sorted(literals) for v in (c, c + 1, c - 1, 2 * c, -c))


def _one(domain: str, source: random.Random, beyond: Sequence[float] = ()) -> Any:
    if domain == "bool":
        return source.random() < 0.5
    if beyond and source.random() < 0.4:
        value = source.choice(beyond)
        if domain == "int":
            return mp.mpf(round(value))
        return mp.mpf(value if domain == "real" else abs(value) + 0.01)
    if domain == "int":
        return mp.mpf(source.randint(-4, 4))
    if source.random() < 0.35:
        return mp.mpf(source.choice(_POOL[domain]))
    value = round(source.uniform(-3, 3), 2)
    return mp.mpf(value if domain == "real" else abs(value) + 0.01)


def close(a: Any, b: Any, rounding: float = 0.0) -> bool:
    """Equal up to half the digits, or to `rounding` if that is more; NaN is equal to nothing."""
    if isinstance(a, bool) or isinstance(b, bool):
        return bool(a) == bool(b)
    if mp.isinf(a) or mp.isinf(b):
        return bool(a == b)
    allowed = max(mp.mpf(10) ** (-DIGITS // 2), mp.mpf(rounding))
    return bool(abs(a - b) <= allowed * (1 + abs(a) + abs(b)))


def digits(v: Any, n: int = 6) -> str:
    """A number as text, without zeros at the end."""
    return str(v) if isinstance(v, bool) else str(mp.nstr(mp.mpf(v), n)).removesuffix(".0")


def apart(a: Any, b: Any) -> tuple[str, str]:
    """Both numbers with digits enough to differ."""
    for n in (6, 10, 16, 24, DIGITS):
        left, right = digits(a, n), digits(b, n)
        if left != right:
            break
    return left, right


def value(e: Expr) -> Any:
    """The number an expression without variables is; NaN if it has none."""
    assert not names(e)
    with mp.workdps(DIGITS):
        return compiled_all((e,), (), REALS)()[0]


def number_at(e: Expr, values: Mapping[str, float]) -> Any:
    """The number an expression is at given values of its variables."""
    order = tuple(dict.fromkeys(names(e)))
    with mp.workdps(DIGITS):
        return compiled_all((e,), order, REALS)(*(values.get(n, 0.0) for n in order))[0]


@contextmanager
def precisely(places: int) -> Iterator[None]:
    """Arithmetic on numbers of `table` with that many digits."""
    with mp.workdps(places):
        yield


def table(
    e: Expr, rows: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]
) -> list[list[Any]]:
    """The numbers an expression is at every row joined with every column of values."""
    order = tuple(dict.fromkeys(names(e)))
    run = compiled_all((e,), order, REALS)
    return [[run(*({**r, **c}[n] for n in order))[0] for c in columns] for r in rows]
