"""Along which axes a gradient is summed, and which dimensions it has until then."""

from __future__ import annotations

from typing import TypeAlias

from fusedreduce.ir.expr import names
from fusedreduce.program import Dims, Input, Program, Stage

Axes: TypeAlias = "tuple[str, ...]"


def missed_axes(program: Program, i: Input) -> Axes:
    """The outer axes along which the same columns or elements are read again and again."""
    place = program.place_of_name(i.name)
    if place not in ("element", "column") or after_inside(program, i):
        return ()
    if place == "column":
        return tuple(a.name for a in program.outer)
    return tuple(a.name for a in program.outer if a.name not in i.axes and a.size != 1)


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
