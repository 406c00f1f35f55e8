"""What the front door hands out: reduce, fuse, pairwise, attention, stream, prove, ..."""

from fusedreduce.api.attention import attention
from fusedreduce.api.check import check
from fusedreduce.api.explain import explain
from fusedreduce.api.fuse import Fused, FuseTask, fuse
from fusedreduce.api.laws import derive, prove
from fusedreduce.api.pairwise import pairwise
from fusedreduce.api.reduce import ReduceTask, reduce
from fusedreduce.api.stream import Stream, stream

__all__ = [
    "FuseTask", "Fused", "ReduceTask", "Stream", "attention", "check", "derive", "explain", "fuse",
    "pairwise", "prove", "reduce", "stream",
]  # fmt: skip
