"""Blocks of a map by kind, and the pairs in those that are visited: what work a mask saves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusedreduce.blocks.bound import Bound
from fusedreduce.blocks.classify import classify
from fusedreduce.ir.expr import names
from fusedreduce.pair import Pair
from fusedreduce.run.pair_inputs import PairInputs


@dataclass(frozen=True)
class Share:
    """Blocks of a map by kind, counted over batches and heads; `pairs` lie in visited ones."""

    skip: int
    partial: int
    full: int
    pairs: int

    @property
    def saved(self) -> float:
        """The fraction of blocks that are not visited."""
        return self.skip / max(self.skip + self.partial + self.full, 1)


def shared(pair: Pair, t: PairInputs, tiles: tuple[int, int]) -> Share:
    """The blocks of (queries, keys) that a mask skips, tests, or sees whole."""
    batch, heads, queries = t.rows
    size = (queries, t.k.shape[2])
    cut = [
        torch.tensor(cuts(n, tile), dtype=torch.float64)
        for n, tile in zip(size, tiles, strict=True)
    ]
    if pair.mask is None:
        every = batch * heads * len(cut[0]) * len(cut[1])
        return Share(0, 0, every, batch * heads * size[0] * size[1])
    read = set(names(pair.mask))
    tables = {n: x for n, x in t.tables.items() if n in read}
    place = torch.device("cpu") if t.q.device.type == "meta" else t.q.device
    bound = Bound(pair.mask, tables, place, t.sizes(), getattr(torch, pair.state))
    found = classify(bound, batch, heads, *size, *tiles).cpu()
    times = batch * heads // (found.shape[0] * found.shape[1])
    counts = [times * int((found == kind).sum()) for kind in range(3)]
    visited = ((found > 0).double() @ cut[1]) @ cut[0]
    return Share(counts[0], counts[1], counts[2], times * int(visited.sum()))


def cuts(length: int, tile: int) -> list[int]:
    """How many positions each block holds.

    >>> cuts(100, 64)
    [64, 36]
    """
    return [min(tile, length - at) for at in range(0, length, tile)]
