"""The axes of all stages lined up along those of the widest, and the names they get."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fusedreduce.chain.axes import Atom, Axes, Dim, Shape
from fusedreduce.chain.stage import TracedStage
from fusedreduce.errors import NotFusible, message
from fusedreduce.program import Axis


def wide(dim: Dim) -> Dim:
    """The axes that have more than one position."""
    return tuple(a for a in dim if a.size != 1)


def line_up(axes: Axes, stages: Sequence[TracedStage]) -> None:
    """Every stage runs over the same reduced axes, and over rows of one make.

    Stages that never met in an operation are laid beside each other when their sizes agree.
    """
    if not stages:
        return
    lead = max(stages, key=lambda s: len(s.outer(axes)))
    for s in stages:
        mine, theirs = wide(s.reduced(axes)), wide(lead.reduced(axes))
        if mine != theirs:  # in another order too: j counts along them
            lay_beside(axes, "reduced", s, lead, mine, theirs)
        if not set(s.outer(axes)) <= set(lead.outer(axes)):
            lay_beside(axes, "outer", s, lead, s.outer(axes), lead.outer(axes))


def lay_beside(
    axes: Axes,
    what: str,
    s: TracedStage,
    lead: TracedStage,
    mine: tuple[Atom, ...],
    theirs: tuple[Atom, ...],
) -> None:
    mine, theirs = wide(mine), wide(theirs)
    if prod(a.size for a in mine) == prod(a.size for a in theirs):
        axes.join(theirs, mine)
    elif mine or what == "reduced":
        raise NotFusible(
            message(
                f"two reductions have different {what} axes",
                expected=f"sizes {tuple(a.size for a in theirs)}, as {lead.line}",
                came=f"sizes {tuple(a.size for a in mine)}",
                where=s.line,
                do="fuse them apart, or keep the dimension (keepdim=True)",
            )
        )


def named_axes(
    axes: Axes, stages: Sequence[TracedStage], hidden: Shape, shapes: Sequence[Shape]
) -> tuple[dict[Atom, str], tuple[Axis, ...]]:
    """Axes and their names; without a reduction the first output's last axis is reduced."""
    if stages:
        lead = max(stages, key=lambda s: len(s.outer(axes)))
        reduced, outer = lead.reduced(axes), lead.outer(axes)
    else:
        first = shapes[0]  # of the first output
        reduced, outer = axes.leaves(first[-1]) if first else (), ()
    outer = (*(a for d in hidden for a in axes.leaves(d)), *outer)
    every: dict[Atom, None] = dict.fromkeys(outer)
    for d in (d for dims in sorted(shapes, key=len, reverse=True) for d in dims):
        every |= dict.fromkeys(axes.leaves(d))
    foreign = [a for a in every if a not in (*outer, *reduced) and a.size != 1]
    if foreign and stages:
        raise NotFusible(
            message(
                f"an axis of size {foreign[0].size} is not among those of the reduction",
                expected="inputs and outputs that broadcast against what is reduced",
                where=stages[0].line,
                do="fuse the reduction alone",
            )
        )
    rows = [a for a in every if a not in reduced]
    table = {a: f"r{k}" for k, a in enumerate(rows)} | {a: f"c{k}" for k, a in enumerate(reduced)}
    named = [Axis(table[a], a.size, False) for a in rows]
    named += [Axis(table[a], a.size, True) for a in reduced]
    return table, tuple(named)
