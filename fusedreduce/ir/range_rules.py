"""One interval rule an operation: the data of the table's column `interval`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fusedreduce.ir.philox import BITS
from fusedreduce.ir.ranges import (
    ANYTHING,
    TRUE,
    End,
    Interval,
    add,
    corners,
    div,
    ends_of,
    falling,
    floordiv,
    hull,
    magnitude,
    mod,
    mul,
    neg,
    power,
    raised,
    rising,
    safely,
    steps,
    sub,
    truth,
)

_INF = math.inf


def maximum(a: Interval, b: Interval) -> Interval:
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi), a.whole and b.whole)


def minimum(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.lo, b.lo), min(a.hi, b.hi), a.whole and b.whole)


def select(c: Interval, a: Interval, b: Interval) -> Interval:
    return a if c.always else b if c.never else hull(a, b)


def sign(a: Interval) -> Interval:
    return Interval((a.lo > 0) - (a.lo < 0), (a.hi > 0) - (a.hi < 0), True)


def _wave(peak: float) -> Callable[..., Interval]:
    """sin moved to be 1 at `peak`: the ends, and 1 or -1 where a turning point is inside."""

    def inside(x: Interval, turn: float) -> bool:
        k = math.ceil((x.lo - turn) / math.tau - 1e-9)
        return turn + k * math.tau <= x.hi + 1e-9

    def rule(x: Interval) -> Interval:
        if not math.isfinite(x.hi - x.lo) or x.hi - x.lo >= math.tau or abs(x.lo) > 1e6:
            return Interval(-1.0, 1.0)
        ends = ends_of([math.cos(x.lo - peak), math.cos(x.hi - peak)], False)
        low = -1.0 if inside(x, peak + math.pi) else ends.lo - 1e-9
        high = 1.0 if inside(x, peak) else ends.hi + 1e-9
        return Interval(max(low, -1.0), min(high, 1.0))

    return rule


def tangent(x: Interval) -> Interval:
    """Increasing on one branch, anything across a pole."""
    finite = math.isfinite(x.lo) and math.isfinite(x.hi)
    branch = [math.floor((end + math.pi / 2) / math.pi) for end in (x.lo, x.hi) if finite]
    return rising(math.tan)(x) if branch and branch[0] == branch[1] else ANYTHING


def angle(a: Interval, b: Interval) -> Interval:
    return corners(math.atan2, a, b, False) if b.lo > 0 else Interval(-math.pi, math.pi)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def less(a: Interval, b: Interval) -> Interval:
    return truth(a.hi < b.lo, a.lo >= b.hi)


def less_equal(a: Interval, b: Interval) -> Interval:
    return truth(a.hi <= b.lo, a.lo > b.hi)


def equal(a: Interval, b: Interval) -> Interval:
    return truth(a.lo == a.hi == b.lo == b.hi, a.hi < b.lo or b.hi < a.lo)


def negation(c: Interval) -> Interval:
    return truth(c.never, c.always)


def both(a: Interval, b: Interval) -> Interval:
    return truth(a.always and b.always, a.never or b.never)


def either(a: Interval, b: Interval) -> Interval:
    return truth(a.always or b.always, a.never and b.never)


def differ(a: Interval, b: Interval) -> Interval:
    return either(both(a, negation(b)), both(negation(a), b))


def _bits(*parts: Interval) -> End:
    """The smallest 2^k such that every value lies in [-2^k, 2^k - 1]."""
    size = max(max(-1 - p.lo, p.hi, 0) for p in parts)
    return _INF if math.isinf(size) else 1 << int(size).bit_length()


def bit_and(a: Interval, b: Interval) -> Interval:
    ceilings = [p.hi for p in (a, b) if p.lo >= 0]
    return Interval(0, min(ceilings), True) if ceilings else Interval(-_bits(a, b), -1 if (
        a.hi < 0 and b.hi < 0) else _bits(a, b) - 1, True)  # fmt: skip


def bit_join(a: Interval, b: Interval) -> Interval:
    """or, exclusive or: no bit that neither argument can have."""
    low = 0 if a.lo >= 0 and b.lo >= 0 else -_bits(a, b)
    return Interval(low, _bits(a, b) - 1, True)


def _shifted(f: Callable[[int, int], int]) -> Callable[..., Interval]:
    def at(x: End, s: End) -> End:
        return f(int(x), int(s)) if math.isfinite(x) else x

    def rule(a: Interval, s: Interval) -> Interval:
        known = s.lo >= 0 and s.hi < 64
        return corners(at, a, s, True) if known else Interval(-_INF, _INF, True)

    return rule


def _anything(*parts: Interval) -> Interval:
    return ANYTHING


RANGES: Mapping[str, Callable[..., Interval]] = {
    **dict.fromkeys(("const", "var", "cast"), _anything),  # forms with a value: see `interval`
    "read": lambda table, index: table,
    "add": add, "sub": sub, "mul": mul, "div": div, "floordiv": floordiv, "mod": mod, "neg": neg,
    "pow": power, "abs": magnitude, "sign": sign, "maximum": maximum, "minimum": minimum,
    "where": select,
    "exp": rising(math.exp), "exp2": rising(lambda x: raised(2.0, x)),
    "expm1": rising(math.expm1),
    "log": rising(lambda x: math.log(x) if x else -_INF, 0),
    "log2": rising(lambda x: math.log2(x) if x else -_INF, 0),
    "log10": rising(lambda x: math.log10(x) if x else -_INF, 0),
    "log1p": rising(lambda x: math.log1p(x) if x > -1 else -_INF, -1),
    "sqrt": rising(math.sqrt, 0), "rsqrt": falling(lambda x: 1 / math.sqrt(x) if x else _INF, 0),
    "reciprocal": lambda x: div(TRUE, x),
    "sin": _wave(math.pi / 2), "cos": _wave(0.0), "tan": tangent,
    "asin": rising(math.asin, -1, 1), "acos": falling(math.acos, -1, 1),
    "atan": rising(math.atan), "atan2": angle,
    "sinh": lambda x: hull(*(Interval(v, v) for v in (
        math.copysign(safely(math.sinh, abs(end)), end) for end in (x.lo, x.hi)))),
    "cosh": lambda x: rising(math.cosh)(magnitude(x)),
    "tanh": rising(math.tanh), "asinh": rising(math.asinh), "acosh": rising(math.acosh, 1),
    "atanh": rising(lambda x: math.atanh(x) if abs(x) < 1 else math.copysign(_INF, x), -1, 1),
    "erf": rising(math.erf), "erfc": falling(math.erfc),
    "sigmoid": rising(_sigmoid), "softplus": rising(_softplus),
    "floor": steps(math.floor), "ceil": steps(math.ceil), "round": steps(round),
    "trunc": steps(math.trunc),
    "eq": equal, "ne": lambda a, b: negation(equal(a, b)),
    "lt": less, "le": less_equal,
    "gt": lambda a, b: less(b, a), "ge": lambda a, b: less_equal(b, a),
    "isnan": lambda x: truth(False, x.whole),
    "isinf": lambda x: truth(False, x.whole or (math.isfinite(x.lo) and math.isfinite(x.hi))),
    "isfinite": lambda x: truth(x.whole, False),
    "and": both, "or": either, "xor": differ, "not": negation,
    "bitand": bit_and, "bitor": bit_join, "bitxor": bit_join,
    "bitnot": lambda a: Interval(-1 - a.hi, -1 - a.lo, True),
    "shl": _shifted(lambda x, s: x << s), "shr": _shifted(lambda x, s: x >> s),
    "random": lambda *counters: Interval(0, 2**BITS - 1, True),
}  # fmt: skip
