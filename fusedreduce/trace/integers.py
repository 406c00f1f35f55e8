"""Integers of traced functions: what torch computes them in, and what is refused because of it.

Kernels compute integers in 64 bits. torch computes them in the dtype of the tensors, where a result
of 8 or 16 bits wraps around, and turns a number beside a tensor into the tensor's dtype. Where both
surely agree nothing is said; where they could differ, 32 bits are wrapped as torch does, and fewer
are refused: few people mean 3 - 5 = 254.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import torch

from fusedreduce.errors import DeclarationError
from fusedreduce.ir.ops import OPS
from fusedreduce.ir.ranges import MAYBE, Interval
from fusedreduce.trace.place import refuse


@dataclass(frozen=True)
class Whole:
    """An integer or a boolean.

    dtype    what torch has it in
    values   what it can be
    varies   with an index: torch computes it as a tensor with dimensions, whose dtype counts more
    """

    dtype: torch.dtype
    values: Interval
    varies: bool = True


Operand: TypeAlias = "Whole | float | None"  # None: a value that is a float


@dataclass(frozen=True)
class Outcome:
    """What an operation becomes; `wraps` is the dtype to convert its result to, or empty."""

    op: str
    kind: str
    whole: Whole | None
    wraps: str = ""


_BITS = {torch.int8: 8, torch.uint8: 8, torch.int16: 16, torch.uint16: 16, torch.int32: 32,
         torch.uint32: 32, torch.int64: 64}  # fmt: skip
_BOOLEAN = frozenset(("and", "or", "xor", "not"))
_CHOOSING = frozenset(("where", "maximum", "minimum"))
_DIVIDING = frozenset(("floordiv", "mod", "shr"))
_FARTHEST = 2**48  # no position lies farther


def any_of(dtype: torch.dtype, varies: bool = True) -> Whole:
    """Any value of a dtype."""
    return Whole(dtype, MAYBE if dtype == torch.bool else _ends(dtype), varies)


def _ends(dtype: torch.dtype) -> Interval:
    limits = torch.iinfo(dtype)
    return Interval(limits.min, limits.max, True)


INDEX = Whole(torch.int64, Interval(-_FARTHEST, _FARTHEST, True))  # offsets may be negative
TRUTH = Whole(torch.bool, MAYBE)


def constant(value: int, dtype: torch.dtype) -> Whole:
    """A tensor of one known element."""
    require_number(value, dtype)
    return Whole(dtype, Interval(int(value), int(value), True), varies=False)


def holds(dtype: torch.dtype, value: int) -> bool:
    if dtype == torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max


def require_number(value: int, dtype: torch.dtype) -> None:
    if not holds(dtype, value):
        raise _number(value, dtype)


def require_numbers(operands: Sequence[Operand], dtype: torch.dtype) -> None:
    for o in operands:
        if o is not None and not isinstance(o, Whole):
            require_number(int(o), dtype)


def converted(whole: Whole, dtype: torch.dtype) -> tuple[Whole, bool]:
    """A conversion to an integer dtype, and whether it may change the value."""
    ends = _ends(dtype)
    fits = _within(whole.values, ends)
    return Whole(dtype, whole.values if fits else ends, whole.varies), not fits


def require_served(dtype: torch.dtype, what: str) -> None:
    """NOTE torch itself computes hardly anything in uint64; int64 would make it negative."""
    known = dtype in _BITS or dtype == torch.bool
    if known or (dtype.is_floating_point and dtype.itemsize > 1):
        return
    raise refuse(
        f"{what} {_name(dtype)}",
        expected="bool, integers up to int64, float16, bfloat16, float32 or float64",
        came=_name(dtype),
        do="convert it: t.long(), t.float()",
    )


def require_index(dtype: torch.dtype) -> None:
    """As torch, which takes uint8 for a mask and refuses the other narrow ones."""
    if dtype not in (torch.int32, torch.int64):
        raise refuse(
            f"an index of a captured tensor is of {_name(dtype)}",
            expected="int32 or int64, as in torch",
            came=_name(dtype),
            do="convert it: x.int()",
        )


def outcome(op: str, operands: Sequence[Operand], kind: str) -> Outcome:
    """op(operands), of the kind that the language says, with torch's integers."""
    meeting = operands[1:] if op == "where" else operands
    floats = any(o is None or isinstance(o, float) for o in meeting)
    asks = OPS[op].result == "bool"  # a comparison, or logic
    if op in _BOOLEAN or (floats and asks):
        return Outcome(op, "bool", TRUTH)
    if floats or kind == "float":
        return Outcome(op, kind, None)
    each, whole = _dtypes(meeting)
    varies = any(isinstance(o, Whole) and o.varies for o in operands)
    if each == torch.bool:
        return _of_booleans(op, asks, varies)
    for dtype in {each} if asks or op in _CHOOSING else {each, whole}:
        require_numbers(meeting, dtype)
    if asks:
        return Outcome(op, "bool", replace(TRUTH, varies=varies))
    values = _values(op, operands)
    if op not in _CHOOSING and _BITS[whole] < 32 and not _within(values, _ends(whole)):
        raise _narrow(op, meeting, values, whole)
    if _within(values, _ends(each)):
        return Outcome(op, "int", Whole(each, values, varies))
    if each == torch.int64:  # which wraps around everywhere
        return Outcome(op, "int", any_of(each, varies))
    if each == torch.int32:
        return Outcome(op, "int", any_of(each, varies), "int32")
    raise _narrow(op, meeting, values, each)


def checked(op: str, operands: Sequence[Operand]) -> torch.dtype | None:
    """What torch computes an operation of tensors in; None where it is floats.

    Numbers that do not fit are refused where wrapping the result is not enough.
    """
    meeting = operands[1:] if op == "where" else operands
    if any(o is None or isinstance(o, float) for o in meeting):
        return None
    _, dtype = _dtypes(meeting)
    asks = OPS[op].result == "bool"
    if dtype == torch.bool and op != "mul":
        _of_booleans(op, asks or op in _BOOLEAN, True)
    if asks or op in _CHOOSING or op in _DIVIDING:
        require_numbers(meeting, dtype)
    return dtype


def _dtypes(operands: Sequence[Operand]) -> tuple[torch.dtype, torch.dtype]:
    """What torch computes in where every operand is one element, and where indices have dimensions.

    Numbers take the dtype of the tensors; of tensors, those with dimensions decide in the second.
    """
    tensors = [o for o in operands if isinstance(o, Whole)]
    number = any(type(o) is int for o in operands)
    each = _joined([w.dtype for w in tensors], number)
    varying = [w.dtype for w in tensors if w.varies]
    alone = varying and any(d != torch.bool for d in varying)
    return each, _joined(varying, number) if alone else each


def _joined(dtypes: Sequence[torch.dtype], number: bool) -> torch.dtype:
    if not dtypes:
        return torch.int64 if number else torch.bool
    try:
        made = reduce(torch.promote_types, dtypes)
    except RuntimeError as error:
        raise refuse(
            "integers of dtypes that torch does not join",
            came=", ".join(map(_name, dtypes)),
            do=f"convert one of them: x.long() ({str(error).splitlines()[0]})",
        ) from None
    return torch.int64 if number and made == torch.bool else made


def _of_booleans(op: str, asks: bool, varies: bool) -> Outcome:
    if asks or op == "where":
        return Outcome(op, "bool", replace(TRUTH, varies=varies))
    if op == "mul":  # torch's product of two booleans is a boolean
        return Outcome("and", "bool", replace(TRUTH, varies=varies))
    raise refuse(
        f"`{op}` of booleans",
        expected="&, |, ^ and ~ of booleans, or a number among them",
        came=f"{op}(bool{', bool' * (OPS[op].arity - 1)})",
        do="convert one, which then counts as 0 or 1: x.int()",
    )


def _values(op: str, operands: Sequence[Operand]) -> Interval:
    """What the operation can answer, before anything wraps around."""
    ranges = [o.values if isinstance(o, Whole) else Interval(int(o or 0), int(o or 0), True)
              for o in operands]  # fmt: skip
    return OPS[op].interval(*ranges)


def _within(values: Interval, ends: Interval) -> bool:
    return ends.lo <= values.lo and values.hi <= ends.hi


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _wider(dtype: torch.dtype) -> str:
    """What to convert tensors of a dtype to."""
    return "long" if _BITS[dtype] >= 32 else "int"


def _number(value: int, dtype: torch.dtype) -> DeclarationError:
    limits = torch.iinfo(dtype)
    wide = dtype == torch.int64
    return refuse(
        f"the number {value} does not fit into {_name(dtype)}",
        expected=f"{limits.min} to {limits.max}" + ("" if wide else ", or wider integers"),
        came=f"{value}" + ("" if wide else f", beside {_name(dtype)}: torch wraps it around"),
        do="" if wide else f"convert the tensor first: ids.{_wider(dtype)}()",
    )


def _narrow(
    op: str, operands: Sequence[Operand], values: Interval, dtype: torch.dtype
) -> DeclarationError:
    limits, name = torch.iinfo(dtype), _name(dtype)
    given = [_name(o.dtype) if isinstance(o, Whole) else str(o) for o in operands]
    return refuse(
        f"`{op}` in {name} may leave {name}",
        expected=f"results from {limits.min} to {limits.max}: others wrap around in torch",
        came=f"{op}({', '.join(given)}): {_end(values.lo)} to {_end(values.hi)}",
        do=f"convert the tensor first: ids.{_wider(dtype)}()",
    )


def _end(end: float) -> str:
    return f"{end}" if math.isfinite(end) else "any number"
