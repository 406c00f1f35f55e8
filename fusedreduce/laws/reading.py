"""What each operation means on exact values; what has no exact meaning is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

from fusedreduce.ir.expr import Expr
from fusedreduce.laws.ratios import Ratio, Undefined, powers_within_reach
from fusedreduce.laws.symbols import Tower


@dataclass(frozen=True)
class Infinite:
    """+inf or -inf: never inside a ratio, and inf - inf, 0 * inf, inf / inf are undefined."""

    sign: int

    def __neg__(self) -> Infinite:
        return Infinite(-self.sign)


Value: TypeAlias = "Ratio | bool | Infinite"


class Unsupported(Exception):
    """An operation without an exact meaning here (floor, erf, bits, ...)."""


class Reader(Protocol):
    """What the rules need: the tower, and answers to comparisons."""

    tower: Tower

    def truth(self, v: Ratio, relation: str) -> bool: ...
    def is_nonzero(self, v: Ratio) -> bool: ...


Rule: TypeAlias = Callable[..., Value]


def apply(reader: Reader, op: str, args: tuple[Any, ...]) -> Value:
    """op(args) of values; comparisons and choices are made elsewhere."""
    if op in LOGIC:
        unknown = op in ("not", "xor") and not all(isinstance(a, bool) for a in args)
        return _unknown(reader, op, args) if unknown else LOGIC[op](*args)
    numbers = tuple(reader.tower.number(int(a)) if isinstance(a, bool) else a for a in args)
    if any(isinstance(a, Infinite) for a in numbers):
        return _at_infinity(reader, op, numbers)
    if op not in ARITHMETIC:
        raise Unsupported(op)
    return ARITHMETIC[op](reader, *numbers)


def _unknown(reader: Reader, op: str, args: tuple[Any, ...]) -> Value:
    """not, xor of conditions that are an unknown 0 or 1."""
    one = reader.tower.one
    a, *rest = (reader.tower.number(int(v)) if isinstance(v, bool) else v for v in args)
    return one - a if op == "not" else a + rest[0] - a * rest[0] * reader.tower.number(2)


def divide(reader: Reader, a: Ratio, b: Ratio) -> Ratio:
    if reader.tower.is_zero(b):
        raise Undefined("division by 0")
    if not reader.is_nonzero(b):
        reader.tower.divisors[b.num] = None
    return a / b


def power(reader: Reader, a: Ratio, b: Ratio) -> Ratio:
    exponent = b.constant
    if exponent is not None:
        if exponent.denominator > 10**6 or not powers_within_reach(a, int(exponent)):
            raise Unsupported("pow with a long exponent")
        if exponent < 0 and not reader.is_nonzero(a):
            reader.tower.divisors[a.num] = None
        return reader.tower.power(a, exponent)
    return reader.tower.exp(b * reader.tower.log(a))


def _exp(reader: Reader, v: Ratio) -> Ratio:
    return reader.tower.exp(v)


def _log(reader: Reader, v: Ratio) -> Ratio:
    return reader.tower.log(v)


def _log_to(base: int) -> Callable[[Reader, Ratio], Ratio]:
    def rule(reader: Reader, v: Ratio) -> Ratio:
        return reader.tower.log(v) / reader.tower.log(reader.tower.number(base))

    return rule


def _hyperbolic(reader: Reader, v: Ratio) -> tuple[Ratio, Ratio]:
    """sinh v, cosh v."""
    half, up, down = reader.tower.number(Fraction(1, 2)), _exp(reader, v), _exp(reader, -v)
    return (up - down) * half, (up + down) * half


def _tanh(reader: Reader, v: Ratio) -> Ratio:
    sine, cosine = _hyperbolic(reader, v)
    return sine / cosine


def _exp2(reader: Reader, v: Ratio) -> Ratio:
    return reader.tower.exp(v * reader.tower.log(reader.tower.number(2)))


def _same(reader: Reader, v: Ratio) -> Ratio:
    return v


ARITHMETIC: Mapping[str, Callable[..., Ratio]] = {
    "add": lambda r, a, b: a + b,
    "sub": lambda r, a, b: a - b,
    "mul": lambda r, a, b: a * b,
    "neg": lambda r, a: -a,
    "div": divide,
    "pow": power,
    "reciprocal": lambda r, a: divide(r, r.tower.one, a),
    "exp": _exp,
    "exp2": _exp2,
    "expm1": lambda r, a: r.tower.exp(a) - r.tower.one,
    "log": _log,
    "log2": _log_to(2),
    "log10": _log_to(10),
    "log1p": lambda r, a: r.tower.log(r.tower.one + a),
    "sqrt": lambda r, a: r.tower.root(a, 2),
    "rsqrt": lambda r, a: divide(r, r.tower.one, r.tower.root(a, 2)),
    "sin": lambda r, a: r.tower.sin_cos(a)[0],
    "cos": lambda r, a: r.tower.sin_cos(a)[1],
    "tan": lambda r, a: divide(r, *r.tower.sin_cos(a)),
    "sinh": lambda r, a: _hyperbolic(r, a)[0],
    "cosh": lambda r, a: _hyperbolic(r, a)[1],
    "tanh": _tanh,
    "sigmoid": lambda r, a: r.tower.one / (r.tower.one + r.tower.exp(-a)),
    "softplus": lambda r, a: r.tower.log(r.tower.one + r.tower.exp(a)),
    "cast": _same,
}


def is_exact(e: Expr) -> bool:
    """Has a node an exact meaning? A conversion to a float type; isfinite(x) of a real element."""
    if e.op == "cast":
        return "float" in str(e.value)
    if e.op in ("isnan", "isinf", "isfinite"):
        return e.args[0].op == "var"
    return e.op in ARITHMETIC


LOGIC: Mapping[str, Callable[..., bool]] = {
    "not": lambda a: not a,
    "xor": lambda a, b: a != b,
    "isnan": lambda a: False,
    "isinf": lambda a: isinstance(a, Infinite),
    "isfinite": lambda a: not isinstance(a, Infinite),
}


def _at_infinity(reader: Reader, op: str, args: tuple[Any, ...]) -> Value:
    """The usual limits; anything else is undefined."""
    rule = _INFINITE.get(op)
    if rule is None:
        raise Undefined(f"{op} of an infinity")
    return rule(reader, *args)


def _sign(reader: Reader, v: Any) -> int:
    """The sign of a number or an infinity that is not 0."""
    if isinstance(v, Infinite):
        return v.sign
    if reader.truth(v, "="):
        raise Undefined("0 * inf")
    return 1 if reader.truth(v, ">") else -1


def _add(reader: Reader, a: Any, b: Any) -> Value:
    if isinstance(a, Infinite) and isinstance(b, Infinite) and a.sign != b.sign:
        raise Undefined("inf - inf")
    return a if isinstance(a, Infinite) else Infinite(b.sign)


def _div(reader: Reader, a: Any, b: Any) -> Value:
    if isinstance(b, Infinite):
        if isinstance(a, Infinite):
            raise Undefined("inf / inf")
        return reader.tower.zero
    return Infinite(a.sign * _sign(reader, b))


def _growing(at_minus: int | None) -> Callable[..., Value]:
    """A function that is inf at inf and the given number at -inf (None: undefined there)."""

    def rule(reader: Reader, v: Infinite) -> Value:
        if v.sign > 0:
            return v
        if at_minus is None:
            raise Undefined("a function of -inf")
        return reader.tower.number(at_minus)

    return rule


_INFINITE: Mapping[str, Callable[..., Value]] = {
    "add": _add,
    "sub": lambda r, a, b: _add(r, a, -b),
    "mul": lambda r, a, b: Infinite(_sign(r, a) * _sign(r, b)),
    "div": _div,
    "neg": lambda r, a: -a,
    "exp": _growing(0),
    "exp2": _growing(0),
    "softplus": _growing(0),
    "log": _growing(None),
    "sqrt": _growing(None),
    "cast": lambda r, a: a,
}
