"""Pairs by printed kernels: which launches make the results, and which the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fusedreduce.gradient.pair_state import adjoint
from fusedreduce.gradient.pair_tables import TableSum
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import is_const
from fusedreduce.kernels.rows import print_rows
from fusedreduce.pair import Pair
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import layout
from fusedreduce.plan.pairs import Tile
from fusedreduce.program import Program
from fusedreduce.run import launch
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_kernels import (
    backward_kernel,
    blocks_of,
    capability,
    forward_kernel,
    plan_of,
    precision,
)
from fusedreduce.run.pair_launch import PairLaunch, prepare
from fusedreduce.run.pair_lists import Listing, Maps
from fusedreduce.run.pair_packing import packed, packs, unpacked
from fusedreduce.run.pair_splits import merged_splits, number_of_splits, pair_of_states
from fusedreduce.run.pair_table_gradients import beside, by_kernels, gradients
from fusedreduce.run.pair_table_kernels import DIRECTIONS, Visits, prepared

Values = Mapping[str, Tensor]
MOST_LAUNCHES = 256


class Forward:
    """The results of a pair by name, for inputs that lie in one way; the first call settles how."""

    def __init__(self, pair: Pair, tile: Tile | None = None) -> None:
        self.pair, self.tile = pair, tile
        self.way: Callable[[PairInputs], dict[str, Tensor]] | None = None

    def __call__(self, inputs: PairInputs) -> dict[str, Tensor]:
        if self.way is None:
            self.way = self.chosen(inputs)
        return self.way(inputs)

    def chosen(self, inputs: PairInputs) -> Callable[[PairInputs], dict[str, Tensor]]:
        """One launch, or one of heads as rows, or one of split keys and their merge."""
        if packs(self.pair, inputs):
            return self.packed(inputs)
        plan = plan_of(self.pair, "forward", capability(inputs), self.tile)
        splits = number_of_splits(inputs, plan)
        if splits == 1:
            return Launches(self.pair, self.tile)
        states = Launches(pair_of_states(self.pair), self.tile, splits)
        return lambda inputs: merged_splits(self.pair, states(inputs), rows_by_kernel)

    def packed(self, inputs: PairInputs) -> Callable[[PairInputs], dict[str, Tensor]]:
        inside = Forward(packed(self.pair, inputs)[0], self.tile)

        def run(inputs: PairInputs) -> dict[str, Tensor]:
            found = inside(packed(self.pair, inputs)[1])
            return {n: unpacked(t, inputs) for n, t in found.items()}

        return run


class Launches:
    """One kernel; its launches by what else it depends on: signs of numbers, torch's switches.

    splits   over how many programs the keys of a block of queries are split
    """

    def __init__(self, pair: Pair, tile: Tile | None, splits: int = 1) -> None:
        self.pair, self.tile, self.splits = pair, tile, splits
        self.known: dict[Any, tuple[PairLaunch, Listing | None]] = {}

    def __call__(self, inputs: PairInputs) -> dict[str, Tensor]:
        numbers = inputs.numbers
        key = (precision(self.pair), *[n for n, v in numbers.items() if v > 0])
        found = self.known.get(key)
        if found is None:
            ready = self.prepare(inputs, key[1:])
            found = self.known[key] = ready, listing_of(self.pair, inputs, ready)
        ready, listing = found
        tensors = {**operands(inputs), **inputs.tables}
        if listing is not None:
            tensors |= listing(inputs)
        return ready(tensors, {**numbers, **inputs.offsets})

    def prepare(self, inputs: PairInputs, positive: tuple[str, ...]) -> PairLaunch:
        pair, splits = self.pair, self.splits
        plan = plan_of(pair, "forward", capability(inputs), self.tile)
        blocks = replace(blocks_of(pair, inputs, plan), splits=splits > 1)
        ready = forward_kernel(pair, plan, blocks, positive, precision(pair))
        batch, heads, length = inputs.rows
        programs = -(-length // plan.QUERIES) * batch * heads
        made, wide = inputs.shapes(pair, splits), operands(inputs)
        more = {"splits": splits}
        return prepare(ready, inputs, made, wide, inputs.tables, programs * splits, more)


class Backward:
    """The gradients of q, k, v and tables, for inputs that lie in one way.

    Of tables, kernels write sums, those of q, k and v or some of their own, and
    `pair_table_gradients` adds them up where they were read.
    """

    def __init__(
        self, b: PairBackward, wanted: Sequence[str], tiles: Mapping[str, Tile] | None = None
    ) -> None:
        self.b, self.wanted, self.tiles = b, tuple(wanted), tiles or {}
        sloping = not is_const(b.score, 0)
        self.made = {"queries": ["q"] * sloping, "keys": ["k"] * sloping + ["v"] * bool(b.weight)}
        self.read = [n for n in self.wanted if n not in "qkv"]
        self.known: dict[Any, list[tuple[PairLaunch, Listing | None]]] = {}
        self.sums: dict[Any, tuple[PairLaunch, Visits | None]] = {}

    def __call__(
        self, inputs: PairInputs, vectors: Mapping[str, Tensor | None], rows: Values
    ) -> dict[str, Tensor]:
        """The gradients that are wanted, by name.

        vectors   the vector result's adjoint, as d_<result>
        rows      the row values that the formulas read, (B, H, Sq) each
        """
        b = self.b
        ups = self.ups(inputs, vectors)
        wide = operands(inputs) | ups
        given = {**wide, **{n: rows[n].contiguous() for n in b.rows}, **inputs.tables}
        how = (precision(b.forward), *[(t.shape, t.stride()) for t in ups.values()])
        launches = self.known.get(how)
        if launches is None:
            launches = self.known[how] = [*self.launches(inputs, wide)]
        numbers = {**inputs.numbers, **inputs.offsets}
        made: dict[str, Tensor] = {}
        maps: Maps = {}
        for ready, listing in launches:
            lists = {} if listing is None else listing(inputs, maps)
            made |= ready(given | lists if lists else given, numbers)
        if self.read:
            for s in self.kernels(inputs):
                made |= self.summed(s, how, inputs, wide, given)
        found = {n: made[f"d{n}"] for n in "qkv" if f"d{n}" in made}
        if self.read:
            found |= gradients(b, inputs, vectors, rows, made, self.read)
        for n in self.wanted:
            if n not in found:
                found[n] = torch.zeros_like(wide[n])
        return {n: found[n] for n in self.wanted}

    def kernels(self, inputs: PairInputs) -> list[TableSum]:
        """The sums that have kernels of their own."""
        asked = by_kernels(self.b, inputs).intersection(self.read)
        return [s for s in self.b.table_sums if s.direction in DIRECTIONS and s.read.table in asked]

    def summed(
        self, s: TableSum, how: tuple[Any, ...], inputs: PairInputs, wide: Values, given: Values
    ) -> dict[str, Tensor]:
        key = (s.name, *how)
        found = self.sums.get(key)
        if found is None:
            ready = prepared(self.b, s, inputs, wide, self.tiles.get("tables"))
            visits = Visits(self.b.forward, s, inputs, ready.plan) if ready.listed else None
            found = self.sums[key] = ready, visits
        ready, visits = found
        lists = {} if visits is None else visits(inputs)
        return ready({**given, **lists}, {**inputs.numbers, **inputs.offsets})

    def ups(self, inputs: PairInputs, vectors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """The adjoint of the vector result; zeros that take no memory where it has none."""
        b = self.b
        if not b.vector:
            return {}
        name = adjoint(b.vector)
        given = vectors.get(name)
        if given is None:
            dtype = next(getattr(torch, r.dtype) for r in b.forward.results if r.name == b.vector)
            zero = torch.zeros((), dtype=dtype, device=inputs.q.device)
            given = zero.expand(*inputs.rows, b.forward.DV)
        return {name: given}

    def launches(
        self, inputs: PairInputs, wide: Values
    ) -> Iterator[tuple[PairLaunch, Listing | None]]:
        """The launches that make what is wanted, and the lists of blocks that they visit."""
        for direction, names in self.made.items():
            besides = beside(self.b, direction, inputs)
            if besides or set(names) & set(self.wanted):
                ready = self.prepare(direction, inputs, wide, besides)
                yield ready, listing_of(self.b.forward, inputs, ready)

    def prepare(
        self, direction: str, inputs: PairInputs, wide: Values, besides: Mapping[str, Any]
    ) -> PairLaunch:
        b = self.b
        plan = plan_of(b.forward, direction, capability(inputs), self.tiles.get(direction))
        blocks = blocks_of(b.forward, inputs, plan)
        ready = backward_kernel(b, plan, blocks, precision(b.forward))
        outer, size = (wide["k"], plan.KEYS) if direction == "keys" else (wide["q"], plan.QUERIES)
        programs = -(-outer.shape[2] // size) * outer.shape[0] * outer.shape[1]
        made = {f"d{n}": (wide[n].shape, wide[n].dtype) for n in self.made[direction]}
        read = (*b.rows, *inputs.tables)
        return prepare(ready, inputs, {**made, **besides}, wide, read, programs)


def listing_of(pair: Pair, inputs: PairInputs, ready: PairLaunch) -> Listing | None:
    return Listing(pair, inputs, ready.plan) if ready.listed else None


def operands(inputs: PairInputs) -> dict[str, Tensor]:
    found = {"q": inputs.q, "k": inputs.k}
    if inputs.v is not None:
        found["v"] = inputs.v
    return found


# ---- row programs --------------------------------------------------------------------------------


def rows_by_kernel(program: Program, values: Values) -> list[Tensor]:
    """A row program by its printed kernel; kept for each way its inputs lie."""
    key = (id(program), *[values[i.name].stride() for i in program.inputs])
    if key not in _rows:  # the program is kept beside its launch
        lay = layout(program, launch.program_strides(program, values))
        plan = row_plans.plan(program, lay)
        kernel = print_rows(program, plan, lay, program.name)
        device = next(iter(values.values())).device
        _rows[key] = program, launch.prepare(program, kernel, plan, lay, program.name, device)
        if len(_rows) > MOST_LAUNCHES:
            _rows.pop(next(iter(_rows)))
    return _rows[key][1](values)


_rows: dict[Any, tuple[Program, launch.Launch]] = {}
