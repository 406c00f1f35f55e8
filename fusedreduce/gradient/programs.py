"""The backward as programs: one for elements and rows, one for columns, a forward that saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fusedreduce.declare.record import Record
from fusedreduce.gradient.parts import Kept, Parts, extra_stage, kept, saved_state, slot_name
from fusedreduce.ir.expr import Expr, const, names, rename, substitute, var
from fusedreduce.program import Axis, Dims, Input, Output, Program, Stage, restricted

INDEX = "column_index"  # the index j of a column, where the axes have exchanged their roles


@dataclass(frozen=True)
class Backward:
    """What replaces a differentiable run.

    forward   the program with the summaries it must save as more outputs
    saved     their names
    rows      the program that gives element and row gradients, and the adjoints `columns` needs
    columns   the program that gives column gradients, or None
    joined    both in one, the column gradients as sums over rows; or None
    wanted    for each input that gets a gradient: (which program, output, dimensions to sum after)
    """

    forward: Program
    saved: tuple[str, ...]
    rows: Program
    columns: Program | None
    joined: Program | None
    wanted: tuple[tuple[str, str, str, tuple[int, ...]], ...]


def backward(
    program: Program,
    wanted: Iterable[str],
    total: Record,
    split: int = 1,
) -> Backward:
    """The backward of a program for some inputs' gradients; raises `NoBackward` with a reason.

    total   the record of a plain sum, with its one operand `x`
    split   into how many parts the rows are cut for the columns' sums
    """
    b = Parts(program, tuple(wanted), total)
    b.build()
    results = {
        s.result(o): substitute(e, saved_state(s))
        for s in program.stages
        for o, e in s.record.finish
    }
    results |= {
        s.slot(x.name): var(slot_name(s, x.name)) for s in program.stages for x in s.record.slots
    }
    rows, columns, how = _sorted_parts(program, b)
    made = _rows_program(program, b, results, rows, columns)
    used = _read(made)
    column_program = None
    if columns:
        column_program = _columns_program(program, b, results, columns, made, split)
        used |= _read(column_program)
    saved = [(s, k) for s in program.stages for k in kept(s) if k.name in used]
    return Backward(
        forward=_forward(program, saved),
        saved=tuple(k.name for _, k in saved),
        rows=_pruned(made),
        columns=None if column_program is None else _pruned(column_program),
        joined=_pruned(_joined(program, made, results, columns)) if columns else None,
        wanted=how,
    )


Rows: TypeAlias = "dict[str, tuple[Expr, Dims, str]]"


def _sorted_parts(
    program: Program, b: Parts
) -> tuple[Rows, dict[str, Expr], tuple[tuple[str, str, str, tuple[int, ...]], ...]]:
    """Each wanted gradient among the rows' outputs or the columns', and how it is finished."""
    rows: Rows = {}
    columns: dict[str, Expr] = {}
    how: list[tuple[str, str, str, tuple[int, ...]]] = []
    for name in b.wanted:
        i = program.by_name[name]
        part = b.gradient(name, f"sum_{name}") or const(0.0)
        wide = program.place_of_name(name)
        if wide == "column" and program.outer and not after_inside(program, i):
            columns[name] = part
            how.append((name, "columns", f"d{name}", (0,)))
        else:
            dims, after = full_dims(program, i)
            rows[name] = (part, dims, i.dtype if not after else program.state)
            how.append((name, "rows", f"d{name}", after))
    return rows, columns, tuple(how)


def _read(program: Program) -> set[str]:
    """The names that a program's outputs and operands read."""
    operands = [e for s in program.stages for _, e in s.operands]
    return set(names(*[o.expr for o in program.outputs], *operands))


def after_inside(program: Program, i: Input) -> bool:
    """Does the input vary along some reduced axes only? Then its gradient is summed afterwards."""
    inner = {a.name for a in program.reduced if a.size != 1}
    return bool(inner - i.axes)


def full_dims(program: Program, i: Input) -> tuple[Dims, tuple[int, ...]]:
    """The dimensions of the gradient as the kernel writes it, and those to sum over afterwards.

    An input that misses axes of its place gets them in front.
    """
    axes = [a.name for a in program.outer]
    if program.place_of_name(i.name) in ("element", "column"):
        axes += [a.name for a in program.reduced]
    missing = [a for a in axes if a not in i.axes and program.size[a] != 1]
    front: Dims = tuple((a,) for a in missing)
    return (*front, *i.dims), tuple(range(len(missing)))


def row_dims(program: Program) -> Dims:
    return tuple((a.name,) for a in program.outer)


def stage_dims(program: Program, s: Stage) -> Dims:
    """The outer axes along which the results of a stage vary, through what it reads."""
    axes: set[str] = set()
    todo = list(names(*(e for _, e in s.operands)))
    while todo:
        name = todo.pop()
        if name in program.by_name:
            axes |= program.by_name[name].axes
        elif name in program.stage_of:
            todo += names(*(e for _, e in program.stage_of[name].operands))
    return tuple(d for d in row_dims(program) if d[0] in axes)


def _forward(program: Program, saved: Sequence[tuple[Stage, Kept]]) -> Program:
    """The program that also writes what the backward reads."""
    stages: list[Stage] = []
    for s in program.stages:
        slots = [k for t, k in saved if t is s and not k.result]
        extra = frozenset(k.result for t, k in saved if t is s and k.result)
        stages.append(replace(s, state=s.state or bool(slots)))
        if extra:
            beside = extra_stage(s)
            stages.append(replace(beside, record=restricted(beside.record, extra)))
    more = tuple(
        Output(k.name, var(k.value), stage_dims(program, s), _dtype(program, k)) for s, k in saved
    )
    return replace(program, stages=tuple(stages), outputs=(*program.outputs, *more))


def _dtype(program: Program, k: Kept) -> str:
    return {"float": program.state, "int": "int64", "bool": "bool"}[k.type]


def _inputs(program: Program, b: Parts) -> tuple[Input, ...]:
    """The inputs, the gradients of the outputs, the saved slots."""
    upstream = tuple(
        Input(b.upstream[o.name], o.dims, o.dtype) for o in program.outputs if "float" in o.dtype
    )
    saved = tuple(
        Input(k.name, stage_dims(program, s), _dtype(program, k))
        for s in program.stages
        for k in kept(s)
    )
    return (*program.inputs, *upstream, *saved)


def _rows_program(
    program: Program,
    b: Parts,
    results: Mapping[str, Expr],
    rows: Mapping[str, tuple[Expr, Dims, str]],
    columns: Mapping[str, Expr],
) -> Program:
    stages = tuple(
        replace(s, operands=tuple((n, substitute(e, results)) for n, e in s.operands))
        for s in b.stages
    )
    outputs = [
        Output(f"d{n}", substitute(e, results), dims, dtype) for n, (e, dims, dtype) in rows.items()
    ]
    needed = {n for e in columns.values() for n in names(e)}
    outputs += [
        Output(s.name, var(f"{s.name}.value"), row_dims(program), program.state)
        for s in stages
        if f"{s.name}.value" in needed
    ]
    return Program(
        f"{program.name}_backward",
        program.axes,
        _inputs(program, b),
        stages,
        tuple(outputs),
        program.state,
    )


def _columns_program(
    program: Program,
    b: Parts,
    results: Mapping[str, Expr],
    columns: Mapping[str, Expr],
    rows: Program,
    split: int,
) -> Program:
    """sum over rows: outer axes become reduced ones, and a part of the first one stays outer."""
    first, *rest = program.outer
    parts = Axis("part", split, False)
    inner = Axis(first.name, first.size // split, True)
    axes = (parts, *(replace(a, reduced=False) for a in program.reduced), inner,
            *(replace(a, reduced=True) for a in rest))  # fmt: skip

    def cut(dims: Dims) -> Dims:
        """The first outer axis as parts of it."""
        return tuple(
            tuple(x for a in d for x in (("part", a) if a == first.name else (a,))) for d in dims
        )

    adjoints = {f"{s.name}.value": s.name for s in b.stages} | {"j": INDEX}
    stages = tuple(
        Stage(
            f"d{n}",
            b.total,
            (("x", rename(substitute(e, results), adjoints)),),
            0,
        )
        for n, e in columns.items()
    )
    given = [replace(i, dims=cut(i.dims)) for i in _inputs(program, b)]
    given += [
        Input(o.name, cut(o.dims), o.dtype) for o in rows.outputs if o.name in adjoints.values()
    ]
    given.append(Input(INDEX, tuple((a.name,) for a in program.reduced), "int64"))
    outputs = tuple(
        Output(f"d{n}", var(f"d{n}.value"), (("part",), *program.by_name[n].dims), program.state)
        for n in columns
    )
    stages = tuple(replace(s, name=f"sum_{s.name}") for s in stages)
    outputs = tuple(replace(o, expr=var(f"sum_{o.name}.value")) for o in outputs)
    return Program(
        f"{program.name}_backward_columns", axes, tuple(given), stages, outputs, program.state
    )


def _joined(
    program: Program, rows: Program, results: Mapping[str, Expr], columns: Mapping[str, Expr]
) -> Program:
    """The rows' program with the column gradients as sums over all rows."""
    sums = tuple(
        Output(f"d{n}", substitute(e, results), program.by_name[n].dims, program.state, summed=True)
        for n, e in columns.items()
    )
    wanted = tuple(o for o in rows.outputs if f"{o.name}.value" not in _stage_values(rows))
    return replace(rows, outputs=(*wanted, *sums))


def _stage_values(program: Program) -> frozenset[str]:
    return frozenset(f"{s.name}.value" for s in program.stages)


def _pruned(program: Program) -> Program:
    """Only the stages and inputs that the outputs need."""
    needed = set(names(*[o.expr for o in program.outputs]))
    stages: list[Stage] = []
    for s in reversed(program.stages):
        if f"{s.name}.value" in needed:
            stages.insert(0, s)
            needed |= {n for _, e in s.operands for n in names(e)}
    inputs = tuple(i for i in program.inputs if i.name in needed)
    order = {d: k for k, d in enumerate(sorted({s.level for s in stages}))}
    stages = [replace(s, level=order[s.level]) for s in stages]
    return replace(program, inputs=inputs, stages=tuple(stages))
