"""tvd: the total variation distance of two distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.ops.arguments import wide
from fusedreduce.ops.compared import compared, row_sums


@fuse
def distance(p, q, counted, dtype):
    return row_sums(0.5 * torch.abs(wide(p) - wide(q)), counted, dtype)


def tvd(
    p: Tensor,
    q: Tensor,
    *,
    labels: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "batchmean",
    impl: str | None = None,
) -> Tensor:
    """0.5 sum_j |p_j - q_j| of probabilities p, q (..., C); the slope at p_j = q_j is 0.

    labels, ignore_index, reduction, the dtype of the result and errors are those of `js_div`.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.tvd(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.5000)
    """
    options: dict[str, Any] = dict(
        labels=labels, ignore_index=ignore_index, reduction=reduction, impl=impl
    )
    return compared("tvd", distance, {"p": p, "q": q}, **options)
