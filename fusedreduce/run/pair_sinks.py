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
    """Operands and position of that element; weights of its payload do not matter."""
    score, *weights = record.operands
    read = tables.element(SINKS, [var("h")])
    return (score, read), *((n, const(0.0)) for n in weights), ("j", const(BEFORE))
