"""Norms relative to the largest size, so that nothing overflows before the norm itself does."""

from __future__ import annotations

from functools import lru_cache

import torch

from fusedreduce.declare import Max, Reduction, Sum
from fusedreduce.errors import DeclarationError, message


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


@lru_cache(maxsize=64)
def p_norm(p: float) -> type[Reduction]:
    """The declaration of (sum_j |x_j|^p)^(1 / p), for one p > 0.

    Its p belongs to the declaration, not to the call: corrections read the state, no operands.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(p_norm(1.0), torch.tensor([3.0, -4.0]))
    tensor(7.)
    """
    if not 0 < p < float("inf"):
        fact = "a p-norm without a p"
        raise DeclarationError(message(fact, expected="a finite p > 0", came=repr(p)))

    class PNorm(Reduction):
        """(sum_j |x_j|^p)^(1 / p) = k (sum_j (|x_j| / k)^p)^(1 / p), k = max_j |x_j|; here p = 3.

        `p_norm(p)` declares another one.

        >>> import torch, fusedreduce as fr
        >>> fr.reduce(PNorm, torch.tensor([3e30, -4e30, 5e30]))
        tensor(6.0000e+30)
        """

        __qualname__ = "PNorm"  # the name of its kernels
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
