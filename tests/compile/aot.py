"""Ahead-of-time compilation of printed kernels, and what the machine code needs."""

from __future__ import annotations

from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.pair import Pair
from fusedreduce.pipeline import Printed
from fusedreduce.run.compiled import Needs, pair_needs, row_needs
from fusedreduce.run.driver import triton_version
from fusedreduce.run.pair_kernels import Loaded


def older(more: int) -> int:
    """Bytes of stack that a kernel takes besides, as measured, when Triton 3.6 compiles it."""
    return more if triton_version().startswith("3.6.") else 0


def compile_for(made: Printed, capability: int) -> Needs:
    """Compile a printed row kernel for one architecture, specialised as a launch would."""
    return row_needs(made.traced.program, made.kernel, made.plan, made.layout, capability)


def compile_pair(ready: Loaded, pair: Pair, b: PairBackward | None, capability: int) -> Needs:
    """The same of a pair kernel; of a backward the pair is the forward that saves."""
    return pair_needs(ready.kernel, ready.plan, pair if b is None else b.forward, capability)
