"""log sum_j exp(x_j), weighted and signed, and sums under softmax, relative to the maximum."""

from __future__ import annotations

import torch

from fusedreduce.declare import Max, Min, Payload, Reduction, Sum

INF = float("inf")


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
        return {
            "m": m,
            "s": s + (m - m),
        }  # m - m: an infinite maximum makes its row NaN, as in torch

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


class SoftmaxSumEntropy(SoftmaxSum):
    """`SoftmaxSum` with entropy = -sum_j p_j log p_j of p = softmax(x), and max_logit = max_j x_j.

    >>> import torch, fusedreduce as fr
    >>> q, k = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2)
    >>> fr.pairwise(SoftmaxSumEntropy, q, k, outputs="entropy")
    tensor([[[1.3863]]])
    """

    empty = {"out": 0.0, "lse": -INF, "entropy": 0.0, "max_logit": -INF}
    t = Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: (t + old.s * (old.m - new.m)) * torch.exp(old.m - new.m),
    )

    def finish(m, s, o, t):
        lse = m + torch.log(s)
        return {"out": o / s, "lse": lse, "entropy": torch.log(s) - t / s, "max_logit": m}

    def definition(x, v):
        p = torch.softmax(x, 0)
        return {
            "out": torch.sum(p * v),
            "lse": torch.logsumexp(x, 0),
            "entropy": -torch.sum(p * torch.log_softmax(x, 0)),
            "max_logit": torch.amax(x, 0),
        }


class WeightedLogSumExp(Reduction):
    """log sum_j w_j exp(x_j) for weights w >= 0; an element of weight 0 is absent.

    `w` has the shape of x (..., N), or broadcasts against it.

    >>> import torch, fusedreduce as fr
    >>> x = torch.tensor([1000.0, 0.0])
    >>> fr.reduce(WeightedLogSumExp, x, w=torch.tensor([2.0, 1.0]))
    tensor(1000.6932)
    """

    domain = {"w": "nonnegative"}
    m = Max(lambda x, w: torch.where(w == 0, -INF, x))
    s = Sum(
        lambda x, w, m: w * torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )

    def finish(m, s):
        return m + torch.log(s)

    def definition(x, w):
        return torch.log(torch.sum(w * torch.exp(x)))


class SignedLogSumExp(Reduction):
    """log |sum_j w_j exp(x_j)| and the sign of that sum, for weights of either sign.

    `w` has the shape of x (..., N), or broadcasts against it.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(SignedLogSumExp, torch.tensor([1000.0, 0.0]), w=torch.tensor([-1.0, 1.0]))
    {'log_abs': tensor(1000.), 'sign': tensor(-1.)}
    """

    m = Max(lambda x, w: torch.where(w == 0, -INF, x))
    s = Sum(
        lambda x, w, m: w * torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )

    def finish(m, s):
        return {"log_abs": m + torch.log(torch.abs(s)), "sign": torch.sign(s)}

    def definition(x, w):
        total = torch.sum(w * torch.exp(x))
        return {"log_abs": torch.log(torch.abs(total)), "sign": torch.sign(total)}


class SoftmaxEntropy(LogSumExp):
    """entropy = -sum_j p_j log p_j of p = softmax(x), in nats, and lse = log sum_j exp(x_j).

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(SoftmaxEntropy, torch.tensor([1000.0, 1000.0]), outputs="entropy")
    tensor(0.6931)
    """

    empty = {"entropy": 0.0, "lse": -INF}
    t = Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: (t + old.s * (old.m - new.m)) * torch.exp(old.m - new.m),
    )

    def finish(m, s, t):
        return {"entropy": torch.log(s) - t / s, "lse": m + torch.log(s)}

    def definition(x):
        p = torch.softmax(x, 0)
        return {"entropy": -torch.sum(p * torch.log_softmax(x, 0)), "lse": torch.logsumexp(x, 0)}


class SoftMin(Reduction):
    """-log sum_j exp(-x_j), a smooth minimum that never overflows.

    >>> import torch, fusedreduce as fr
    >>> fr.reduce(SoftMin, torch.tensor([-1000.0, -1000.0]))
    tensor(-1000.6932)
    """

    m = Min(lambda x: x)
    s = Sum(
        lambda x, m: torch.exp(m - x),
        correct=lambda s, old, new: s * torch.exp(new.m - old.m),
    )

    def finish(m, s):
        return m - torch.log(s)

    def definition(x):
        return -torch.logsumexp(-x, 0)
