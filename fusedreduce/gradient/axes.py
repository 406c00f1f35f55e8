"""Along which axes a gradient is summed, and which dimensions it has until then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from fusedreduce.ir.expr import names
from fusedreduce.program import Axis, Dims, Input, Program, Stage

Axes: TypeAlias = "tuple[str, ...]"


def missed_axes(program: Program, i: Input) -> Axes:
    """The axes that a program of its own sums a gradient along: those of the row that the input
    misses, else the outer ones along which the same columns or elements are read again and again.
    """
    place = program.place_of_name(i.name)
    if place not in ("element", "column"):
        return ()
    if inside := _missing(program.reduced, i):
        return inside
    if place == "column":
        return tuple(a.name for a in program.outer)
    return _missing(program.outer, i)


def full_dims(program: Program, i: Input, summed: Axes = ()) -> tuple[Dims, tuple[int, ...]]:
    """The dimensions of the gradient as a kernel writes it, and those to sum over afterwards.

    An input that misses more outer axes than those that were summed along gets them in front.
    """
    left = [a for a in _missing(program.outer, i) if a not in summed]
    front: Dims = tuple((a,) for a in left)
    return (*front, *i.dims), tuple(range(len(left)))


def _missing(axes: Iterable[Axis], i: Input) -> Axes:
    return tuple(a.name for a in axes if a.name not in i.axes and a.size != 1)


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
