"""More than mean and variance: to the fourth, under weights, with the extremes."""

from __future__ import annotations

import torch

from fusedreduce.declare import First, Max, Min, Reduction, Reference, Sum
from fusedreduce.reductions.moments import Moments


class HigherMoments(Moments):
    """mean, biased var = m_2, skewness = m_3 / m_2^(3/2), kurtosis = m_4 / m_2^2 (3 for a normal).

    m_p = sum (x - mean)^p / n. Corrections are the binomial ones (Pebay 2008), derived. A row of
    equal elements has neither skewness nor kurtosis: 0 / 0.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(HigherMoments, torch.tensor([0.0, 0.0, 0.0, 4.0]), outputs="skewness")
    tensor(1.1547)
    """

    e3 = Sum(lambda x, mean: (x - mean) ** 3)
    e4 = Sum(lambda x, mean: (x - mean) ** 4)

    def finish(n, mean, e1, e2, e3, e4):
        d = e1 / n
        m2, m3 = e2 / n - d * d, e3 / n - d * (3 * e2 / n - 2 * d * d)
        m4 = e4 / n - d * (4 * e3 / n - d * (6 * e2 / n - 3 * d * d))
        shape = {"skewness": m3 / (m2 * torch.sqrt(m2)), "kurtosis": m4 / (m2 * m2)}
        return {"mean": mean + d, "var": m2} | shape

    def definition(x):
        u = x - torch.mean(x)
        v = torch.mean(u**2)
        shape = {"skewness": torch.mean(u**3) / v**1.5, "kurtosis": torch.mean(u**4) / v**2}
        return {"mean": torch.mean(x), "var": v} | shape


class WeightedMoments(Reduction):
    """mean = sum w x / sum w and var = sum w (x - mean)^2 / sum w, for weights w >= 0.

    `w` has the shape of x (..., N), or broadcasts against it.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(WeightedMoments, torch.tensor([1.0, 5.0]), w=torch.tensor([3.0, 1.0]))
    {'mean': tensor(2.), 'var': tensor(3.)}
    """

    domain = {"w": "nonnegative"}
    n = Sum(lambda w: w)
    r = First(lambda x: x)
    d1 = Sum(lambda x, w, r: w * (x - r))
    mean = Reference(lambda n, r, d1: r + d1 / n)
    e1 = Sum(lambda x, w, mean: w * (x - mean))
    e2 = Sum(lambda x, w, mean: w * (x - mean) ** 2)

    def finish(n, mean, e1, e2):
        return {"mean": mean + e1 / n, "var": (e2 - e1 * e1 / n) / n}

    def definition(x, w):
        mu = torch.sum(w * x) / torch.sum(w)
        return {"mean": mu, "var": torch.sum(w * (x - mu) ** 2) / torch.sum(w)}


class Summary(Moments):
    """min, max, mean and biased var in one pass.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Summary, torch.tensor([1.0, 3.0]))
    {'min': tensor(1.), 'max': tensor(3.), 'mean': tensor(2.), 'var': tensor(1.)}
    """

    low, high = Min(lambda x: x), Max(lambda x: x)

    def finish(n, mean, e1, e2, low, high):
        return {"min": low, "max": high, "mean": mean + e1 / n, "var": (e2 - e1 * e1 / n) / n}

    def definition(x):
        mu = torch.mean(x)
        var = torch.mean((x - mu) ** 2)
        return {"min": torch.amin(x), "max": torch.amax(x), "mean": mu, "var": var}
