"""Which blocks pair kernels visit: a map of the mask and lists of its blocks, made on the device.

Both are kernels: a call waits for nothing, and a mask that reads tensors is looked at in every
call, as they may have changed. Lists of a mask that reads none are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from fusedreduce.blocks.bound import Bound
from fusedreduce.blocks.classify import classify
from fusedreduce.ir.expr import names
from fusedreduce.kernels.block_lists import KINDS, block_lists_printed
from fusedreduce.kernels.pairs_map import BLOCKS, map_printed
from fusedreduce.pair import Pair
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.run.pair_inputs import NO_TABLES, PairInputs
from fusedreduce.run.pair_kernels import Loaded, loaded, reads_tables
from fusedreduce.run.pair_launch import PairLaunch, prepare

Maps = dict[tuple[int, int], Tensor]
LISTS = 64  # of masks without tensors: so many are kept


class Listing:
    """The blocks that a kernel visits, for inputs that lie in one way, by its pointers."""

    def __init__(self, pair: Pair, inputs: PairInputs, plan: PairPlan) -> None:
        self.pair, self.plan, self.map = pair, plan, BlockMap(pair, inputs, plan)
        *planes, rows, columns = self.map.shape
        sizes, steps = (prod(planes), rows, columns), (rows * columns, columns, 1)
        if plan.direction == "keys":
            sizes, steps = (prod(planes), columns, rows), (rows * columns, 1, columns)
        self.lists = listing(inputs, sizes, steps)

    def __call__(self, inputs: PairInputs, maps: Maps | None = None) -> dict[str, Tensor]:
        """maps   those that this call made for other kernels, by the sizes of blocks"""
        maps = {} if maps is None else maps
        return kept(self.pair, (self.plan,), inputs, lambda: self.made(inputs, maps))

    def made(self, inputs: PairInputs, maps: Maps) -> dict[str, Tensor]:
        size = self.plan.QUERIES, self.plan.KEYS
        if size not in maps:
            maps[size] = self.map(inputs)
        return self.lists({"map": maps[size]}, {})


class BlockMap:
    """What a mask says of each block: 0 nothing, 1 something, 2 everything is seen; int8.

    (B or 1, H or 1, blocks of queries, blocks of keys). A block that the end of the queries or keys
    cuts off is never full: kernels test its positions.
    """

    def __init__(self, pair: Pair, inputs: PairInputs, plan: PairPlan) -> None:
        assert pair.mask is not None
        self.pair, self.plan, read = pair, plan, set(names(pair.mask))
        batch, heads, length = inputs.rows
        rows, columns = -(-length // plan.QUERIES), -(-inputs.k.shape[2] // plan.KEYS)
        outer = batch if "b" in read else 1, heads if "h" in read else 1
        self.shape = *outer, rows, columns
        ready = map_kernel(pair, plan.QUERIES, plan.KEYS, "b" in read, "h" in read)
        self.launch: PairLaunch | None = None
        if ready is not None:
            programs = prod(outer) * rows * -(-columns // BLOCKS)
            made = {"map": (torch.Size(self.shape), torch.int8)}
            self.launch = prepare(ready, inputs, made, NO_TABLES, inputs.tables, programs)

    def __call__(self, inputs: PairInputs) -> Tensor:
        if self.launch is not None:
            return self.launch(inputs.tables, inputs.offsets)["map"]
        return self.classified(inputs).contiguous()

    def bound(self, inputs: PairInputs) -> Bound:
        assert self.pair.mask is not None
        read = set(names(self.pair.mask))
        tables = {n: t for n, t in inputs.tables.items() if n in read}
        state = getattr(torch, self.pair.state)
        return Bound(self.pair.mask, tables, inputs.q.device, inputs.sizes(), state)

    def classified(self, inputs: PairInputs) -> Tensor:
        """By operations of torch: some hundred launches, for masks that have no kernel."""
        plan, (batch, heads, length), keys = self.plan, inputs.rows, inputs.k.shape[2]
        sizes = batch, heads, length, keys, plan.QUERIES, plan.KEYS
        found = classify(self.bound(inputs), *sizes).clone()
        if keys % plan.KEYS:
            found[..., -1].clamp_(max=1)
        if length % plan.QUERIES:
            found[..., -1, :].clamp_(max=1)
        return found.expand(self.shape)


@lru_cache(maxsize=256)
def map_kernel(pair: Pair, queries: int, keys: int, batch: bool, heads: bool) -> Loaded | None:
    """None where the mask has no such kernel."""
    plan = PairPlan("map", queries, keys, 4, 1, 0, 0, descriptors=False)
    kernel = map_printed(pair, plan, batch, heads)
    return None if kernel is None else loaded(kernel, plan)


@lru_cache(maxsize=1)
def lists_kernel() -> Loaded:
    plan = PairPlan("lists", 1, 1, 1, 1, 0, 0, descriptors=False)
    return loaded(block_lists_printed(), plan)


def listing(
    inputs: PairInputs, sizes: tuple[int, int, int], steps: tuple[int, int, int]
) -> PairLaunch:
    """The launch that lists a map of (planes, outer, inner) blocks which lies in these steps."""
    planes, outer, inner = sizes
    made = {}
    for kind in KINDS:
        made[f"{kind}_counts"] = torch.Size((planes, outer)), torch.int32
        made[f"{kind}_ids"] = torch.Size(sizes), torch.int32
    integers = dict(zip(("plane_step", "outer_step", "inner_step"), steps, strict=True))
    integers |= {"outer": outer, "inner": inner}
    return prepare(
        lists_kernel(), inputs, made, NO_TABLES, ("map",), max(planes * outer, 1), integers
    )


# ---- lists of masks without tensors --------------------------------------------------------------


def kept(
    pair: Pair, what: tuple[Any, ...], inputs: PairInputs, make: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """What was made for equal lengths and offsets, unless the mask reads tensors.

    NOTE: what was made on one stream is not ready on another, and during a capture never.
    """
    device, stream = inputs.q.device, 0
    if reads_tables(pair):
        return make()
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return make()
        stream = torch.cuda.current_stream(device).cuda_stream
    key = (pair, *what, inputs.rows, *inputs.sizes().values(), device, stream)
    found = _lists.get(key)
    if found is None:
        found = _lists[key] = make()
        if len(_lists) > LISTS:
            _lists.pop(next(iter(_lists)), None)
    return found


_lists: dict[Any, dict[str, Tensor]] = {}
