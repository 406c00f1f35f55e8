"""Launches of the kernels that sum the gradient of one read by pair, or by distance."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from fusedreduce.gradient.pair_tables import TableSum
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.kernels.pair_frame import Blocks
from fusedreduce.kernels.pairs_tables import TablePrinter
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.pair import Pair
from fusedreduce.plan.pairs import PairPlan, Tile
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_kernels import (
    Loaded,
    capability,
    loaded,
    plan_of,
    precision,
)
from fusedreduce.run.pair_launch import PairLaunch, prepare
from fusedreduce.run.pair_lists import BlockMap, kept, listing

DIRECTIONS = ("tables", "diagonals")
PROGRAMS = 1024  # several on each multiprocessor: fewer tiles of sums are dealt to parts


def prepared(
    b: PairBackward, s: TableSum, inputs: PairInputs, wide: Mapping[str, Tensor], tile: Tile | None
) -> PairLaunch:
    """The launch that writes one sum: (kept, parts, Sq, Sk) or (kept, parts, diagonals, block,
    block)."""
    pair = b.forward
    plan = plan_of(pair, s.direction, capability(inputs), tile)
    ready = table_kernel(b, s, plan, blocks_of(pair, inputs, plan), precision(pair))
    kept, tiles, visits = counts(s, inputs, plan)
    parts = max(1, min(visits, PROGRAMS // (kept * tiles)))
    each: tuple[int, ...] = inputs.q.shape[2], inputs.k.shape[2]
    if s.direction == "diagonals":
        each = tiles, plan.QUERIES, plan.KEYS
    shape = kept, parts, *each
    made = {s.name: (torch.Size(shape), getattr(torch, pair.state))}
    read = (*b.rows, *inputs.tables)
    more = {"parts": parts, "summed": prod(split(s, inputs)[1])}
    return prepare(ready, inputs, made, wide, read, kept * parts * tiles, more)


def split(s: TableSum, inputs: PairInputs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of batch and heads as far as they are kept, and as far as they are summed over."""
    sizes = dict(zip("bh", inputs.rows[:2], strict=True))
    kept = tuple(n for d, n in sizes.items() if d in s.kept)
    return kept, tuple(n for d, n in sizes.items() if d not in s.kept)


def counts(s: TableSum, inputs: PairInputs, plan: PairPlan) -> tuple[int, int, int]:
    """How many planes are kept, tiles of sums each of them has, and visits a tile."""
    rows, columns = -(-inputs.q.shape[2] // plan.QUERIES), -(-inputs.k.shape[2] // plan.KEYS)
    kept, summed = (prod(sizes) for sizes in split(s, inputs))
    if s.direction == "diagonals":
        return kept, rows + columns - 1, summed * min(rows, columns)
    return kept, rows * columns, summed


def blocks_of(pair: Pair, inputs: PairInputs, plan: PairPlan) -> Blocks:
    even = inputs.q.shape[2] % plan.QUERIES == 0 and inputs.k.shape[2] % plan.KEYS == 0
    return Blocks(lists=pair.mask is not None, even=even, grouped=inputs.group > 1)


@lru_cache(maxsize=1024)
def table_kernel(
    b: PairBackward, s: TableSum, plan: PairPlan, blocks: Blocks, precise: str
) -> Loaded:
    return loaded(table_printed(b, s, plan, blocks, precise), plan)


def table_printed(
    b: PairBackward, s: TableSum, plan: PairPlan, blocks: Blocks, precise: str
) -> PrintedKernel:
    title = f"{b.forward.name}_{s.name.removeprefix('sum_')}"
    return TablePrinter(b, s, plan, blocks, title, (), precise).print()


# ---- which blocks are visited --------------------------------------------------------------------


class Visits:
    """For each tile of sums its visits, whole blocks and partial ones, by the kernel's pointers."""

    def __init__(self, pair: Pair, s: TableSum, inputs: PairInputs, plan: PairPlan) -> None:
        self.pair, self.s, self.plan = pair, s, plan
        self.map = BlockMap(pair, inputs, plan)
        kept, tiles, self.visits = counts(s, inputs, plan)
        self.lists = listing(inputs, (1, kept * tiles, self.visits), (0, self.visits, 1))

    def __call__(self, inputs: PairInputs) -> dict[str, Tensor]:
        what = self.s.kept, self.s.direction, self.plan
        return kept(self.pair, what, inputs, lambda: self.made(inputs))

    def made(self, inputs: PairInputs) -> dict[str, Tensor]:
        found = self.map(inputs)
        found = found.expand(*inputs.rows[:2], *found.shape[2:])
        diagonals = self.s.direction == "diagonals"
        found = along_diagonals(found) if diagonals else found.flatten(2)[..., None]
        dims = {"b": 0, "h": 1}
        ahead, summed = ([k for d, k in dims.items() if (d in self.s.kept) == is_kept]
                         for is_kept in (True, False))  # fmt: skip
        found = found.permute(*ahead, 2, 3, *summed).reshape(-1, self.visits)
        return self.lists({"map": found.contiguous()}, {})


def along_diagonals(found: Tensor) -> Tensor:
    """(..., rows, columns) as (..., diagonals, steps), the last column's diagonal first.

    >>> along_diagonals(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    tensor([[3, 0],
            [2, 6],
            [1, 5],
            [4, 0]])
    """
    rows, columns = found.shape[-2:]
    ahead = torch.arange(1 - columns, rows, device=found.device)[:, None]
    column = (-ahead).clamp(min=0) + torch.arange(min(rows, columns), device=found.device)
    row = column + ahead
    there = (row < rows) & (column < columns)
    return torch.where(there, found[..., row.clamp(max=rows - 1), column.clamp(max=columns - 1)], 0)
