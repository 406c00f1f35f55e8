"""Two rows of distributions compared: shapes, ignored rows and reductions of js_div and tvd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce.ops import losses

REDUCTIONS = ("none", "mean", "batchmean", "sum")


def row_sums(terms, counted, dtype):
    """Inside a fused function: the terms in a dtype, or (None) their sums along the last dimension.

    A row that is not counted is 0; counted None means all are.
    """
    if dtype is None:
        sums = torch.sum(terms, -1)
        return sums if counted is None else torch.where(counted, sums, 0.0)
    return (terms if counted is None else torch.where(counted.unsqueeze(-1), terms, 0.0)).to(dtype)


def compared(
    fused: Any,
    a: Tensor,
    b: Tensor,
    *more: float,
    labels: Tensor | None,
    ignore_index: int,
    reduction: str,
    impl: str | None,
) -> Tensor:
    """fused(a, b, counted, dtype, ...) reduced: by the rows that count, at least one."""
    reduction = losses.chosen_reduction(reduction, None, None, REDUCTIONS)
    losses.require_floating(input=a, target=b)
    classes = losses.classes_of(a, -1)
    losses.require_shape("target", b, a.shape, "the input")
    counted = None
    if labels is not None:
        losses.require_shape("labels", labels, a.shape[:-1], "the input's rows")
        counted = losses.comparable(labels, ignore_index) != ignore_index
    dtype = losses.result_dtype(a, b)
    kept = dtype if reduction == "none" else None
    rows: Tensor = fused(a, b, counted, kept, *more, impl=impl)
    divisor = max(1, a.shape[:-1].numel()) if counted is None else counted.sum().clamp(min=1)
    divisor = divisor * classes if reduction == "mean" else divisor
    return losses.total(rows, divisor, reduction).to(dtype)
