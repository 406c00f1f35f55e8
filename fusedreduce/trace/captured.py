"""Tensors that a traced function of indices meets: elements become reads, 0-d tensors too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fusedreduce.errors import DeclarationError
from fusedreduce.ir import expr as ir
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.expr import Expr
from fusedreduce.trace.filled import CONSTANTS
from fusedreduce.trace.functions import dtype_kind
from fusedreduce.trace.integers import (
    INDEX,
    TRUTH,
    Whole,
    any_of,
    constant,
    converted,
    outcome,
    require_index,
    require_served,
)
from fusedreduce.trace.names import ALIASES
from fusedreduce.trace.place import refuse
from fusedreduce.trace.value import FUNCTIONS, Kind, Traced, apply


class Position(Traced):
    """A traced index, or what was computed from some; knows the captures of its function.

    whole   what is known of an integer or boolean; None for floats
    """

    __slots__ = ("captures", "whole")
    captures: Captures
    whole: Whole | None

    def __init__(self, expr: Expr, kind: Kind, captures: Captures, whole: Whole | None) -> None:
        super().__init__(expr, kind)
        self.captures = captures
        self.whole = whole

    @staticmethod
    def named(name: str, kind: Kind, captures: Captures) -> Position:
        return Position(ir.var(name), kind, captures, INDEX if kind == "int" else None)

    def build(self, op: str, args: Sequence[Any], kind: Kind) -> Position:
        given = [a.whole if isinstance(a, Position) else a for a in args]
        made = outcome(op, given, kind)
        expr = ir.call(made.op, *(a.expr if isinstance(a, Traced) else a for a in args))
        expr = ir.cast(expr, made.wraps) if made.wraps else expr
        return Position(expr, made.kind, self.captures, made.whole)

    def convert(self, dtype: str, kind: Kind) -> Position:
        to = getattr(torch, dtype)
        require_served(to, "a conversion to")
        if kind == "int" and self.whole is not None:
            whole, changes = converted(self.whole, to)
            as_is = self.kind == "int" and not changes
            expr = self.expr if as_is else ir.cast(self.expr, dtype)
            return Position(expr, kind, self.captures, whole)
        known = None if kind == "float" else any_of(to)
        return Position(ir.cast(self.expr, dtype), kind, self.captures, known)

    def lookup(self, name: str) -> Callable[..., Any] | None:
        """The language's function, with 0-d tensors among its arguments; and constants."""
        if name in CONSTANTS:
            return lambda *args, **kwargs: CONSTANTS[name](*args, **kwargs)
        function = FUNCTIONS.get(ALIASES.get(name, name))
        if function is None:
            return None

        @wraps(function)
        def with_tensors(*args: Any, **kwargs: Any) -> Any:
            lifted = self.captures.lifted
            return function(*map(lifted, args), **{k: lifted(v) for k, v in kwargs.items()})

        return with_tensors

    @property
    def device(self) -> torch.device:
        """Indices have no device of their own: constants made on this one are constants."""
        return torch.device("meta")


class Rest(Traced):
    """A captured tensor of which some dimensions are indexed: t[h] of a t with two."""

    __slots__ = ("captures", "indices", "table")
    captures: Captures
    indices: tuple[Expr | None, ...]
    table: Tensor

    def __init__(self, table: Tensor, indices: tuple[Expr | None, ...], captures: Captures) -> None:
        super().__init__(ir.var("_"), dtype_kind(table.dtype))
        self.table = table
        self.indices = indices
        self.captures = captures

    def lookup(self, name: str) -> Callable[..., Any] | None:
        raise unindexed(self.table, sum(e is None for e in self.indices))

    def __getitem__(self, key: Any) -> Any:
        return self.captures.element(self.table, key, self.indices)


def unindexed(table: Tensor, left: int) -> DeclarationError:
    return refuse(
        "a captured tensor is used without its indices",
        expected=f"one element: {left} more "
        + ("indices, such as t[b, i]" if left > 1 else "index, such as t[i]"),
        came=f"a tensor of shape {tuple(table.shape)}",
        do="index it with b, h, i, j or what is computed from them; a 0-d tensor needs no index",
    )


class Captures:
    """The tensors met so far: one table for each distinct object.

    replayable   tensors were indexed and asked for their shapes, nothing else: over others that
                 lie as they do the function says the same
    """

    def __init__(self) -> None:
        self.tables: list[Any] = []
        self.replayable = True

    def name(self, table: Any) -> str:
        for k, known in enumerate(self.tables):
            if known is table:
                return f"t{k}"
        self.tables.append(table)
        return f"t{len(self.tables) - 1}"

    def constant(self, value: Any, dtype: torch.dtype) -> Position:
        kind = dtype_kind(dtype)
        number = {"bool": bool, "int": int, "float": float}[kind](value)
        return Position(ir.const(number), kind, self, None if kind == "float" else constant(
            number, dtype))  # fmt: skip

    def embedded(self, expr: Expr, sources: Sequence[Any]) -> Position:
        """A truth value traced elsewhere, whose tables t0, t1, ... are these sources."""
        names = [self.name(source) for source in sources]
        expr = ir_tables.renamed(expr, lambda t: names[int(t[1:])])
        return Position(expr, "bool", self, TRUTH)

    def lifted(self, value: Any) -> Any:
        """A 0-d tensor as the read of its element, any other value as it is."""
        if isinstance(value, Rest):
            raise unindexed(value.table, sum(e is None for e in value.indices))
        if not isinstance(value, Tensor):
            return value
        if value.ndim:
            raise unindexed(value, value.ndim)
        return self.element(value, ())

    def element(self, table: Tensor, key: Any, before: Sequence[Expr | None] = ()) -> Any:
        """table[key]; `before` are the indices of an earlier t[...] (None: still whole)."""
        before = tuple(before) or (None,) * table.ndim
        new = iter(self._spread(key, sum(e is None for e in before), table))
        indices = tuple(next(new) if e is None else e for e in before)
        if any(e is None for e in indices):
            return Rest(table, indices, self)
        at = [e for e in indices if e is not None]
        kind = dtype_kind(table.dtype)
        varies = not set("bhij").isdisjoint(ir.names(*at))
        require_served(table.dtype, f"a captured tensor of shape {tuple(table.shape)} is of")
        whole = None if kind == "float" else any_of(table.dtype, varies)
        return Position(ir_tables.element(self.name(table), at), kind, self, whole)

    def _spread(self, key: Any, rank: int, table: Tensor) -> list[Expr | None]:
        """One index a dimension; None where the dimension stays whole (`:`, `...`, left out)."""
        keys = list(key) if isinstance(key, tuple) else [key]
        dots = [k for k, e in enumerate(keys) if isinstance(e, EllipsisType)]
        missing = rank - len(keys) + len(dots)
        if len(dots) > 1 or missing < 0:
            raise refuse(
                "too many indices for a captured tensor",
                expected=f"at most {rank}: its shape is {tuple(table.shape)}",
                came=f"{len(keys)}",
            )
        at = dots[0] if dots else len(keys)
        keys[at : at + len(dots)] = [slice(None)] * missing
        return [self._index(e, table) for e in keys]

    def _index(self, index: Any, table: Tensor) -> Expr | None:
        index = self.lifted(index)
        if isinstance(index, slice) and index == slice(None):
            return None
        if isinstance(index, int) and not isinstance(index, bool):
            return ir.const(index)
        if isinstance(index, Position) and index.whole and index.kind == "int":
            require_index(index.whole.dtype)
            return index.expr
        came = f"{index.kind} value" if isinstance(index, Position) else repr(index)
        raise refuse(
            "an index of a captured tensor is not an integer",
            expected="integers: b, h, i, j, what is computed from them, numbers, or `:`",
            came=f"{came} as an index of a tensor of shape {tuple(table.shape)}",
            do="convert it: x.to(torch.int64)",
        )


class Captured(TorchFunctionMode):
    """While it is on, torch functions of plain tensors and traced indices meet here."""

    def __init__(self, captures: Captures) -> None:
        super().__init__()
        self.captures = captures

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        values = [*args, *kwargs.values()]
        flat = [v for a in values for v in (a if isinstance(a, (tuple, list)) else (a,))]
        traced = any(isinstance(v, Traced) for v in flat)
        if func is Tensor.__getitem__ and traced:
            return self.captures.element(args[0], args[1])
        name = _name(func)
        if traced:
            return apply(name, args, kwargs)
        tensors = [v for v in flat if isinstance(v, Tensor)]
        if name in _LIFTED and tensors and all(t.ndim == 0 for t in tensors):
            first, *others = map(self.captures.lifted, args)
            return apply(name, (first, *others), kwargs)
        self.captures.replayable &= func in _FACTS
        made = func(*args, **kwargs)
        if name in _FACTORIES and made.ndim == 0:
            return self.captures.constant(made.item(), made.dtype)
        return made


#: What may be asked of tensors and dtypes that no value decides.
_FACTS: frozenset[Any] = frozenset((
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")),
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, torch.promote_types,
))  # fmt: skip


def _name(func: Any) -> str:
    """A torch function's name as the language's table has it."""
    name = str(getattr(func, "__name__", func))
    plain = name.removeprefix("special_").strip("_")
    return _OPERATORS.get(plain, plain) if name.startswith("__") else plain


_OPERATORS = {
    "floordiv": "floor_divide", "truediv": "div", "mod": "remainder", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "bool": "__bool__", "float": "__float__", "int": "__int__",
}  # fmt: skip
_FACTORIES = ("full", "tensor", "scalar_tensor", "zeros", "ones", "as_tensor")
#: Arithmetic of 0-d tensors alone becomes part of the function; conversions are done at once.
_LIFTED = frozenset(FUNCTIONS) - {
    "to", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool", "detach",
    "clone", "contiguous", "zeros_like", "ones_like", "full_like",
}  # fmt: skip
