"""How numbers and types are spelled in Triton."""

from __future__ import annotations

from fusedreduce.ir.show import number

TYPES = {"int": "tl.int64", "bool": "tl.int1"}


def literal(value: object) -> str:
    """A Python number as source text.

    >>> literal(float("-inf")), literal(0.0), literal(3)
    ('float("-inf")', '0.0', '3')
    """
    return number(value).text
