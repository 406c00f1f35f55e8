"""The backward as programs: one for elements and rows, one for columns, a forward that saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fusedreduce.declare.record import Record
from fusedreduce.declare.restrict import restricted
from fusedreduce.gradient.axes import Axes, full_dims, missed_axes, row_dims, stage_dims
from fusedreduce.gradient.parts import Kept, Parts, extra_stage, kept, saved_state, slot_name
from fusedreduce.ir.expr import Expr, const, names, rename, substitute, var
from fusedreduce.program import Axis, Dims, Input, Output, Program, Stage

INDEX = "column_index"  # the index j of a column, where the axes have exchanged their roles


@dataclass(frozen=True)
class Backward:
    """What replaces a differentiable run.

    forward   the program with the summaries it must save as more outputs
    saved     their names
    rows      the program that gives element and row gradients, and the adjoints `columns` needs
    columns   the program that gives column gradients, or None
    shared    programs for inputs that miss some axes of their place: each sums along those, of the
              row first
    joined    both in one, the column gradients as sums over rows; or None
    wanted    for each input that gets a gradient: (output, dimensions to sum after)
    """

    forward: Program
    saved: tuple[str, ...]
    rows: Program
    columns: Program | None
    shared: tuple[Program, ...]
    joined: Program | None
    wanted: tuple[tuple[str, str, tuple[int, ...]], ...]


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
    rows, exchanged, how = _sorted_parts(program, b)
    summed = {n: e for group in exchanged.values() for n, e in group.items()}
    made = _rows_program(program, b, results, rows, summed)
    programs = {
        missed: _exchanged(program, b, results, group, made, missed, split)
        for missed, group in exchanged.items()
    }
    used = _read(made).union(*map(_read, programs.values()))
    columns = programs.pop(tuple(a.name for a in program.outer), None)
    one_pass = columns is not None and not programs
    saved = [(s, k) for s in program.stages for k in kept(s) if k.name in used]
    return Backward(
        forward=_forward(program, saved),
        saved=tuple(k.name for _, k in saved),
        rows=pruned(made),
        columns=None if columns is None else pruned(columns),
        shared=tuple(map(pruned, programs.values())),
        joined=pruned(_joined(program, made, results, summed)) if one_pass else None,
        wanted=how,
    )


Rows: TypeAlias = "dict[str, tuple[Expr, Dims, str]]"


def _sorted_parts(
    program: Program, b: Parts
) -> tuple[Rows, dict[Axes, dict[str, Expr]], tuple[tuple[str, str, tuple[int, ...]], ...]]:
    """Each wanted gradient among the rows' outputs, or by the axes that it is summed along."""
    rows: Rows = {}
    exchanged: dict[Axes, dict[str, Expr]] = {}
    how: list[tuple[str, str, tuple[int, ...]]] = []
    for name in b.wanted:
        i = program.by_name[name]
        part = b.gradient(name, f"sum_{name}") or const(0.0)
        missed = missed_axes(program, i)
        if missed:
            exchanged.setdefault(missed, {})[name] = part
            after = (0,) if is_whole(program, missed) else full_dims(program, i, missed)[1]
        else:
            dims, after = full_dims(program, i)
            rows[name] = (part, dims, i.dtype if not after else program.state)
        how.append((name, f"d{name}", after))
    return rows, exchanged, tuple(how)


def _read(program: Program) -> set[str]:
    """The names that a program's outputs and operands read."""
    operands = [e for s in program.stages for _, e in s.operands]
    return set(names(*[o.expr for o in program.outputs], *operands))


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


def _exchanged(
    program: Program,
    b: Parts,
    results: Mapping[str, Expr],
    columns: Mapping[str, Expr],
    rows: Program,
    missed: Axes,
    split: int,
) -> Program:
    """sum along `missed`: these axes become reduced, all others outer.

    Columns miss all outer axes: a part of the first one stays outer, so that there are programs
    enough.
    """
    whole = is_whole(program, missed)
    axes = [replace(a, reduced=a.name in missed) for a in (*program.outer, *program.reduced)]
    if whole:
        axes[0] = replace(axes[0], size=axes[0].size // split)
        axes.insert(0, Axis("part", split, False))

    def cut(dims: Dims) -> Dims:
        return in_parts(dims, missed[0]) if whole else dims

    def dims_of(name: str) -> Dims:
        i = program.by_name[name]
        return (("part",), *i.dims) if whole else full_dims(program, i, missed)[0]

    adjoints = {f"{s.name}.value": s.name for s in b.stages} | {"j": INDEX}
    stages = tuple(
        Stage(f"sum_d{n}", b.total, (("x", rename(substitute(e, results), adjoints)),), 0)
        for n, e in columns.items()
    )
    given = [replace(i, dims=cut(i.dims)) for i in _inputs(program, b)]
    given += [
        Input(o.name, cut(o.dims), o.dtype) for o in rows.outputs if o.name in adjoints.values()
    ]
    given.append(Input(INDEX, tuple((a.name,) for a in program.reduced), "int64"))
    outputs = tuple(
        Output(f"d{n}", var(f"sum_d{n}.value"), dims_of(n), program.state) for n in columns
    )
    title = f"{program.name}_backward_{'columns' if whole else 'shared'}"
    return Program(title, tuple(axes), tuple(given), stages, outputs, program.state)


def is_whole(program: Program, missed: Axes) -> bool:
    """Are these all the outer axes, as a column misses them?"""
    return missed == tuple(a.name for a in program.outer)


def in_parts(dims: Dims, axis: str) -> Dims:
    """Dimensions whose one axis became the axis of its parts and that inside a part."""
    return tuple(tuple(x for a in d for x in (("part", a) if a == axis else (a,))) for d in dims)


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


def pruned(program: Program) -> Program:
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
