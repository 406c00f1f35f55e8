"""The printed helpers: functions that Triton lacks, as the text that goes into printed kernels.

Each is plain Triton (no libdevice, no inline assembly), so it runs in the interpreter and on every
target, in float32 and, by a branch the compiler decides, in float64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fusedreduce.kernels.elementary import ELEMENTARY

_ARITHMETIC = """
@triton.jit
def square(x):
    return x * x


@triton.jit
def cube(x):
    return x * x * x


@triton.jit
def fourth(x):
    y = x * x
    return y * y


@triton.jit
def multiply(a, b):  # for tl.reduce
    return a * b


@triton.jit
def union(a, b):  # of sets as bits; for tl.reduce
    return a | b


@triton.jit
def max_propagating(a, b):  # NaN if either is, as torch; for tl.reduce
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min_propagating(a, b):  # NaN if either is, as torch; for tl.reduce
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def isinf(x):
    return tl.abs(x) == float("inf")


@triton.jit
def isfinite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def sign(x):  # 0 for NaN, as torch
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def odd(x, r):  # the odd extension of r = f(|x|); x itself at 0, -0 and NaN
    return tl.where(x > 0, r, tl.where(x < 0, -r, x))


@triton.jit
def trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def rint(x):  # to the nearest integer, ties to the even one
    below = tl.floor(x)
    even = 2.0 * tl.floor(0.5 * below + 0.5)
    far = x - below
    r = tl.where(far == 0.5, even, tl.where(far > 0.5, below + 1.0, below))
    return tl.where(far == 0, x, tl.where(r == 0, x * 0.0, r))


@triton.jit
def floor_mod(a, b):  # the remainder with the sign of b; Triton's has the sign of a
    r = a % b + (a - a)  # NaN for an infinite a
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def floor_div(a, b):  # the quotient rounded down; Triton's is rounded toward 0
    r = a % b
    apart = ((r != 0) & ((r < 0) != (b < 0))).to(r.dtype)
    if r.dtype.is_int():
        return (a - r) // b - apart
    else:
        q = (a - r) / b - apart
        down = tl.floor(q)
        return tl.where(b == 0, a / b, tl.where(q - down > 0.5, down + 1.0, down))


@triton.jit
def random(seed, c0, c1, c2, c3):  # 24 bits of Philox 4x32-10: four positions share its rounds
    c0, c1 = tl.cast(c0, tl.int32), tl.cast(c1, tl.int32)
    c2, c3 = tl.cast(c2, tl.int32), tl.cast(c3, tl.int32)
    w, x, y, z = tl.philox(seed, c0 & -9, c1, c2 & -9, c3)
    even, odd = tl.where((c0 & 8) == 0, w, x), tl.where((c0 & 8) == 0, y, z)
    return (tl.where((c2 & 8) == 0, even, odd) >> 8).to(tl.int32)
"""


@dataclass(frozen=True)
class Function:
    """The text of a printed helper and the names of the helpers it calls."""

    text: str
    needs: tuple[str, ...]


def _split(source: str) -> Mapping[str, Function]:
    """The helpers of a source text by name; what each needs is read from its calls."""
    texts = [f"@triton.jit{part}".strip() for part in source.split("@triton.jit")[1:]]
    named = {re.findall(r"def (\w+)\(", text)[0]: text for text in texts}
    calls = {name: re.findall(r"(?<![\w.])(\w+)\(", text)[1:] for name, text in named.items()}
    needs = {name: tuple(dict.fromkeys(c for c in calls[name] if c in named)) for name in named}
    return MappingProxyType({name: Function(text, needs[name]) for name, text in named.items()})


FUNCTIONS: Mapping[str, Function] = _split(_ARITHMETIC + ELEMENTARY)


def with_needs(names: Iterable[str]) -> tuple[str, ...]:
    """The helpers and all they need, each before the ones that call it.

    >>> with_needs(["softplus", "log1p"])
    ('log1p', 'softplus')
    """
    found: dict[str, None] = {}
    for name in names:
        for needed in (*with_needs(FUNCTIONS[name].needs), name):
            found.setdefault(needed)
    return tuple(found)
