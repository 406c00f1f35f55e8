"""Two rows of distributions compared: shapes, ignored rows and reductions of js_div and tvd."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from fusedreduce.ops import losses
from fusedreduce.ops.arguments import require_shape, require_tensor

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
    op: str,
    fused: Any,
    operands: Mapping[str, Tensor],
    *more: float,
    labels: Tensor | None,
    ignore_index: int,
    reduction: str,
    impl: str | None,
) -> Tensor:
    """fused(a, b, counted, dtype, ...) reduced: by the rows that count, at least one.

    operands   a and b, by the names that the caller knows them by
    """
    (first, a), (second, b) = operands.items()
    reduction = losses.chosen_reduction(op, reduction, choices=REDUCTIONS)
    require_tensor(op, first, a)
    classes = losses.classes_of(op, a, -1)
    require_shape(op, second, b, a.shape, f"that of `{first}`")
    counted = None
    if labels is not None:
        require_shape(op, "labels", labels, a.shape[:-1], "a label a row", floating=False)
        ignore_index = losses.whole_index(op, ignore_index)
        counted = losses.comparable(op, "labels", labels, ignore_index) != ignore_index
    dtype = losses.loss_dtype(a, b)
    kept = dtype if reduction == "none" else None
    rows: Tensor = fused(a, b, counted, kept, *more, impl=impl)
    divisor = max(1, prod(a.shape[:-1])) if counted is None else counted.sum().clamp(min=1)
    divisor = divisor * classes if reduction == "mean" else divisor
    return losses.total(rows, divisor, reduction).to(dtype)
