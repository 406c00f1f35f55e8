"""Mean and variance in one pass."""

from __future__ import annotations

import torch

from fusedreduce.declare import First, Reduction, Reference, Sum, state


class Moments(Reduction):
    """mean = sum x / n, biased var = sum (x - mean)^2 / n, by sums shifted to the running mean.

    The first element alone, a running mean alone and Welford alone each lose digits on some row;
    the sum of what rounding left of the mean (`e1`) repairs both results.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Moments, torch.tensor([1.0, 3.0]))
    {'mean': tensor(2.), 'var': tensor(1.)}
    """

    n = Sum(lambda x: 1.0)
    r = First(lambda x: x)
    d1 = Sum(lambda x, r: x - r)
    mean = Reference(lambda n, r, d1: r + d1 / n)
    e1 = Sum(lambda x, mean: x - mean)
    e2 = Sum(lambda x, mean: (x - mean) ** 2)

    def finish(n, mean, e1, e2):
        return {"mean": mean + e1 / n, "var": (e2 - e1 * e1 / n) / n}

    def definition(x):
        mu = torch.mean(x)
        return {"mean": mu, "var": torch.mean((x - mu) ** 2)}


class Welford(Reduction):
    """mean and biased variance by merging (n, mean, m2) (Chan, Golub and LeVeque 1979).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(Welford, torch.tensor([1.0, 3.0]), outputs="var")
    tensor(1.)
    """

    n, mean, m2 = state(0.0, 0.0, 0.0)

    def lift(x):
        return 1.0, x, 0.0

    def merge(a, b):
        n = a.n + b.n
        w = torch.where(n > 0, b.n / n, 0.0)
        d = b.mean - a.mean
        return n, a.mean + d * w, a.m2 + b.m2 + d * d * a.n * w

    def finish(n, mean, m2):
        return {"mean": mean, "var": m2 / n}

    def definition(x):
        mu = torch.mean(x)
        return {"mean": mu, "var": torch.mean((x - mu) ** 2)}
