"""What the front door hands out: reduce, fuse, stream, prove, derive, check."""

from fusedreduce.api.check import check
from fusedreduce.api.fuse import Fused, FuseTask, fuse
from fusedreduce.api.laws import derive, prove
from fusedreduce.api.reduce import ReduceTask, reduce
from fusedreduce.api.stream import Stream, stream

__all__ = [
    "FuseTask", "Fused", "ReduceTask", "Stream", "check", "derive", "fuse", "prove", "reduce",
    "stream",
]  # fmt: skip
