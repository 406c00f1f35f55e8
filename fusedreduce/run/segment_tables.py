"""Launching the kernel that makes all tables of packed sequences of a call.

What is in the offsets is read in every call; nothing waits for the device, so that a captured graph
reads what they hold when it is replayed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.blocks import segments
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.kernels.segment_tables import (
    BLOCK,
    SegmentTable,
    halvings,
    segment_tables_printed,
)
from fusedreduce.masks.sources import Making, Recipe, Recipes, one_by_one
from fusedreduce.run import launch
from fusedreduce.run.launch import Allocation, Launch

MOST = 256  # launches that are kept
DTYPES = (torch.int32, torch.int64)  # of offsets; torch makes tables of the narrow ones
TABLES: dict[Callable[..., Tensor], tuple[str, int]] = {
    segments.query_ids: ("id", segments.NO_QUERY),
    segments.key_ids: ("id", segments.NO_KEY),
    segments.starts: ("start", 0),
    segments.lengths: ("length", 0),
}


def prepare(recipes: Recipes, tensors: Sequence[Tensor]) -> Making:
    """All tables by one launch, of offsets that lie as these do."""
    if not recipes:
        return one_by_one(recipes)
    places = tuple(dict.fromkeys(p for r in recipes for p in r.places))
    read = [tensors[p] for p in places]
    if not all(r.make in TABLES for r in recipes) or not all(t.dtype in DTYPES for t in read):
        return one_by_one(recipes)
    ready = launch_for(recipes, places, read)
    names = [(name, places[n]) for n, name in enumerate(ready.inputs)]
    return lambda tensors: ready({name: tensors[p] for name, p in names})


def launch_for(recipes: Recipes, places: tuple[int, ...], read: Sequence[Tensor]) -> Launch:
    key = recipes, *[(t.shape, t.stride(), t.dtype, t.device) for t in read]
    found = _launches.get(key)
    if found is None:
        found = _launches[key] = launched(recipes, places, read)
        if len(_launches) > MOST:
            _launches.popitem(last=False)
    return found


def launched(recipes: Recipes, places: tuple[int, ...], read: Sequence[Tensor]) -> Launch:
    tables = tuple(table(r, places) for r in recipes)
    kernel = printed(tables)
    module = launch.load(kernel)
    integers = [n for t in read for n in (len(t), halvings(len(t)), t.stride(0))]
    integers += [r.length for r in recipes]
    made = [Allocation(f"t{n}", (r.length,), torch.int32, torch.int32)
            for n, r in enumerate(recipes)]  # fmt: skip
    sizes = [t.element_size() for t in (*read, *[torch.empty(0, dtype=torch.int32)] * len(made))]
    return Launch(
        function=getattr(module, kernel.name),
        module=module,
        kernel=kernel,
        grid=(max(1, *(-(-r.length // BLOCK) for r in recipes)), 1, 1),
        device=read[0].device,
        inputs=tuple(f"c{n}" for n in range(len(read))),
        outputs=tuple(made),
        places=tuple((n, 0, size) for n, size in enumerate(sizes)),
        sizes=(*[t.shape for t in read], *[a.shape for a in made]),
        numbers=(),
        integers=tuple(integers),
        options={**dict(kernel.constants), "num_warps": 4, "num_stages": 1},
        origin="the offsets of fr.masks.cu_seqlens",
    )


def table(r: Recipe, places: Sequence[int]) -> SegmentTable:
    """A recipe has the offsets that are read, then those that cut; one tensor is both."""
    what, outside = TABLES[r.make]
    return SegmentTable(what, places.index(r.places[-1]), places.index(r.places[0]), outside)


@lru_cache(maxsize=256)
def printed(tables: tuple[SegmentTable, ...]) -> PrintedKernel:
    return segment_tables_printed(tables)


_launches: OrderedDict[Any, Launch] = OrderedDict()
