"""Norms relative to the largest size, so that nothing overflows before the norm itself does."""

from __future__ import annotations

import torch

from fusedreduce.declare import Max, Reduction, Sum


class EuclideanNorm(Reduction):
    """sqrt(sum_j x_j^2) = k sqrt(sum_j (x_j / k)^2), k = max_j |x_j|, as LAPACK's xNRM2 and xLASSQ.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(EuclideanNorm, torch.tensor([3e30, 4e30]))
    tensor(5.0000e+30)
    """

    k = Max(lambda x: torch.abs(x), identity=0.0, neutral=1.0)
    q = Sum(
        lambda x, k: (x / k) ** 2,
        correct=lambda q, old, new: q * (old.k / new.k) ** 2,
    )

    def finish(k, q):
        return k * torch.sqrt(q)

    def definition(x):
        return torch.sqrt(torch.sum(x * x))


def p_norm(p: float) -> type[Reduction]:
    """A declaration of (sum_j |x_j|^p)^(1 / p) for p > 0. Its p is fixed: state does not hold it.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(p_norm(1), torch.tensor([3.0, -4.0]))
    tensor(7.)
    """

    class PNorm(Reduction):
        k = Max(lambda x: torch.abs(x), identity=0.0, neutral=1.0)
        q = Sum(
            lambda x, k: (torch.abs(x) / k) ** p,
            correct=lambda q, old, new: q * (old.k / new.k) ** p,
        )

        def finish(k, q):
            return k * q ** (1 / p)

        def definition(x):
            return torch.sum(torch.abs(x) ** p) ** (1 / p)

    return PNorm


PNorm = p_norm(3.0)
