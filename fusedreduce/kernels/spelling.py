"""How numbers and types are spelled in Triton."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from fusedreduce.ir.expr import Expr, walk
from fusedreduce.ir.show import number

TYPES = {"int": "tl.int64", "bool": "tl.int1"}


def literal(value: object) -> str:
    """A Python number as source text.

    >>> literal(float("-inf")), literal(0.0), literal(3)
    ('float("-inf")', '0.0', '3')
    """
    return number(value).text


def wide_constants(exprs: Iterable[Expr], state: str) -> dict[Expr, str]:
    """Spellings of the constants that a float64 kernel would round to float32.

    NOTE: Triton makes a bare 0.1 a float32 in places where nothing else says what it is.
    """
    if state != "float64":
        return {}
    return {
        n: f"tl.full((), {number(n.value).text}, tl.float64)"
        for n in walk(*exprs)
        if n.op == "const" and isinstance(n.value, float) and not is_single(n.value)
    }


def is_single(value: float) -> bool:
    """Is the number exact in float32?

    >>> is_single(0.5), is_single(0.1)
    (True, False)
    """
    try:
        return struct.unpack("f", struct.pack("f", value))[0] == value or value != value
    except OverflowError:
        return False
