"""Where the numbers lie: strides per axis, axes collapsed as far as every tensor allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusedreduce.program import Dims, Program

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The collapsed axes of a program for tensors with given strides.

    outer    sizes of the collapsed outer axes; their product is the number of rows
    reduced  sizes of the collapsed reduced axes; their product is the row length
    strides  for each tensor, in elements: one stride per outer and one per reduced axis; 0 where
             the tensor does not vary
    """

    outer: Strides
    reduced: Strides
    strides: tuple[tuple[str, Strides, Strides], ...]

    def of(self, name: str) -> tuple[Strides, Strides]:
        return next((o, r) for n, o, r in self.strides if n == name)


def axis_strides(dims: Dims, strides: Sequence[int], size: Mapping[str, int]) -> dict[str, int]:
    """The stride of each axis of one tensor: a dimension that runs over several axes is split."""
    answer: dict[str, int] = {}
    for axes, stride in zip(dims, strides, strict=True):
        for name in reversed(axes):
            answer[name] = stride if size[name] != 1 else 0
            stride *= size[name]
    return answer


def contiguous(shape: Sequence[int]) -> Strides:
    """The strides of a new row-major tensor."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def collapse(sizes: Sequence[int], strides: Sequence[Strides]) -> tuple[Strides, list[Strides]]:
    """Join neighbouring axes wherever every tensor steps through both as through one.

    >>> collapse([4, 8], [(8, 1), (0, 0)])
    ((32,), [(1,), (0,)])
    >>> collapse([4, 8], [(8, 1), (0, 1)])
    ((4, 8), [(8, 1), (0, 1)])
    """
    kept = [k for k, n in enumerate(sizes) if n != 1]
    groups: list[int] = []  # sizes
    steps: list[list[int]] = [[] for _ in strides]
    for k in kept:
        joins = bool(groups) and all(
            s[-1] == t[k] * sizes[k] for s, t in zip(steps, strides, strict=True)
        )
        if joins:
            groups[-1] *= sizes[k]
        else:
            groups.append(sizes[k])
        for s, t in zip(steps, strides, strict=True):
            if joins:
                s[-1] = t[k]
            else:
                s.append(t[k])
    if not groups:
        return (1,), [(0,) for _ in strides]
    return tuple(groups), [tuple(s) for s in steps]


def layout(program: Program, strides: Mapping[str, Sequence[int]]) -> Layout:
    """The layout of a program whose tensors (inputs and outputs, by name) have these strides."""
    dims = {i.name: i.dims for i in program.inputs if not i.number}
    dims |= {o.name: o.dims for o in program.outputs if not o.summed}
    by_axis = {n: axis_strides(d, strides[n], program.size) for n, d in dims.items()}
    halves = []
    for axes in (program.outer, program.reduced):
        sizes = [a.size for a in axes]
        table = [tuple(by_axis[n].get(a.name, 0) for a in axes) for n in dims]
        halves.append(collapse(sizes, table))
    (outer, outer_strides), (reduced, reduced_strides) = halves
    rows = zip(dims, outer_strides, reduced_strides, strict=True)
    return Layout(outer, reduced, tuple(rows))
