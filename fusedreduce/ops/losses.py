"""What the losses share: names of reductions, dtypes, labels, the last sum over rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import _reduction

from fusedreduce.api.check import may_look_at
from fusedreduce.errors import DtypeError, OptionError, ShapeError, message
from fusedreduce.ops.arguments import require_choice, require_tensor, result_dtype

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


def chosen_reduction(
    op: str,
    name: str,
    size_average: bool | None = None,
    reduce: bool | None = None,
    choices: tuple[str, ...] = ("none", "mean", "sum"),
) -> str:
    """The reduction's name; torch's own older spelling by two booleans is understood."""
    if size_average is not None or reduce is not None:
        name = _reduction.legacy_get_string(size_average, reduce)
    require_choice(op, "reduction", name, choices)
    return name


def loss_dtype(*tensors: Tensor) -> torch.dtype:
    """torch's for a loss, which autocast widens on every device."""
    return result_dtype(*tensors, autocast=("cpu", "cuda"))


def require_labels(op: str, target: Tensor, classes: int, ignore_index: int) -> None:
    """Integers; where values are looked at, each is a class or ignore_index. Else it makes NaN.

    NOTE torch compares unsigned integers with -100 modulo 256: a class would be ignored.
    """
    require_tensor(op, "target", target, floating=False)
    if target.dtype not in SIGNED:
        raise DtypeError(
            message(
                f"{op}: the labels are not signed integers",
                expected="target of int64, or probabilities in the shape of the input",
                came=f"{str(target.dtype).removeprefix('torch.')} of shape {tuple(target.shape)}",
            )
        )
    if not may_look_at(target):
        return
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        raise OptionError(
            message(
                f"{op}: a label is not a class",
                expected=f"0 to {classes - 1}, or ignore_index={ignore_index}",
                came=", ".join(map(str, target[wrong].unique()[:5].tolist())),
                do="mark rows without a label by ignore_index",
            )
        )


def classes_of(op: str, t: Tensor, dim: int) -> int:
    """How many classes a row has; `ShapeError` for a tensor without dimensions."""
    if t.dim():
        return t.shape[dim]
    raise ShapeError(
        message(f"{op}: the input has no dimension of classes", expected="(C,) or more dimensions",
                came="shape ()")
    )  # fmt: skip


def total(rows: Tensor, divisor: Tensor | float | None, reduction: str) -> Tensor:
    """The rows, their sum, or that over a divisor (0 / 0 = NaN) if they are not yet divided."""
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" or divisor is None else rows.sum() / divisor
