"""Expressions as a kernel computes them: in the state's dtype, rounded only at explicit casts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedreduce.ir.check import all_kinds, promote
from fusedreduce.ir.expr import Expr, call, cast, const, is_const, make, var, walk, where
from fusedreduce.ir.expr import names as names_of
from fusedreduce.kernels.positions import widened
from fusedreduce.program import Program, Stage

INDEX = var("j")
TESTS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "cast"))


def lower(expr: Expr, kinds: Mapping[str, str], state: str, index: Expr | None = INDEX) -> Expr:
    """The expression with conversions as Triton needs them; arithmetic on `index` is in int64.

    index   the index of a row; None: the expression is of a pair, whose positions are widened where
            they may leave int32

    A cast to a floating dtype rounds and comes back to the state's; one to the state's own dtype,
    or to a wider one, is nothing. One to a narrow integer wraps and comes back to int64.
    """
    expr = promote(expr, kinds)
    kind = all_kinds(expr, kinds)
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        args = tuple(done[a] for a in node.args)
        if node.op == "cast":
            done[node] = _cast(args[0], str(node.value), kind[node.args[0]], state)
        elif node.op in ("shl", "shr"):
            done[node] = _shifted(node.op, *_wide(args, index))
        else:
            wide = args if node.op in TESTS else _wide(args, index)
            done[node] = make(node.op, wide, node.value)
    made = done[expr]
    return widened(made, kinds) if index is None else _wide((made,), index)[0]


def _shifted(op: str, x: Expr, count: Expr) -> Expr:
    """A shift by any number, as torch has it: Triton's is undefined from 64 on, and below 0."""
    last = 63 if op == "shr" else 64  # all bits are the sign's; none is left
    if count.op == "const" and 0 <= (count.value or 0) < last:  # type: ignore[operator]
        return call(op, x, count)
    known = call("and", call("ge", count, 0), call("lt", count, last))
    if op == "shr":
        return call(op, x, where(known, count, last))
    return where(known, call(op, x, where(known, count, 0)), 0)


def _wide(args: tuple[Expr, ...], index: Expr | None) -> tuple[Expr, ...]:
    """The index is an int32 in a kernel: arithmetic on it is done in int64."""
    return tuple(cast(a, "int64") if a is index else a for a in args)


def _cast(x: Expr, dtype: str, kind: str, state: str) -> Expr:
    if "float" not in dtype:
        if (dtype, kind) in (("int", "int"), ("bool", "bool")):
            return x
        x = cast(x, _plain(dtype))
        return x if x.value in ("int64", "bool") else cast(x, "int64")
    if is_const(x):
        return const(float(x.value or 0.0))
    narrow = dtype in ("float16", "bfloat16") or (dtype == "float32" and state == "float64")
    if kind != "float":
        x = cast(x, state)
    if dtype == "bfloat16" and state == "float64":
        x = cast(x, "float32")  # as torch rounds; Triton's interpreter has no other way
    return cast(cast(x, dtype), state) if narrow else x


def _plain(dtype: str) -> str:
    return {"int": "int64"}.get(dtype, dtype)


def lowered(program: Program, index: Expr | None = INDEX) -> Program:
    """The program with every expression lowered, records included."""
    kinds = program.kinds

    def low(e: Expr) -> Expr:
        return lower(e, kinds, program.state, index)

    stages = tuple(_stage(s, program, index) for s in program.stages)
    outputs = tuple(replace(o, expr=low(o.expr)) for o in program.outputs)
    names: dict[Expr, str] = {}
    for e, n in program.names:
        names.setdefault(low(e), n)
    return replace(program, stages=stages, outputs=outputs, names=tuple(names.items()))


def _stage(stage: Stage, program: Program, index: Expr | None) -> Stage:
    record = stage.record
    kinds = {n: _kind(e, program.kinds) for n, e in stage.operands} | {"j": "int"}
    for f in record.fields:
        for prefix in ("", "old.", "new.", "a.", "b."):
            kinds[prefix + f.name] = f.type

    def low(e: Expr) -> Expr:
        return lower(e, kinds, program.state, index)

    fields = tuple(
        replace(
            f,
            term=None if f.term is None else low(f.term),
            correct=None if f.correct is None else low(f.correct),
        )
        for f in record.fields
    )
    record = replace(
        record,
        fields=fields,
        lift=tuple(low(e) for e in record.lift),
        merge=tuple(low(e) for e in record.merge),
        finish=tuple((o, low(e)) for o, e in record.finish),
        names=tuple((low(e), n) for e, n in record.names if set(names_of(e)) <= set(kinds)),
    )
    operands = tuple((n, lower(e, program.kinds, program.state, index)) for n, e in stage.operands)
    return replace(stage, record=record, operands=operands)


def _kind(e: Expr, kinds: Mapping[str, str]) -> str:
    return all_kinds(e, kinds)[e]
