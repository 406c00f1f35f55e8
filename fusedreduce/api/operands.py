"""What `reduce` is given, checked before any work: operands, outputs, dimensions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from fusedreduce import trace
from fusedreduce.chain import TracedTensor
from fusedreduce.declare.record import Record
from fusedreduce.declare.restrict import needed_fields
from fusedreduce.errors import OperandError, OptionError, ShapeError, message
from fusedreduce.ir.expr import names as ir_names
from fusedreduce.kernels.names import safe_names


def operand_names(record: Record) -> tuple[str, ...]:
    return (*record.operands, *record.payloads)


def argument_names(record: Record) -> tuple[str, ...]:
    """What the operands are called as arguments of a printed kernel."""
    return safe_names(operand_names(record))


def dtype_kind(value: Any) -> str:
    """bool, int or float: of a tensor or a number."""
    return (
        trace.dtype_kind(value.dtype) if isinstance(value, torch.Tensor) else trace.kind_of(value)
    )


def has_shape(value: Any) -> bool:
    """A tensor, not a number."""
    return isinstance(value, TracedTensor) and isinstance(value.meta, torch.Tensor)


@lru_cache(maxsize=1024)
def reads_payload(record: Record, output: str) -> bool:
    """Does an output depend on a vector per element?"""
    fields = needed_fields(record, frozenset({output}))
    terms = [f.term for f in record.fields if f.name in fields and f.term is not None]
    return any(p in ir_names(*terms) for p in record.payloads)


def arguments_of(record: Record, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The operands by the names they have in a printed kernel."""
    names, safe = operand_names(record), argument_names(record)
    if names == safe:
        return values
    table = dict(zip(names, safe, strict=True))
    return {table[n]: v for n, v in values.items()}


def dims_of(dim: Any) -> int | tuple[int, ...] | None:
    """`dim` as a key: True and 1.0 are equal to 1, but no dimensions."""
    if dim is None or type(dim) is int:
        return dim
    if isinstance(dim, (tuple, list)) and all(type(d) is int for d in dim):
        return tuple(dim)
    raise ShapeError(
        message("dim is no dimension", expected="an integer, a tuple of them or None",
                came=repr(dim)[:80], do="operands after the first are given by name")
    )  # fmt: skip


def outputs_of(record: Record, outputs: str | Sequence[str] | None) -> tuple[str, ...]:
    """The output names asked for, checked."""
    known = record.outputs
    if outputs is not None and not isinstance(outputs, (str, tuple, list)):
        raise OptionError(
            message("outputs is not a name", expected="a name, several or None", came=repr(outputs))
        )
    asked = known if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise OptionError(
                message(
                    f"{record.name} has no output {name!r}",
                    expected=", ".join(map(repr, known)) if known != ("",) else "outputs=None",
                    do=f"did you mean {near[0]!r}?" if near else "",
                )
            )
    return asked


def operands_of(
    record: Record, x: Any, given: Mapping[str, Any], outputs: Sequence[str]
) -> dict[str, Any]:
    """Every operand by name, in the declaration's order; missing and unknown ones are told."""
    names = (*record.operands, *record.payloads)
    if not record.operands:
        raise OperandError(
            message(f"{record.name} reads no operand", do="let a term take x", where=record.line)
        )
    values = {record.operands[0]: x, **given}
    for name in given:
        if name == record.operands[0] or name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise OperandError(
                message(
                    f"{record.name} has no operand `{name}`"
                    if name not in names
                    else f"`{name}` is given twice",
                    expected=", ".join(names),
                    do=f"did you mean `{near[0]}`?" if near else "",
                )
            )
    needed = [n for n in names if n not in record.payloads or is_asked(record, outputs, n)]
    for name in needed:
        if name not in values:
            near = difflib.get_close_matches(name, record.by_name, n=1)
            raise OperandError(
                message(
                    f"{record.name} needs the operand `{name}`",
                    came=", ".join(values),
                    do=f"pass {name}=..., or did you mean the field `{near[0]}`?"
                    if near
                    else f"pass {name}=...",
                    where=record.line,
                )
            )
    for name in needed:
        check_operand(name, values[name], first=name == record.operands[0])
    return {n: values[n] for n in needed}


def is_asked(record: Record, outputs: Sequence[str], payload: str) -> bool:
    return any(reads_payload(record, o) for o in outputs)


def check_operand(name: str, value: Any, first: bool) -> None:
    if isinstance(value, (torch.Tensor, TracedTensor)):
        return
    if not first and isinstance(value, (bool, int, float)):
        return
    raise OperandError(
        message(
            f"operand `{name}` is not a tensor",
            expected="a torch.Tensor" if first else "a torch.Tensor or a number",
            came=f"{type(value).__name__}",
            do="torch.as_tensor(...) makes one",
        )
    )
