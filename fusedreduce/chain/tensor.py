"""A tensor while a fused function is traced: an expression and the axes of each dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from fusedreduce.chain.axes import Shape
from fusedreduce.errors import ShapeError, message
from fusedreduce.ir import expr as ir
from fusedreduce.ir.check import kind_of_dtype
from fusedreduce.ir.expr import Expr
from fusedreduce.trace import Call, Traced, kind_of, refuse, user_line
from fusedreduce.trace.integers import any_of, checked

VIEWS: dict[str, Callable[..., Any]] = {}  # filled by `views`


class TracedTensor(Traced):
    """A tensor of a fused function: an expression, the axes of each dimension, a meta tensor.

    made_in   what torch has an integer in that is no result yet: such a value has no meta tensor

    NOTE: it must not call itself a torch.Tensor (by `__class__`): torch's C++ then reads it as one
    and crashes (seen with torch.where, 2.13).
    """

    __slots__ = ("chain", "dims", "made_in", "meta")
    chain: Any
    dims: Shape
    made_in: torch.dtype | None
    meta: Any

    def __init__(self, chain: Any, expr: Expr, kind: str, dims: Shape, meta: Any = None) -> None:
        super().__init__(expr, kind)
        self.chain = chain
        self.dims = dims
        self.meta = meta
        self.made_in = None

    @property
    def width(self) -> torch.dtype | None:
        return self.meta.dtype if isinstance(self.meta, torch.Tensor) else self.made_in

    def build(self, op: str, args: Sequence[Any], kind: str) -> Any:
        if not torch.is_grad_enabled():  # tracing begins with gradients enabled
            raise refuse("torch.no_grad() inside a fused function", do="call it inside no_grad()")
        exprs = tuple(a.expr if isinstance(a, Traced) else a for a in args)
        dims = self.chain.broadcast([a.dims for a in args if isinstance(a, TracedTensor)])
        made = TracedTensor(self.chain, ir.call(op, *exprs), kind, dims)
        if kind != "float":
            made.made_in = checked(op, [_operand(a) for a in args])
        return made

    def convert(self, dtype: str, kind: str) -> Any:
        return TracedTensor(self.chain, ir.cast(self.expr, dtype), kind, self.dims)

    def settle(self, compute: Callable[[], Any], call: Call | None) -> Any:
        """The result with the shape and dtype that torch itself answers on stand-ins."""
        meta = stand_in(call)
        result = compute()
        if isinstance(result, tuple) and isinstance(meta, tuple):
            return tuple(_as_torch(r, m) for r, m in zip(result, meta, strict=True))
        return _as_torch(result, meta)

    def lookup(self, name: str) -> Callable[..., Any] | None:
        return VIEWS.get(name) or self.chain.reductions.get(name)

    def __getattr__(self, name: str) -> Any:
        if name == "device":
            return self.chain.device
        if name in ("shape", "dtype", "ndim") and self.meta is not None:
            return getattr(self.meta, name)
        if name in ("T", "mT"):
            return VIEWS[name](self)
        return super().__getattr__(name)

    def size(self, dim: int | None = None) -> Any:
        return self.meta.shape if dim is None else self.meta.shape[dim]

    def dim(self) -> int:
        return len(self.dims)

    def numel(self) -> int:
        return int(self.meta.numel())

    def is_floating_point(self) -> bool:
        return self.kind == "float"

    def __len__(self) -> int:
        return int(self.meta.shape[0])

    def __getitem__(self, key: Any) -> Any:
        return VIEWS["index"](self, key)

    def reshaped(self, dims: Shape) -> TracedTensor:
        shape = tuple(prod(a.size for a in self.chain.axes.leaves(d)) for d in dims)
        meta = torch.empty(shape, dtype=self.meta.dtype, device="meta")
        return TracedTensor(self.chain, self.expr, self.kind, dims, meta)


def _operand(value: Any) -> Any:
    """What is known of an integer or boolean; None of a float; a number as it is."""
    if not isinstance(value, Traced):
        return value
    if value.kind == "float":
        return None
    usual = torch.bool if value.kind == "bool" else torch.int64
    varies = isinstance(value, TracedTensor) and bool(value.dims)
    return any_of(value.width or usual, varies)


# What may leave the range of int8, uint8, int16 or int32: torch wraps around there.
_WRAPPING = frozenset(("add", "sub", "mul", "neg", "pow", "shl", "abs", "floordiv", "bitnot",
                       "bitor", "bitxor"))  # fmt: skip


def _as_torch(result: Any, meta: Any) -> Any:
    """A result of ours in the dtype of torch's own; a narrow integer is wrapped as torch does."""
    if not (isinstance(result, TracedTensor) and meta is not None):
        return result
    dtype = getattr(meta, "dtype", None)
    if result.meta is None:
        result.meta = meta
        narrow = dtype is not None and dtype != torch.int64
        wraps = narrow and result.kind == "int" and result.expr.op in _WRAPPING
        return _converted(result, dtype) if wraps else result
    if result.meta.shape != meta.shape:
        raise refuse(
            "torch answers another shape here",
            expected=f"{tuple(meta.shape)}",
            came=f"{tuple(result.meta.shape)}",
            do="name the dimensions: dim=..., keepdim=...",
        )
    return result if result.meta.dtype == dtype else _converted(result, dtype)


def _converted(value: TracedTensor, dtype: Any) -> TracedTensor:
    name = str(dtype).removeprefix("torch.")
    made: TracedTensor = value.convert(name, kind_of_dtype(name))
    made.meta = torch.empty(value.meta.shape, dtype=dtype, device="meta")
    return made


class _NoMeta(Exception):
    """An intermediate value has no meta tensor."""


def _metas(value: Any) -> Any:
    if isinstance(value, TracedTensor):
        if value.meta is None:
            raise _NoMeta
        return value.meta
    if isinstance(value, Traced):
        raise _NoMeta
    if isinstance(value, torch.Tensor):
        kind_of(value)  # refuses it
    if isinstance(value, (tuple, list)):
        return type(value)(_metas(v) for v in value)
    if isinstance(value, dict):
        return {k: _metas(v) for k, v in value.items()}
    return value


def stand_in(call: Call | None) -> Any:
    """What torch itself would answer, on meta tensors: shape, dtype, or its error."""
    if call is None:
        return None
    try:
        args, kwargs = _metas(call.args), _metas(dict(call.kwargs))
    except _NoMeta:
        return None
    try:
        return call.function(*args, **kwargs)
    except (RuntimeError, IndexError, ValueError) as error:
        raise ShapeError(
            message(str(error).splitlines()[0], where=user_line(), do="check the shapes")
        ) from None
    except TypeError as error:
        raise refuse(str(error).splitlines()[0]) from None


def normalized_dims(dim: Any, rank: int) -> tuple[int, ...]:
    """`dim` as sorted non-negative integers; None means all. Raises `ShapeError` as torch would."""
    given = tuple(range(rank)) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    span = max(rank, 1)
    dims = []
    for d in given:
        if not isinstance(d, int) or isinstance(d, bool) or not -span <= d < span:
            raise ShapeError(
                message(
                    "dim is out of range",
                    expected=f"integers from {-span} to {span - 1}",
                    came=repr(dim)[:80],
                    where=user_line(),
                )
            )
        dims.append(d % span)
    if len(set(dims)) < len(dims):
        raise ShapeError(message("a dimension is named twice", came=repr(dim)[:80]))
    return tuple(sorted(d for d in dims if d < rank))
