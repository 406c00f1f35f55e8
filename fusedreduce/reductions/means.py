"""Means by way of a function of the elements: geometric and harmonic."""

from __future__ import annotations

import torch

from fusedreduce.declare import Reduction, Sum


class GeometricMean(Reduction):
    """exp(sum_j log x_j / n), for positive x: the product's n-th root without its overflow.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(GeometricMean, torch.tensor([1.0, 4.0]))
    tensor(2.)
    """

    domain = {"x": "positive"}
    n = Sum(lambda x: 1.0)
    total = Sum(lambda x: torch.log(x))

    def finish(n, total):
        return torch.exp(total / n)

    def definition(x):
        return torch.exp(torch.mean(torch.log(x)))


class HarmonicMean(Reduction):
    """n / sum_j (1 / x_j), for positive x: the mean of rates.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(HarmonicMean, torch.tensor([1.0, 3.0]))
    tensor(1.5000)
    """

    domain = {"x": "positive"}
    n = Sum(lambda x: 1.0)
    total = Sum(lambda x: 1 / x)

    def finish(n, total):
        return n / total

    def definition(x):
        return 1 / torch.mean(1 / x)
