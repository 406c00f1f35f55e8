"""js_div: the generalised Jensen-Shannon divergence of two log-probabilities, in log space."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.ops import losses
from fusedreduce.ops.arguments import wide
from fusedreduce.ops.compared import compared, row_sums


def relative(a, b):
    """exp(a) (a - b), 0 where exp(a) is 0: the term of KL(exp(a) || exp(b))."""
    p = torch.exp(a)
    return p * torch.where(p == 0, 0.0, a - b)


@fuse
def one_sided(a, b, counted, dtype):
    return row_sums(relative(wide(a), wide(b)), counted, dtype)


@fuse
def mixed(q, p, counted, dtype, beta, log_beta, log_rest):
    """beta P (log P - log M) + (1 - beta) Q (log Q - log M); M is never formed outside its log."""
    q, p = wide(q), wide(p)
    impossible = (q == -torch.inf) & (p == -torch.inf)
    q, p = torch.where(impossible, 0.0, q), torch.where(impossible, 0.0, p)
    m = torch.logaddexp(p + log_beta, q + log_rest)
    terms = beta * relative(p, m) + (1.0 - beta) * relative(q, m)
    return row_sums(torch.where(impossible, 0.0, terms), counted, dtype)


def js_div(
    input: Tensor,
    target: Tensor,
    beta: float = 0.5,
    *,
    labels: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "batchmean",
    impl: str | None = None,
) -> Tensor:
    """beta KL(P || M) + (1 - beta) KL(Q || M), M = beta P + (1 - beta) Q.

    Q = exp(input) is the student, P = exp(target) the teacher; both (..., C), log-probabilities.
    beta = 0.5 is Jensen-Shannon's; at its ends, where that formula is 0, beta = 0 gives the
    forward KL(P || Q) and beta = 1 the reverse KL(Q || P): the limits of the divergence over beta
    and over 1 - beta (generalised knowledge distillation, Agarwal et al. 2024).

    labels     integers (...): a row whose label is ignore_index counts nothing and gets gradient 0
    reduction  "batchmean": the sum over the number of rows that count, at least 1; "mean": over
               that and C; "sum"; "none": the terms (..., C)

    Log-probabilities whose exp is 0 leave loss and gradient finite at any beta within (0, 1). The
    result has the promoted dtype of both, float32 under autocast. Raises `ShapeError`,
    `DtypeError`, `OptionError` before any work.

    >>> import torch, fusedreduce as fr
    >>> q, p = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 0.0]]).log()
    >>> fr.ops.js_div(q, p)
    tensor(0.2158)
    """
    losses.require_share("js_div", "beta", beta)
    options: dict[str, Any] = dict(
        labels=labels, ignore_index=ignore_index, reduction=reduction, impl=impl
    )
    if beta in (0.0, 1.0):
        pair = {"target": target, "input": input}
        pair = pair if beta == 0.0 else dict(reversed(pair.items()))
        return compared("js_div", one_sided, pair, **options)
    numbers = float(beta), math.log(beta), math.log1p(-beta)
    return compared("js_div", mixed, {"input": input, "target": target}, *numbers, **options)
