"""Sinks of a pair: the element before every key that they are, and the sum of its gradient.

    sinks (H,): of head h an element of score sinks[h], whose payloads are 0

Kernels and tiles start from its state, so it costs no pass of its own.
"""

from __future__ import annotations

from fusedreduce.declare.record import Record
from fusedreduce.ir import tables
from fusedreduce.ir.expr import Expr, const, var
from fusedreduce.pair import BEFORE

SINKS = "sinks"  # the table, and the argument


def sink(record: Record) -> tuple[tuple[str, Expr], ...]:
    """Operands, payloads and position of that element; no weight is dropped."""
    score, *weights = record.operands
    found: dict[str, Expr] = {score: tables.element(SINKS, [var("h")])}
    found |= dict.fromkeys(record.payloads, const(0.0)) | dict.fromkeys(weights, const(1.0))
    return *found.items(), ("j", const(BEFORE))
