"""Facts: what selects a lowering and refuses nothing: bounded, gauge."""

from __future__ import annotations

from fusedreduce.declare.record import Record
from fusedreduce.laws.certificate import Facts
from fusedreduce.laws.settle import Clock


def facts_of(record: Record, commutative: bool | None, clock: Clock) -> Facts:
    return Facts(commutative=commutative)
