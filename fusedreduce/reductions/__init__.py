"""Ready-made declarations: proved, with no kernels of their own.

>>> import torch, fusedreduce as fr
>>> fr.reduce(fr.reductions.Total, torch.tensor([1.0, 2.0]))
tensor(3.)
"""

from fusedreduce.reductions.log_sum_exp import LogSumExp, MaxAndSum, SoftmaxSum
from fusedreduce.reductions.moments import Moments, Welford
from fusedreduce.reductions.plain import AllOf, AnyOf, Largest, Mean, Product, Smallest, Total

__all__ = [
    "AllOf", "AnyOf", "Largest", "LogSumExp", "MaxAndSum", "Mean", "Moments", "Product", "Smallest",
    "SoftmaxSum", "Total", "Welford",
]  # fmt: skip
