"""log sum_j exp(x_j) and softmax-weighted sums, relative to the running maximum."""

from __future__ import annotations

import torch

from fusedreduce.declare import Max, Payload, Reduction, Sum


class LogSumExp(Reduction):
    """log sum_j exp(x_j), never overflowing (Milakov and Gimelshein 2018).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(LogSumExp, torch.tensor([1000.0, 1000.0]))
    tensor(1000.6932)
    """

    m = Max(lambda x: x)
    s = Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )

    def finish(m, s):
        return m + torch.log(s)

    def definition(x):
        return torch.logsumexp(x, 0)


class MaxAndSum(LogSumExp):
    """m = max_j x_j and s = sum_j exp(x_j - m): softmax keeps both, so that no digit is lost.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(MaxAndSum, torch.tensor([1000.0, 1000.0]))
    {'m': tensor(1000.), 's': tensor(2.)}
    """

    def finish(m, s):
        return {"m": m, "s": s}

    def definition(x):
        m = torch.amax(x, 0)
        return {"m": m, "s": torch.sum(torch.exp(x - m))}


class SoftmaxSum(LogSumExp):
    """out = sum_j softmax(x)_j v_j and lse = log sum_j exp(x_j): what attention is made of.

    `v` is a vector per element: (..., N, D) for x of (..., N).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(SoftmaxSum, torch.zeros(2), v=torch.tensor([[1.0], [3.0]]), outputs="out")
    tensor([2.])
    """

    v = Payload()
    empty = {"out": 0.0, "lse": float("-inf")}
    o = Sum(
        lambda x, m, v: torch.exp(x - m) * v,
        correct=lambda o, old, new: o * torch.exp(old.m - new.m),
    )

    def finish(m, s, o):
        return {"out": o / s, "lse": m + torch.log(s)}

    def definition(x, v):
        p = torch.softmax(x, 0)
        return {"out": torch.sum(p * v), "lse": torch.logsumexp(x, 0)}
