"""Tiles of tensors in memory: boxes of collapsed axes, seen as (rows, columns) without copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """Consecutive positions along several axes, the last one running fastest.

    They are a box: whole inner axes, a piece of one axis, single positions of the outer ones.
    """

    first: int  # the flat position it starts at
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.sizes)

    def offset(self, strides: Strides) -> int:
        return sum(at * step for at, step in zip(self.starts, strides, strict=True))

    def steps(self, strides: Strides) -> tuple[list[int], list[int]]:
        """Sizes and strides of a view of the box; one position where the tensor does not vary."""
        pairs = [(n, s) for n, s in zip(self.sizes, strides, strict=True) if n != 1]
        if any(s for _, s in pairs):
            return [n for n, _ in pairs], [s for _, s in pairs]
        return [1], [0]


def boxes(sizes: Sequence[int], limit: int) -> list[Box]:
    """Axes cut into boxes of at most `limit` positions, in order.

    >>> [(b.first, b.starts, b.sizes) for b in boxes((2, 3), 2)]
    [(0, (0, 0), (1, 2)), (2, (0, 2), (1, 1)), (3, (1, 0), (1, 2)), (5, (1, 2), (1, 1))]
    >>> [b.sizes for b in boxes((4, 3), 7)]
    [(2, 3), (2, 3)]
    """
    if 0 in sizes:
        return []
    steps = []
    room = max(limit, 1)
    for n in reversed(sizes):
        steps.append(min(n, room))
        room = room // n if steps[-1] == n else 1
    cut = [Box(0, (), ())]
    for n, step in zip(sizes, reversed(steps), strict=True):
        cut = [
            Box(b.first * n + k, (*b.starts, k), (*b.sizes, min(step, n - k)))
            for b in cut
            for k in range(0, n, step)
        ]
    return cut


@dataclass(frozen=True)
class View:
    """One tensor with its strides along the collapsed outer and reduced axes."""

    tensor: Tensor
    outer: Strides
    reduced: Strides

    def read(self, rows: Box, columns: Box) -> Tensor:
        """The tile as (rows or 1, columns or 1): a view, or a copy of the tile where it must be."""
        (r, r_steps), (c, c_steps) = rows.steps(self.outer), columns.steps(self.reduced)
        view = self._strided([*r, *c], [*r_steps, *c_steps], rows, columns)
        return view if len(r) == len(c) == 1 else view.reshape(prod(r), prod(c))

    def write(self, value: Tensor, rows: Box, columns: Box) -> None:
        """Store a tile, rounded to the tensor's dtype; what repeats is stored once."""
        (r, r_steps), (c, c_steps) = rows.steps(self.outer), columns.steps(self.reduced)
        tile = value.expand(prod(r), prod(c)).reshape(*r, *c)
        steps = [*r_steps, *c_steps]
        for axis, step in enumerate(steps):
            tile = tile if step else tile.narrow(axis, 0, 1)
        self._strided(list(tile.shape), steps, rows, columns).copy_(tile)

    def _strided(self, size: list[int], steps: list[int], rows: Box, columns: Box) -> Tensor:
        at = rows.offset(self.outer) + columns.offset(self.reduced)
        return self.tensor.as_strided(size, steps, self.tensor.storage_offset() + at)
