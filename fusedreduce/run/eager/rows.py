"""Operands of eager as rows: the reduced axes made one, next to last; dtypes of the state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fusedreduce.declare.record import Record
from fusedreduce.errors import OperandError, ShapeError, message

Values: TypeAlias = "dict[str, Tensor]"
KEYS = -2  # the axis of elements; the last one is the payload's, of size 1 without a payload


@dataclass(frozen=True)
class Rows:
    """Operands as (*outer, N, 1), payloads as (*outer, N, D), with 1 where one does not vary.

    inside   (*outer, N, 1): which elements there are; None: all
    weighed  a payload is only ever multiplied by a weight: its sums are matmuls
    keep     what multiplies that weight, one an element
    ahead    how many elements in front have no payload
    """

    values: Values
    outer: tuple[int, ...]
    n: int
    final: tuple[int, ...]  # the shape of a result
    state: torch.dtype
    result: torch.dtype  # of floats that depend on operands
    deep: torch.dtype  # of floats that depend on payloads
    inside: Tensor | None = None
    weighed: bool = False
    keep: Tensor | None = None
    ahead: int = 0

    def number(self, value: Any) -> Tensor:
        """A value of the user's function as a tensor of the state's dtype, int64 or bool."""
        made = value if isinstance(value, Tensor) else torch.tensor(value, device=self.device)
        return made.to(_wide(made.dtype, self.state))

    def elements(self, value: Any) -> Tensor:
        """One value for each element of each row."""
        return self._expanded(value, self.n)

    def rows(self, value: Any) -> Tensor:
        """One value for each row."""
        return self._expanded(value, 1)

    def _expanded(self, value: Any, n: int) -> Tensor:
        made = self.number(value)
        return made.expand(*self.outer, n, made.shape[-1] if made.ndim else 1)

    def present(self, value: Tensor, identity: Any) -> Tensor:
        """The values of the elements there are, the identity for the others."""
        return value if self.inside is None else torch.where(self.inside, value, identity)

    def full(self, value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((*self.outer, 1, 1), value, dtype=dtype, device=self.device)

    def dtype(self, kind: str) -> torch.dtype:
        return {"bool": torch.bool, "int": torch.int64}.get(kind, self.state)

    @property
    def device(self) -> torch.device:
        return next(iter(self.values.values())).device


def require_operands(record: Record, operands: Mapping[str, Any]) -> None:
    """Every operand the declaration names, and no other."""
    wanted = (*record.operands, *record.payloads)
    if set(wanted) != set(operands):
        raise OperandError(
            message(
                f"{record.name} does not get the operands it names",
                expected=", ".join(wanted),
                came=", ".join(operands),
            )
        )


def arranged(
    record: Record,
    operands: Mapping[str, Tensor | float],
    dims: Sequence[int],
    keepdim: bool,
    dtype: torch.dtype | None,
) -> Rows:
    """The operands of `record` as rows along `dims`, in the dtype of the state."""
    given = {n: v for n, v in operands.items() if n in (*record.operands, *record.payloads)}
    tensors = _tensors(given, dtype)
    deep, state = _dtypes([tensors[n] for n, v in given.items() if isinstance(v, Tensor)])
    result, _ = _dtypes(
        [tensors[n] for n, v in given.items() if isinstance(v, Tensor) and n not in record.payloads]
    )
    columns = {n: v if n in record.payloads else v[..., None] for n, v in tensors.items()}
    shape = _shape({n: v for n, v in tensors.items() if n not in record.payloads})
    axes = sorted({d % len(shape) for d in dims if shape})
    values = {n: _as_rows(v, shape, axes) for n, v in columns.items()}
    values = {n: v.to(_wide(v.dtype, state)) for n, v in values.items()}
    n = prod(shape[k] for k in axes)
    device = next(iter(tensors.values())).device
    return Rows(
        values=values | {"j": torch.arange(n, device=device)[:, None]},
        outer=tuple(m for k, m in enumerate(shape) if k not in axes),
        n=n,
        final=tuple(1 if k in axes else m for k, m in enumerate(shape) if keepdim or k not in axes),
        state=state,
        result=result,
        deep=deep,
    )


def _tensors(given: Mapping[str, Tensor | float], dtype: torch.dtype | None) -> Values:
    """Numbers become tensors, with all their digits; `dtype=` converts the first, as torch.sum."""
    device = next((v.device for v in given.values() if isinstance(v, Tensor)), None)
    precise = {n: torch.float64 if isinstance(v, float) else None for n, v in given.items()}
    values = {n: torch.as_tensor(v, dtype=precise[n], device=device) for n, v in given.items()}
    first = next(iter(values))
    return values if dtype is None else values | {first: values[first].to(dtype)}


def _dtypes(tensors: Sequence[Tensor]) -> tuple[torch.dtype, torch.dtype]:
    """(what the operands promote to, what the state is kept in)."""
    floats = [t.dtype for t in tensors if t.is_floating_point()]
    operand = floats[0] if floats else torch.get_default_dtype()
    for d in floats[1:]:
        operand = torch.promote_types(operand, d)
    return operand, torch.float64 if operand == torch.float64 else torch.float32


def _wide(dtype: torch.dtype, state: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return state
    return dtype if dtype == torch.bool else torch.int64


def _shape(elements: Mapping[str, Tensor]) -> tuple[int, ...]:
    """What the operands broadcast to; none has more dimensions than the first."""
    shapes = {n: tuple(v.shape) for n, v in elements.items()}
    first = next(iter(shapes.values()), ())
    try:
        shape = tuple(torch.broadcast_shapes(*shapes.values()))  # type: ignore[no-untyped-call]
    except RuntimeError:
        shape = (*first, 0)
    if len(shape) > len(first):
        raise ShapeError(
            message(
                "the operands do not broadcast against the first one",
                came=", ".join(f"{n} {s}" for n, s in shapes.items()),
                do="a row operand needs a last dimension of size 1: target[:, None]",
            )
        )
    return shape


def _as_rows(value: Tensor, shape: tuple[int, ...], axes: Sequence[int]) -> Tensor:
    """(*shape, D) -> (*outer, N, D): the reduced axes moved next to last and made one."""
    rank = len(shape)
    value = value.reshape((1,) * (rank + 1 - value.ndim) + tuple(value.shape))
    outer = [k for k in range(rank) if k not in axes]
    value = value.permute(*outer, *axes, rank)
    kept, reduced = value.shape[: len(outer)], value.shape[len(outer) : rank]
    if any(n != 1 for n in reduced):
        reduced = torch.Size(shape[k] for k in axes)
        value = value.expand(*kept, *reduced, value.shape[-1])
    return value.reshape(*kept, prod(reduced), value.shape[-1])


def parameters(fn: Callable[..., Any]) -> list[str]:
    """What a function names; parameters with defaults are constants."""
    return [p.name for p in inspect.signature(fn).parameters.values() if p.default is p.empty]


def call(fn: Callable[..., Any] | None, values: Mapping[str, Any]) -> Any:
    """fn with the values it names."""
    assert fn is not None
    wanted = parameters(fn)
    missing = [n for n in wanted if n not in values]
    if missing:
        raise OperandError(
            message(
                f"`{missing[0]}` has no value here",
                expected=f"one of {', '.join(values)}",
                do="rows know j, the position along the reduced axis; b, h and i belong to pairs",
            )
        )
    return fn(**{n: values[n] for n in wanted})


def components(value: Any) -> tuple[Any, ...]:
    """What `lift` and `merge` return: a tuple, or a bare value for one field."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def kind_of(dtype: torch.dtype) -> str:
    return "float" if dtype.is_floating_point else "bool" if dtype == torch.bool else "int"


def gate(value: Tensor, closed: Tensor | None) -> Tensor:
    """The value itself, through which no gradient, not even a NaN, flows back where `closed`."""
    if closed is None or not value.requires_grad:
        return value
    return torch.where(closed, value.detach(), value)
