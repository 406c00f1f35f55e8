"""One tracing of a fused function: the inputs and stages met so far, then the normal form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from fusedreduce import trace
from fusedreduce.chain.axes import Atom, Axes, Shape
from fusedreduce.chain.lining import line_up, named_axes
from fusedreduce.chain.stage import TracedStage, result_dtypes
from fusedreduce.chain.tensor import TracedTensor, normalized_dims
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction
from fusedreduce.errors import OperandError, ShapeError, message
from fusedreduce.ir import expr as ir
from fusedreduce.ir.check import kind_of
from fusedreduce.ir.expr import Expr
from fusedreduce.program import Input, Output, Program, dtype_kind, stage_kinds
from fusedreduce.trace import Names


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def unrounded(output: Output, kinds: Mapping[str, str]) -> Output:
    """An output without a last rounding to its own dtype: it is rounded where it is stored."""
    e = output.expr
    if e.op == "cast" and e.value == output.dtype and kind_of(e.args[0], kinds) == "float":
        return replace(output, expr=e.args[0])
    return output


def require_broadcast(values: Mapping[str, TracedTensor]) -> None:
    """The operands of one reduction broadcast as torch's would; ShapeError where they do not."""
    shapes = {n: tuple(getattr(v.meta, "shape", ())) for n, v in values.items()}
    try:
        torch.broadcast_shapes(*shapes.values())  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ShapeError(
            message(
                "the operands do not broadcast against each other",
                came=", ".join(f"{n} {s}" for n, s in shapes.items()),
                where=trace.user_line(),
                do="a row operand needs a last dimension of size 1: target[:, None]",
            )
        ) from None


@dataclass
class Chain:
    """One tracing: the axes, the inputs and stages met so far.

    depth   how many leading dimensions of every tensor the function does not see; its outputs have
            them too
    """

    complete: Callable[[type[Reduction]], Record]
    reductions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    depth: int = 0
    hidden: Shape = ()
    axes: Axes = field(default_factory=Axes)
    inputs: dict[str, tuple[TracedTensor, bool]] = field(default_factory=dict)
    stages: list[TracedStage] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def input(self, name: str, tensor: torch.Tensor) -> TracedTensor:
        dims = tuple((Atom(n),) for n in tensor.shape)
        self.axes.register(dims)
        front, dims = dims[: self.depth], dims[self.depth :]
        for mine, theirs in zip(self.hidden, front, strict=False):
            self.axes.join(mine, theirs)
        self.hidden = self.hidden or front
        meta = torch.empty(tensor.shape[self.depth :], dtype=tensor.dtype, device="meta")
        kind = dtype_kind(dtype_name(tensor.dtype))
        value = TracedTensor(self, ir.var(name), kind, dims, meta)
        self.inputs[name] = (value, False)
        self.device = tensor.device
        return value

    def number(self, name: str, value: float) -> TracedTensor:
        made = TracedTensor(self, ir.var(name), "float", (), value)
        self.inputs[name] = (made, True)
        return made

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
        require_broadcast(values)
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
        stage = self.stage(record, values, shape, dims)
        stage.outputs |= set(outputs)
        stage.state |= state
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

    def stage(
        self,
        record: Record,
        values: Mapping[str, TracedTensor],
        shape: Shape,
        dims: tuple[int, ...],
    ) -> TracedStage:
        """The stage of these operands along these axes: one met before, or a new one."""
        operands = tuple((n, v.expr) for n, v in values.items())
        level = 1 + max((self.level(v.expr) for v in values.values()), default=-1)
        made = TracedStage(str(len(self.stages)), record, operands, level, shape, dims)
        for known in self.stages:
            if known.is_same(made, self.axes):
                return known
        made.kinds = {n: v.kind for n, v in values.items()}
        self.stages.append(made)
        return made

    def level(self, expr: Expr) -> int:
        """The deepest stage an expression reads; -1 for none."""
        read = [n.partition(".")[0] for n in ir.names(expr) if "." in n]
        return max((self.stages[int(k)].level for k in read), default=-1)

    def results(
        self,
        made: TracedStage,
        values: Mapping[str, TracedTensor],
        shape: Shape,
        dims: tuple[int, ...],
        keepdim: bool,
    ) -> dict[str, TracedTensor]:
        stage = made.finished(made.name)
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

    def state_dtype(self, exprs: Iterable[Expr]) -> str:
        """float64 as soon as one input is, or one value is cast to it; else float32."""
        inputs = [v.meta for v, number in self.inputs.values() if not number]
        double = any(m.dtype == torch.float64 for m in inputs) or any(
            n.op == "cast" and n.value == "float64" for n in ir.walk(*exprs)
        )
        return "float64" if double else "float32"

    # -- the end

    def program(self, name: str, outputs: Mapping[str, TracedTensor], names: Names) -> Program:
        """The normal form, with the user's names for stages and axes named by their order."""
        titles = self.titles(names)
        table = {
            f"{s.name}.{o}": ir.var(f"{titles[s.name]}.{o}")
            for s in self.stages
            for o in s.results()
        }

        def renamed(e: Expr) -> Expr:
            return ir.substitute(e, table)

        self.drop_unused(outputs)
        line_up(self.axes, self.stages)
        shapes = [v.dims for v in (*outputs.values(), *(v for v, _ in self.inputs.values()))]
        axis_names, axes = named_axes(self.axes, self.stages, self.hidden, shapes)
        inputs = tuple(
            Input(n, (), "float32", number)
            if number
            else Input(n, self.dims_by_name((*self.hidden, *v.dims), axis_names),
                       dtype_name(v.meta.dtype))
            for n, (v, number) in self.inputs.items()
        )  # fmt: skip
        stages = tuple(s.finished(titles[s.name], renamed) for s in self.stages)
        made = tuple(
            Output(n, renamed(v.expr), self.dims_by_name((*self.hidden, *v.dims), axis_names),
                   dtype_name(v.meta.dtype))
            for n, v in outputs.items()
        )  # fmt: skip
        user_names = tuple((renamed(e), n) for e, n in names.of.items())
        exprs = [o.expr for o in made] + [e for s in stages for _, e in s.operands]
        state = self.state_dtype(exprs)
        program = Program(name, axes, inputs, stages, made, state, user_names)
        return replace(program, outputs=tuple(unrounded(o, program.kinds) for o in made))

    def drop_unused(self, outputs: Mapping[str, TracedTensor]) -> None:
        """An argument that nothing reads (but for its shape) is no input of the kernel."""
        exprs = [v.expr for v in outputs.values()]
        exprs += [e for s in self.stages for _, e in s.operands]
        read = frozenset(ir.names(*exprs))
        used = {n: v for n, v in self.inputs.items() if n in read}
        if not all(number for _, number in used.values()):
            self.inputs = used

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

    def dims_by_name(self, dims: Shape, table: Mapping[Atom, str]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(table[a] for a in self.axes.leaves(d)) for d in dims)
