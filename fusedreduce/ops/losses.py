"""What the losses share: names of reductions, dtypes, labels, the last sum over rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction

from fusedreduce.api.check import may_look_at
from fusedreduce.errors import DtypeError, OperandError, OptionError, ShapeError, message

NARROW = (torch.float16, torch.bfloat16)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


def chosen_reduction(
    name: str,
    size_average: bool | None,
    reduce: bool | None,
    choices: tuple[str, ...] = ("none", "mean", "sum"),
) -> str:
    """The reduction's name; torch's own older spelling by two booleans is understood."""
    if size_average is not None or reduce is not None:
        name = _reduction.legacy_get_string(size_average, reduce)
    if name not in choices:
        raise OptionError(
            message(
                "reduction is not one of its choices",
                expected=", ".join(map(repr, choices)),
                came=repr(name),
            )
        )
    return name


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """torch's for a loss: that of the inputs, float32 where autocast would have cast them."""
    found = tensors[0].dtype
    for t in tensors[1:]:
        found = torch.promote_types(found, t.dtype)
    narrow = found in NARROW and torch.is_autocast_enabled(tensors[0].device.type)
    return torch.float32 if narrow else found


def require_floating(**tensors: Tensor | None) -> None:
    """Each is a tensor of floating numbers, or None."""
    for name, t in tensors.items():
        if t is None:
            continue
        if not isinstance(t, torch.Tensor) or not t.is_floating_point():
            raise DtypeError(
                message(
                    f"`{name}` does not hold floating numbers",
                    came=str(t.dtype) if isinstance(t, torch.Tensor) else type(t).__name__,
                    expected="float16, bfloat16, float32 or float64",
                    do=f"convert it: {name}.float()",
                )
            )


def require_share(name: str, value: Any) -> None:
    """A number from 0 to 1, or a tensor of one."""
    number = isinstance(value, (int, float, torch.Tensor, torch.SymFloat))
    if not number or not 0.0 <= value <= 1.0:
        raise OptionError(message(f"{name} is no share", expected="0 to 1", came=repr(value)))


def require_shape(name: str, t: Any, shape: tuple[int, ...], beside: str) -> None:
    if not isinstance(t, torch.Tensor):
        raise OperandError(
            message(f"`{name}` is not a tensor", came=type(t).__name__,
                    do=f"pass torch.as_tensor({name})")
        )  # fmt: skip
    if t.shape != torch.Size(shape):
        raise ShapeError(
            message(
                f"`{name}` does not fit {beside}",
                expected=f"shape {tuple(shape)}",
                came=f"shape {tuple(t.shape)}",
            )
        )


def comparable(target: Tensor, *numbers: int) -> Tensor:
    """Labels, in int64 where their own dtype does not hold the numbers they are compared with.

    NOTE torch compares modulo the range of the tensor: int8 with 300 as with 44. Unsigned ones are
    refused: a class would be -100.
    """
    if target.dtype not in SIGNED:
        raise DtypeError(
            message(
                "the labels are not signed integers",
                expected="target of int64, or probabilities in the shape of the input",
                came=f"{str(target.dtype).removeprefix('torch.')} of shape {tuple(target.shape)}",
            )
        )
    for n in numbers:
        if not isinstance(n, (int, torch.SymInt)):
            raise OptionError(message("ignore_index is not an integer", came=repr(n)))
    if target.dtype == torch.int64:
        return target
    held = torch.iinfo(target.dtype)
    return target if all(held.min <= n <= held.max for n in numbers) else target.long()


def checked_labels(target: Tensor, classes: int, ignore_index: int) -> Tensor:
    """Comparable; where values are looked at, each is a class or ignore_index, else it is NaN."""
    target = comparable(target, classes, ignore_index)
    if not may_look_at(target):
        return target
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        raise OptionError(
            message(
                "a label is not a class",
                expected=f"0 to {classes - 1}, or ignore_index={ignore_index}",
                came=", ".join(map(str, target[wrong].unique()[:5].tolist())),
                do="mark rows without a label by ignore_index",
            )
        )
    return target


def classes_of(t: Tensor, dim: int) -> int:
    """How many classes a row has; `ShapeError` for a tensor without dimensions."""
    if t.dim():
        return t.shape[dim]
    raise ShapeError(message("the input has no dimension of classes", came="shape ()"))


def total(rows: Tensor, divisor: Tensor | float, reduction: str) -> Tensor:
    """The rows, their sum, or that over a divisor (0 / 0 = NaN)."""
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / divisor
