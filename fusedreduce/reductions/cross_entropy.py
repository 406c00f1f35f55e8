"""Cross-entropy of the softmax of scores with any weights: class probabilities, label smoothing."""

from __future__ import annotations

import torch

from fusedreduce.declare import Reference, Sum
from fusedreduce.reductions.log_sum_exp import LogSumExp


class CrossEntropy(LogSumExp):
    """loss = -sum_j w_j log softmax(x)_j for weights w >= 0, and lse = log sum_j exp(x_j).

    `w` has the shape of x (..., N), or broadcasts against it; it need not sum to 1. The weighted
    sum is kept relative to c, the weighted mean of x, so scores far from 0 cost no digits. Where
    w_j = 0 the score may be -inf and counts nothing; elsewhere it makes the loss infinite.

    >>> import torch, fusedreduce as fr
    >>> x, w = torch.tensor([1000.0, 1000.0, -torch.inf]), torch.tensor([0.5, 0.5, 0.0])
    >>> fr.reduce(CrossEntropy, x, w=w, outputs="loss")
    tensor(0.6931)
    """

    domain = {"w": "nonnegative"}
    u = Sum(lambda w: w)
    q = Sum(lambda x, w: w * torch.where(torch.isfinite(x), x, torch.where(w == 0, 0.0, x)))
    # Any c is right, a near one keeps the digits: 1e-6 only spares a weightless row 0 / 0.
    c = Reference(lambda u, q: torch.where(torch.isfinite(q), q / (u + 1e-6), 0.0))
    e = Sum(lambda x, w, c: w * torch.where(torch.isfinite(x), x - c, torch.where(w == 0, 0.0, x)))

    def finish(m, s, u, c, e):
        return {"loss": torch.log(s) * u - (e + (c - m) * u), "lse": m + torch.log(s)}

    def definition(x, w):
        return {
            "loss": -torch.sum(w * torch.log_softmax(x, 0)),
            "lse": torch.logsumexp(x, 0),
        }
