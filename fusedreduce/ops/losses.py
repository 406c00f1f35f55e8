"""What the losses share: names of reductions, dtypes, labels, the last sum over rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction

from fusedreduce.api.check import may_look_at
from fusedreduce.errors import DtypeError, OptionError, ShapeError, message
from fusedreduce.ops.arguments import require_choice, require_tensor, result_dtype, whole

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


def require_share(op: str, name: str, value: Any) -> None:
    """A number from 0 to 1, or a tensor of one."""
    if isinstance(value, torch.Tensor):
        known = value.numel() == 1 and not value.is_complex()
    else:
        known = isinstance(value, (int, float, torch.SymFloat))
    if not known or not 0.0 <= value <= 1.0:
        raise OptionError(
            message(f"{op}: `{name}` is no share", expected="a number from 0 to 1",
                    came=repr(value)[:80])
        )  # fmt: skip


def whole_index(op: str, ignore_index: Any) -> int:
    """`ignore_index`, an integer of any make."""
    known = isinstance(ignore_index, (int, torch.SymInt))
    found: int | None = ignore_index if known else whole(ignore_index)
    if found is None:
        raise OptionError(
            message(f"{op}: `ignore_index` is not an integer", expected="an integer",
                    came=repr(ignore_index)[:80])
        )  # fmt: skip
    return found


def comparable(op: str, name: str, labels: Tensor, *numbers: int) -> Tensor:
    """Labels, in int64 where their own dtype does not hold the numbers they are compared with.

    NOTE torch compares modulo the range of the tensor: int8 with 300 as with 44. Unsigned ones are
    refused: a class would be -100.
    """
    require_tensor(op, name, labels, floating=False)
    if labels.dtype not in SIGNED:
        raise DtypeError(
            message(
                f"{op}: the labels are not signed integers",
                expected=f"{name} of int64, or probabilities in the shape of the input",
                came=f"{str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}",
            )
        )
    if labels.dtype == torch.int64:
        return labels
    held = torch.iinfo(labels.dtype)
    return labels if all(held.min <= n <= held.max for n in numbers) else labels.long()


def checked_labels(op: str, target: Tensor, classes: int, ignore_index: int) -> Tensor:
    """Comparable; where values are looked at, each is a class or ignore_index, else it is NaN."""
    target = comparable(op, "target", target, classes, ignore_index)
    if not may_look_at(target):
        return target
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
    return target


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
