"""Ready-made declarations: proved, with no kernels of their own. docs/reductions.md lists them.

>>> import torch, fusedreduce as fr
>>> fr.reduce(fr.reductions.Total, torch.tensor([1.0, 2.0]))
tensor(3.)
"""

from fusedreduce.reductions.cross_entropy import CrossEntropy
from fusedreduce.reductions.higher import HigherMoments, Summary, WeightedMoments
from fusedreduce.reductions.log_sum_exp import (
    LogSumExp,
    MaxAndSum,
    SignedLogSumExp,
    SoftmaxEntropy,
    SoftmaxSum,
    SoftmaxSumEntropy,
    SoftMin,
    WeightedLogSumExp,
)
from fusedreduce.reductions.means import GeometricMean, HarmonicMean
from fusedreduce.reductions.moments import Moments, Welford
from fusedreduce.reductions.norms import EuclideanNorm, PNorm
from fusedreduce.reductions.norms import p_norm as p_norm  # no declaration: it makes one
from fusedreduce.reductions.pairs import Correlation, CosineSimilarity, Covariance
from fusedreduce.reductions.plain import (
    AllOf,
    AnyOf,
    Argmax,
    Argmin,
    CompensatedSum,
    Largest,
    Mean,
    Product,
    ProductAndZeros,
    Smallest,
    TopTwo,
    Total,
)
from fusedreduce.reductions.sequences import AffineComposition, LossStatistics, MaxSubarray

__all__ = [
    "AffineComposition", "AllOf", "AnyOf", "Argmax", "Argmin", "CompensatedSum", "Correlation",
    "CosineSimilarity", "Covariance", "CrossEntropy", "EuclideanNorm", "GeometricMean",
    "HarmonicMean", "HigherMoments", "Largest", "LogSumExp", "LossStatistics", "MaxAndSum",
    "MaxSubarray", "Mean", "Moments", "PNorm", "Product", "ProductAndZeros", "SignedLogSumExp",
    "Smallest", "SoftMin", "SoftmaxEntropy", "SoftmaxSum", "SoftmaxSumEntropy", "Summary",
    "TopTwo", "Total", "WeightedLogSumExp", "WeightedMoments", "Welford",
]  # fmt: skip
