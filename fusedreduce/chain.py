"""Fused functions to the normal form: torch operations on tensors that know their axes, not their numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from fusedreduce import trace
from fusedreduce.axes import Atom, Axes, Shape
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction
from fusedreduce.errors import DtypeError, NotFusible, OperandError, ShapeError, message
from fusedreduce.ir import expr as ir
from fusedreduce.ir.check import kind_of
from fusedreduce.ir.expr import Expr
from fusedreduce.program import (
    Axis,
    Input,
    Output,
    Program,
    Stage,
    dtype_kind,
    needed_fields,
    restricted,
    stage_kinds,
    typed,
    valued,
)
from fusedreduce.trace import Call, Names, Traced

def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def not_fusible(fact: str, **parts: str) -> NotFusible:
    return NotFusible(message(fact, where=trace.user_line(), **parts))


class TracedTensor(Traced):
    """A tensor of a fused function: an expression, the axes of each dimension, a meta tensor."""

    __slots__ = ("chain", "dims", "meta")
    chain: Chain
    dims: Shape
    meta: Any

    def __init__(self, chain: Chain, expr: Expr, kind: str, dims: Shape, meta: Any = None) -> None:
        super().__init__(expr, kind)
        self.chain = chain
        self.dims = dims
        self.meta = meta

    def build(self, op: str, args: Sequence[Any], kind: str) -> Any:
        exprs = tuple(a.expr if isinstance(a, Traced) else a for a in args)
        dims = self.chain.broadcast([a.dims for a in args if isinstance(a, TracedTensor)])
        return TracedTensor(self.chain, ir.call(op, *exprs), kind, dims)

    def convert(self, dtype: str, kind: str) -> Any:
        return TracedTensor(self.chain, ir.cast(self.expr, dtype), kind, self.dims)

    def settle(self, compute: Callable[[], Any], call: Call | None) -> Any:
        meta = self.chain.stand_in(call)
        result = compute()
        if isinstance(result, TracedTensor) and meta is not None and result.meta is None:
            result.meta = meta
        return result

    def lookup(self, name: str) -> Callable[..., Any] | None:
        return VIEWS.get(name) or self.chain.reductions.get(name)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "device") and self.meta is not None:
            return getattr(self.meta, name)
        if name in ("T", "mT"):
            return _transpose(self, -2, -1)
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
        return _index(self, key)

    def reshaped(self, dims: Shape) -> TracedTensor:
        shape = tuple(prod(a.size for a in self.chain.axes.leaves(d)) for d in dims)
        meta = torch.empty(shape, dtype=self.meta.dtype, device="meta")
        return TracedTensor(self.chain, self.expr, self.kind, dims, meta)


@dataclass
class Chain:
    """One tracing: the axes, the inputs and stages met so far."""

    complete: Callable[[type[Reduction]], Record]
    reductions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    axes: Axes = field(default_factory=Axes)
    inputs: dict[str, tuple[TracedTensor, bool]] = field(default_factory=dict)
    stages: list[_Stage] = field(default_factory=list)
    reduced: tuple[Atom, ...] | None = None

    def input(self, name: str, tensor: torch.Tensor) -> TracedTensor:
        dims = tuple((Atom(n),) for n in tensor.shape)
        self.axes.register(dims)
        meta = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        kind = dtype_kind(dtype_name(tensor.dtype))
        if tensor.dtype.is_complex or "float8" in dtype_name(tensor.dtype):
            raise DtypeError(
                message(
                    f"`{name}` is {dtype_name(tensor.dtype)}",
                    expected="float16, bfloat16, float32, float64, an integer or bool",
                    do=f"convert it: {name}.float()",
                )
            )
        value = TracedTensor(self, ir.var(name), kind, dims, meta)
        self.inputs[name] = (value, False)
        return value

    def number(self, name: str, value: float) -> TracedTensor:
        made = TracedTensor(self, ir.var(name), "float", (), value)
        self.inputs[name] = (made, True)
        return made

    def stand_in(self, call: Call | None) -> Any:
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
                message(str(error).splitlines()[0], where=trace.user_line(), do="check the shapes")
            ) from None
        except TypeError as error:
            raise trace.refuse(str(error).splitlines()[0]) from None

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        return self.axes.broadcast(shapes)

    # -- reductions

    def reduce(
        self,
        R: type[Reduction],
        operands: Mapping[str, Any],
        dim: Any,
        keepdim: bool,
        outputs: tuple[str, ...],
        state: bool = False,
    ) -> dict[str, TracedTensor]:
        """Results by output name (and by slot, when the state is asked for)."""
        record = self.complete(R)
        values = {n: self.operand(n, v) for n, v in operands.items()}
        first = next(iter(values.values()))
        shape = self.broadcast([v.dims for v in values.values()])
        if len(shape) > len(first.dims):
            raise ShapeError(
                message(
                    "an operand has more dimensions than the first one",
                    came=", ".join(f"{n} {tuple(v.meta.shape)}" for n, v in values.items()),
                    expected="operands that broadcast against the first",
                    where=trace.user_line(),
                    do="a row operand needs a last dimension of size 1: target[:, None]",
                )
            )
        dims = normalized_dims(dim, len(shape))
        self.set_reduced(tuple(a for d in dims for a in self.axes.leaves(shape[d])))
        stage = self.stage(record, values, frozenset(outputs), state)
        return self.results(stage, values, shape, dims, keepdim)

    def operand(self, name: str, value: Any) -> TracedTensor:
        if isinstance(value, TracedTensor):
            return value
        if isinstance(value, (bool, int, float)):
            kind = trace.kind_of(value)
            return TracedTensor(self, ir.const(value), kind, (), value)
        raise OperandError(
            message(
                f"operand `{name}` is not a tensor of the fused function",
                expected="an argument of the function, a value computed from one, or a number",
                came=type(value).__name__,
                where=trace.user_line(),
                do="pass the tensor as an argument of the fused function",
            )
        )

    def set_reduced(self, atoms: tuple[Atom, ...]) -> None:
        if self.reduced is None:
            self.reduced = atoms
            return
        before = tuple(leaf for a in self.reduced for leaf in self.axes.leaves((a,)))
        now = tuple(leaf for a in atoms for leaf in self.axes.leaves((a,)))
        if set(before) != set(now):
            raise not_fusible(
                "two reductions run over different axes",
                expected=f"all over the axes of sizes {tuple(a.size for a in before)}",
                came=f"one over axes of sizes {tuple(a.size for a in now)}",
                do="fuse them apart, or make the axes the same (keepdim=True keeps a dimension)",
            )

    def stage(
        self,
        record: Record,
        values: Mapping[str, TracedTensor],
        outputs: frozenset[str],
        state: bool,
    ) -> _Stage:
        operands = tuple((n, v.expr) for n, v in values.items())
        for made in self.stages:
            if made.record == record and made.operands == operands:
                made.outputs |= outputs
                made.state |= state
                return made
        level = 1 + max((self.level(v.expr) for v in values.values()), default=-1)
        made = _Stage(str(len(self.stages)), record, operands, level, set(outputs), state)
        made.kinds = {n: v.kind for n, v in values.items()}
        self.stages.append(made)
        return made

    def level(self, expr: Expr) -> int:
        """The deepest stage an expression reads; -1 for none."""
        read = [n.partition(".")[0] for n in ir.names(expr) if "." in n]
        return max((self.stages[int(k)].level for k in read), default=-1)

    def results(
        self,
        made: _Stage,
        values: Mapping[str, TracedTensor],
        shape: Shape,
        dims: tuple[int, ...],
        keepdim: bool,
    ) -> dict[str, TracedTensor]:
        stage = made.finished(made.name, self)
        left = tuple(
            (() if k in dims else d) for k, d in enumerate(shape) if keepdim or k not in dims
        )
        size = tuple(prod(a.size for a in self.axes.leaves(d)) for d in left)
        dtypes = result_dtypes(stage.record, values)
        kinds = stage_kinds(stage)
        answer = {}
        for name, kind in kinds.items():
            output = name.partition(".")[2]
            meta = torch.empty(size, dtype=dtypes[output], device="meta")
            answer[output] = TracedTensor(self, ir.var(name), kind, left, meta)
        return answer

    @property
    def state_dtype(self) -> str:
        """float64 as soon as one floating input is."""
        doubles = any(
            v.meta.dtype == torch.float64
            for v, number in self.inputs.values()
            if not number
        )
        return "float64" if doubles else "float32"

    # -- the end

    def program(self, name: str, outputs: Mapping[str, TracedTensor], names: Names) -> Program:
        """The normal form, with the user's names for stages and axes named by their order."""
        titles = self.titles(names)
        table = {
            f"{s.name}.{o}": ir.var(f"{titles[s.name]}.{o}") for s in self.stages for o in s.results()
        }

        def renamed(e: Expr) -> Expr:
            return ir.substitute(e, table)

        if self.reduced is None:
            self.reduced = self.last_axis(outputs)
        axis_names, axes = self.named_axes(outputs)
        inputs = tuple(
            Input(
                n,
                self.dims_by_name(v.dims, axis_names),
                "float32" if number else dtype_name(v.meta.dtype),
                number,
            )
            for n, (v, number) in self.inputs.items()
        )
        stages = tuple(s.finished(titles[s.name], self, renamed) for s in self.stages)
        made = tuple(
            Output(n, renamed(v.expr), self.dims_by_name(v.dims, axis_names), dtype_name(v.meta.dtype))
            for n, v in outputs.items()
        )
        user_names = tuple((renamed(e), n) for e, n in names.of.items())
        return Program(name, axes, inputs, stages, made, self.state_dtype, user_names)

    def titles(self, names: Names) -> dict[str, str]:
        """The user's variable that holds a stage's result, else the declaration's name."""
        found: dict[str, str] = {}
        for local, value in names.locals.items():
            values = value.values() if isinstance(value, dict) else (value,)
            for v in values:
                if isinstance(v, TracedTensor) and v.expr.op == "var" and "." in str(v.expr.value):
                    found.setdefault(str(v.expr.value).partition(".")[0], local)
        taken: set[str] = set(self.inputs)
        answer = {}
        for s in self.stages:
            title = base = found.get(s.name, s.record.name.rpartition(".")[2].lower())
            count = 2
            while title in taken:
                title, count = f"{base}_{count}", count + 1
            taken.add(title)
            answer[s.name] = title
        return answer

    def last_axis(self, outputs: Mapping[str, TracedTensor]) -> tuple[Atom, ...]:
        """A function without a reduction runs along the last dimension of its first output."""
        dims = next(iter(outputs.values())).dims
        return self.axes.leaves(dims[-1]) if dims else ()

    def named_axes(
        self, outputs: Mapping[str, TracedTensor]
    ) -> tuple[dict[Atom, str], tuple[Axis, ...]]:
        assert self.reduced is not None
        reduced = tuple(leaf for a in self.reduced for leaf in self.axes.leaves((a,)))
        every: dict[Atom, None] = {}
        shapes = [v.dims for v in outputs.values()] + [v.dims for v, _ in self.inputs.values()]
        for dims in sorted(shapes, key=len, reverse=True):
            for d in dims:
                every |= dict.fromkeys(self.axes.leaves(d))
        outer = [a for a in every if a not in reduced]
        table = {a: f"r{k}" for k, a in enumerate(outer)} | {
            a: f"c{k}" for k, a in enumerate(reduced)
        }
        axes = [Axis(table[a], a.size, False) for a in outer]
        axes += [Axis(table[a], a.size, True) for a in reduced]
        return table, tuple(axes)

    def dims_by_name(self, dims: Shape, table: Mapping[Atom, str]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(table[a] for a in self.axes.leaves(d)) for d in dims)


@dataclass
class _Stage:
    """A stage while tracing: outputs are added as they are asked for."""

    name: str
    record: Record
    operands: tuple[tuple[str, Expr], ...]
    level: int
    outputs: set[str]
    state: bool
    kinds: dict[str, str] = field(default_factory=dict)

    def results(self) -> tuple[str, ...]:
        return tuple(
            n.partition(".")[2]
            for n in stage_kinds(Stage(self.name, self.record, (), 0, True))
        )

    def finished(
        self, title: str, chain: Chain, renamed: Callable[[Expr], Expr] = lambda e: e
    ) -> Stage:
        record = restricted(self.record, frozenset(self.outputs), self.state)
        record = typed(record, self.kinds)
        operands = tuple((n, renamed(e)) for n, e in self.operands)
        return Stage(title, record, operands, self.level, self.state)


class _NoMeta(Exception):
    """An intermediate value has no meta tensor."""


def _metas(value: Any) -> Any:
    if isinstance(value, TracedTensor):
        if value.meta is None:
            raise _NoMeta
        return value.meta
    if isinstance(value, Traced):
        raise _NoMeta
    if isinstance(value, (tuple, list)):
        return type(value)(_metas(v) for v in value)
    if isinstance(value, dict):
        return {k: _metas(v) for k, v in value.items()}
    return value


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
                    came=repr(dim),
                    where=trace.user_line(),
                )
            )
        dims.append(d % span)
    if len(set(dims)) < len(dims):
        raise ShapeError(message("a dimension is named twice", came=repr(dim)))
    return tuple(sorted(d for d in dims if d < rank))


def result_dtypes(
    record: Record, values: Mapping[str, TracedTensor]
) -> dict[str, torch.dtype]:
    """The dtype of each output and slot.

    Floats have the operands' dtype (torch's default float for integers); a float that depends on no
    operand value, such as a count, has the state's. Integers are int64.
    """
    metas = [v.meta for v in values.values() if isinstance(v.meta, torch.Tensor)]
    floats = [m.dtype for m in metas if m.dtype.is_floating_point]
    operand = torch.get_default_dtype()
    if floats:
        operand = floats[0]
        for d in floats[1:]:
            operand = torch.promote_types(operand, d)
    state = torch.float64 if operand == torch.float64 else torch.float32
    fields = {f.name: f.result for f in record.fields}
    from_values = valued(record)
    table: dict[str, torch.dtype] = {}
    for output, e in record.finish:
        kind = kind_of(e, fields)
        is_valued = bool(needed_fields(record, frozenset({output})) & from_values)
        table[output or "value"] = _dtype(kind, operand if is_valued else state)
    for slot in record.slots:
        table[slot.name] = _dtype(slot.type, state)
    return table


def _dtype(kind: str, floating: torch.dtype) -> torch.dtype:
    return {"bool": torch.bool, "int": torch.int64}.get(kind, floating)


# ---- views: they move axes, never numbers -----------------------------------------------------------


def _sizes(args: tuple[Any, ...]) -> list[int]:
    if len(args) == 1 and isinstance(args[0], (tuple, list, torch.Size)):
        args = tuple(args[0])
    return [operator.index(a) for a in args]


def _reshape(x: TracedTensor, *shape: Any) -> TracedTensor:
    sizes = _sizes(shape)
    if -1 in sizes:
        known = prod(s for s in sizes if s != -1)
        sizes[sizes.index(-1)] = x.numel() // max(known, 1)
    flat = tuple(a for d in x.dims for a in x.chain.axes.leaves(d))
    return x.reshaped(x.chain.axes.regroup(flat, sizes))


def _transpose(x: TracedTensor, a: int, b: int) -> TracedTensor:
    dims = list(x.dims)
    dims[a], dims[b] = dims[b], dims[a]
    return x.reshaped(tuple(dims))


def _permute(x: TracedTensor, *order: Any) -> TracedTensor:
    return x.reshaped(tuple(x.dims[k] for k in _sizes(order)))


def _unsqueeze(x: TracedTensor, dim: int) -> TracedTensor:
    at = dim % (len(x.dims) + 1)
    return x.reshaped((*x.dims[:at], (), *x.dims[at:]))


def _squeeze(x: TracedTensor, dim: Any = None) -> TracedTensor:
    chosen = normalized_dims(dim, len(x.dims))
    sizes = x.meta.shape
    return x.reshaped(
        tuple(d for k, d in enumerate(x.dims) if not (k in chosen and sizes[k] == 1))
    )


def _flatten(x: TracedTensor, start_dim: int = 0, end_dim: int = -1) -> TracedTensor:
    return _reshape(x, *x.meta.flatten(start_dim, end_dim).shape)


def _unflatten(x: TracedTensor, dim: int, sizes: Any) -> TracedTensor:
    return _reshape(x, *x.meta.unflatten(dim, tuple(sizes)).shape)


def _expand(x: TracedTensor, *sizes: Any) -> TracedTensor:
    shape = x.meta.expand(*_sizes(sizes)).shape
    dims: list[tuple[Atom, ...]] = [() for _ in range(len(shape) - len(x.dims))] + list(x.dims)
    for k, (d, n) in enumerate(zip(dims, shape, strict=True)):
        if n != 1 and prod(a.size for a in x.chain.axes.leaves(d)) == 1:
            dims[k] = (Atom(n),)
    return x.reshaped(tuple(dims))


def _index(x: TracedTensor, key: Any) -> TracedTensor:
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if k is Ellipsis]:
        at = next(n for n, k in enumerate(keys) if k is Ellipsis)
        used = sum(1 for k in keys if k is not None and k is not Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(x.dims) - used)
    dims: list[tuple[Atom, ...]] = []
    source = iter(x.dims)
    for k in keys:
        if k is None:
            dims.append(())
        elif isinstance(k, slice) and k == slice(None):
            dims.append(next(source))
        else:
            raise not_fusible(
                "indexing inside a fused function",
                expected="None, `:` and `...`, which only add dimensions",
                came=repr(k),
                do="index before the call and pass the result as an argument",
            )
    return x.reshaped((*dims, *source))


VIEWS: dict[str, Callable[..., Any]] = {
    "reshape": _reshape,
    "view": _reshape,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "t": lambda x: _transpose(x, 0, 1),
    "permute": lambda x, *order: _permute(x, *order),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "expand": _expand,
    "expand_as": lambda x, other: _expand(x, *other.meta.shape),
    "view_as": lambda x, other: _reshape(x, *other.meta.shape),
    "reshape_as": lambda x, other: _reshape(x, *other.meta.shape),
}
