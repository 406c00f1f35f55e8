"""Declare a reduction once, have its rule proved, and get fused kernels printed from it.

>>> import torch
>>> import fusedreduce as fr
>>> class LogSumExp(fr.Reduction):
...     m = fr.Max(lambda x: x)
...     s = fr.Sum(lambda x, m: torch.exp(x - m),
...                correct=lambda s, old, new: s * torch.exp(old.m - new.m))
...     def finish(m, s):
...         return m + torch.log(s)
>>> fr.prove(LogSumExp).proved
True
>>> fr.reduce(LogSumExp, torch.tensor([[1000.0, 1000.0]]))
tensor([1000.6932])
"""

from fusedreduce import errors, masks, nn, ops, reductions
from fusedreduce.api import (
    attention,
    check,
    derive,
    explain,
    fuse,
    pairwise,
    prove,
    reduce,
    stream,
)
from fusedreduce.declare import (
    All,
    Any,
    ArgMax,
    ArgMin,
    First,
    Max,
    Min,
    Payload,
    Prod,
    Reduction,
    Reference,
    Sum,
    join,
    state,
)
from fusedreduce.masks import mask, score
from fusedreduce.version import __version__ as __version__

__all__ = [
    "All", "Any", "ArgMax", "ArgMin", "First", "Max", "Min", "Payload", "Prod", "Reduction",
    "Reference", "Sum", "attention", "check", "derive", "errors", "explain", "fuse", "join", "mask",
    "masks", "nn", "ops", "pairwise", "prove", "reduce", "reductions", "score", "state", "stream",
]  # fmt: skip
