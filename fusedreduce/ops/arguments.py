"""What an operation is given, checked before any work; and the dtypes it reads and answers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from fusedreduce.errors import DtypeError, OperandError, OptionError, ShapeError, message


def require_tensor(op: str, name: str, value: Any, floating: bool = True) -> None:
    """`value` is a tensor (inside a fused function too), by default one of floating numbers."""
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        raise OperandError(
            message(f"{op}: `{name}` is not a tensor", came=type(value).__name__,
                    do=f"pass torch.as_tensor({name})")
        )  # fmt: skip
    if floating and not (dtype.is_floating_point and dtype.itemsize > 1):
        raise DtypeError(
            message(
                f"{op}: `{name}` does not hold floating-point numbers of 16 bits or more",
                expected="float16, bfloat16, float32 or float64",
                came=str(dtype).removeprefix("torch."),
                do=f"convert it: {name}.float()",
            )
        )


def require_tensors(op: str, **values: Any) -> None:
    """Each is a tensor of floating numbers."""
    for name, value in values.items():
        require_tensor(op, name, value)


def require_shape(
    op: str, name: str, value: Any, shape: Sequence[int], why: str, floating: bool = True
) -> None:
    """`value` is None, or a tensor of this shape, by default one of floating numbers."""
    if value is None:
        return
    require_tensor(op, name, value, floating)
    if tuple(value.shape) != tuple(shape):
        raise ShapeError(
            message(
                f"{op}: `{name}` does not fit the input",
                expected=f"the shape {tuple(shape)}, {why}",
                came=f"{tuple(value.shape)}",
            )
        )


def broadcast_shape(op: str, **tensors: Any) -> torch.Size:
    """The shape that all of these broadcast to."""
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    first, *others = (t.shape for t in tensors.values())
    if all(s == first for s in others):  # what torch.broadcast_shapes takes 6 us to say
        return first
    try:
        found: torch.Size = torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        raise ShapeError(
            message(
                f"{op}: {' and '.join(f'`{n}`' for n in shapes)} do not broadcast",
                expected="sizes that are equal, or 1, counted from the last dimension",
                came=", ".join(f"{name} {shape}" for name, shape in shapes.items()),
            )
        ) from None
    return found


def require_dim(op: str, dim: Any, rank: int) -> int:
    """One dimension, counted from the front. A 0-d tensor counts as one of one dimension."""
    span, place = max(rank, 1), whole(dim)
    if place is None or not -span <= place < span:
        raise ShapeError(
            message(
                f"{op}: `dim` is not a dimension of the input",
                expected=f"an integer from {-span} to {span - 1}",
                came=repr(dim)[:80],
            )
        )
    return place % span


def whole(value: Any) -> int | None:
    """An integer of any make (not a truth value), or None."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def real(op: str, name: str, value: Any) -> float:
    """A number of any make, as a float."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(
            message(f"{op}: `{name}` is not a number", expected="a number", came=repr(value)[:80])
        ) from None


def require_dtype(op: str, dtype: Any) -> None:
    """`dtype` is None, or one of floating-point numbers."""
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return
    raise DtypeError(
        message(f"{op}: `dtype` is not one of floating-point numbers", came=repr(dtype)[:80],
                expected="None, torch.float16, torch.bfloat16, torch.float32 or torch.float64")
    )  # fmt: skip


def require_choice(op: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise OptionError(
            message(f"{op}: `{name}` is not one of its choices",
                    expected=", ".join(map(repr, choices)), came=repr(value)[:80])
        )  # fmt: skip


def normalized_dims(op: str, input: Any, normalized_shape: Any) -> tuple[int, ...]:
    """The last dimensions, whose sizes are `normalized_shape`."""
    require_tensor(op, "input", input)
    if not isinstance(normalized_shape, (tuple, list)):
        raise OperandError(
            message(f"{op}: `normalized_shape` is not a sequence", expected="a tuple of integers",
                    came=repr(normalized_shape)[:80], do="write (n,)")
        )  # fmt: skip
    shape, n = tuple(input.shape), len(normalized_shape)
    if not 0 < n <= len(shape) or shape[-n:] != tuple(normalized_shape):
        raise ShapeError(
            message(
                f"{op}: `normalized_shape` is not how the input's shape ends",
                expected=f"one or more of the last sizes of {shape}",
                came=f"{tuple(normalized_shape)}",
            )
        )
    return tuple(range(-n, 0))


def wide(x: Any) -> Any:
    """Inside a fused function: x as what a 16-bit value is computed in. No copy: it is read so."""
    return x.float() if x.dtype.itemsize == 2 else x


def result_dtype(*tensors: Any, autocast: Sequence[str] = ("cuda",)) -> torch.dtype:
    """What the inputs promote to, or float32 where autocast widens the operation's 16-bit inputs.

    autocast   the devices on whose float32 list the operation is: CUDA's has all of those that use
               this, the CPU's the losses alone

    The inputs themselves are read in their own dtypes.
    """
    dtype: torch.dtype = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    if dtype.itemsize != 2:
        return dtype
    device = tensors[0].device.type
    return torch.float32 if device in autocast and torch.is_autocast_enabled(device) else dtype
