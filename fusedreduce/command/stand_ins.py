"""Tensors without numbers, for the shapes on the command line: enough to print a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch

from fusedreduce import pipeline
from fusedreduce.api import Fused, ReduceTask
from fusedreduce.command.targets import named
from fusedreduce.declare import Reduction
from fusedreduce.errors import OptionError, message

DEFAULT = (4096, 1024)
PAYLOAD_SIZE = 64  # D of a payload for which no shape is given
INTEGER_DOMAINS = {"int": torch.int64, "index": torch.int64, "bool": torch.bool}
Shape: TypeAlias = "tuple[str, tuple[int, ...]]"  # the name it is for, or "", and the sizes


def parsed_shape(text: str) -> Shape:
    """The shape in "4096x1024", "4096,1024" or "weight=1024"."""
    name, _, sizes = text.rpartition("=")
    if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", sizes):
        raise OptionError(
            message("--shape is not a shape", expected="4096x1024 or weight=1024", came=text)
        )
    return name, tuple(map(int, re.split("[x,]", sizes)))


def parsed_dtype(name: str) -> torch.dtype:
    known = {n: v for n, v in vars(torch).items() if isinstance(v, torch.dtype)}
    usual = ["float32", "bfloat16", "float16", "float64", "int32", "int64", "bool"]
    return named(name, known, usual, "--dtype")  # type: ignore[no-any-return]


def placed(shapes: Iterable[Shape], names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Each shape under the name it was given, or the next free one."""
    given = {name: sizes for name, sizes in shapes if name}
    free = [n for n in names if n not in given]
    bare = [sizes for name, sizes in shapes if not name]
    unknown = [n for n in given if n not in names]
    if unknown or len(bare) > len(free):
        raise OptionError(
            message(
                "a --shape for no argument",
                expected=f"shapes of {', '.join(names)}",
                came=", ".join(unknown) or f"{len(bare)} shapes",
            )
        )
    return given | dict(zip(free, bare, strict=False))


def reduce_task(
    R: type[Reduction], shapes: Sequence[Shape], dtype: torch.dtype
) -> tuple[pipeline.Task, dict[str, Any]]:
    """R over the last dimension. Operands without a shape have that of the first."""
    record = R.record
    given = placed(shapes, (*record.operands, *record.payloads))
    first = given.get(record.operands[0], DEFAULT)
    domain = dict(record.domain)
    values = {
        n: torch.empty(
            given.get(n, first), dtype=INTEGER_DOMAINS.get(domain.get(n, ""), dtype), device="meta"
        )
        for n in record.operands
    }
    for n in record.payloads:
        values[n] = torch.empty(given.get(n, (*first, PAYLOAD_SIZE)), dtype=dtype, device="meta")
    return ReduceTask(R, -1, False, record.outputs, None), values


def fused_task(
    fn: Fused[..., Any], shapes: Sequence[Shape], dtype: torch.dtype
) -> tuple[pipeline.Task, dict[str, Any]]:
    """fn of tensors with these shapes; other parameters take their default, or are numbers."""
    parameters = fn.signature.parameters
    given = placed(shapes or [("", DEFAULT)], list(parameters))
    values: dict[str, Any] = {}
    for n, p in parameters.items():
        if n in given:
            values[n] = torch.empty(given[n], dtype=dtype, device="meta")
        else:  # a float is a run-time number: its value does not show in the kernel
            values[n] = 1.0 if p.default is p.empty else p.default
    return fn.runner.task, values
