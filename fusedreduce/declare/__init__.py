"""Declarations: what a user states, as frozen data, and what it means at the edges."""

from fusedreduce.declare.join import join
from fusedreduce.declare.kinds import (
    All,
    Any_,
    ArgMax,
    ArgMin,
    First,
    Max,
    Min,
    Payload,
    Prod,
    Reference,
    Sum,
    state,
)
from fusedreduce.declare.record import Field, Record, Slot
from fusedreduce.declare.reduction import Reduction, require_reduction

Any = Any_
Any.__name__ = Any.__qualname__ = "Any"

__all__ = [
    "All", "Any", "ArgMax", "ArgMin", "Field", "First", "Max", "Min", "Payload", "Prod",
    "Record", "Reduction", "Reference", "Slot", "Sum", "join", "require_reduction", "state",
]  # fmt: skip
