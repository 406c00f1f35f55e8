"""Offsets of packed sequences of every kind, and all tables that a mask may ask for."""

from __future__ import annotations

from unittest.mock import patch

import torch
from torch import Tensor

from fusedreduce.blocks import segments
from fusedreduce.masks.sources import Recipe, Recipes, one_by_one
from fusedreduce.run.launch import Launch
from fusedreduce.run.segment_tables import prepare

OFFSETS = {
    "plain": [0, 3, 8, 20],
    "one": [0, 20],
    "empty ones": [0, 0, 4, 4, 4, 11, 20, 20],
    "a tail": [0, 5, 9],
    "a gap before": [6, 9, 14, 20],
    "before the first position": [-7, -2, 5, 12],
    "beyond the last": [0, 13, 50, 1000],
    "all beyond": [700, 800, 900],
    "none": [4],
    "all empty": [5, 5, 5],
    "all in one place, then some": [5, 5, 5, 5, 5, 5, 5, 5, 9],
}
LENGTHS = [(20, 20), (13, 29), (1, 700), (700, 256), (0, 5), (0, 0)]


def recipes(Sq: int, Sk: int) -> Recipes:
    """Of offsets of queries (place 0) and of keys (place 1)."""
    return (
        Recipe(segments.query_ids, (0,), Sq),
        Recipe(segments.key_ids, (1,), Sk),
        Recipe(segments.starts, (0, 0), Sq),
        Recipe(segments.starts, (1, 0), Sq),
        Recipe(segments.starts, (1, 1), Sk),
        Recipe(segments.lengths, (0, 0), Sq),
        Recipe(segments.lengths, (1, 0), Sq),
    )


def offsets(name: str, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Those of queries, and as many of keys."""
    q = torch.tensor(OFFSETS[name], dtype=dtype, device=device)
    steps = torch.arange(len(q), dtype=dtype, device=device) // 2
    return [q, q + steps - len(q) // 3]


def random_offsets(seed: int, device: torch.device) -> list[Tensor]:
    """Of 0 to 600 segments, somewhere about 0 to 1000; int32 and int64."""
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, (3, 40, 602)[seed % 3], (1,), generator=generator))
    dtype = (torch.int32, torch.int64)[seed % 2]
    found = [torch.randint(-20, 1100, (n,), generator=generator).sort().values for _ in "qk"]
    return [t.to(device, dtype) for t in found]


def check(tables: Recipes, tensors: list[Tensor]) -> None:
    """By one launch, those that torch's operations make, to the bit."""
    with patch.object(Launch, "launch", autospec=True, side_effect=Launch.launch) as launches:
        found = prepare(tables, tensors)(tensors)
    assert launches.call_count == 1
    for r, a, b in zip(tables, found, one_by_one(tables)(tensors), strict=True):
        assert a.dtype == b.dtype == torch.int32
        assert torch.equal(a, b), (r, tensors)
