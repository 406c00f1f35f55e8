"""The general form a tile at a time: a tree of merges inside the tile, then the tile is merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fusedreduce.declare import edges
from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import substitute
from fusedreduce.program import Stage
from fusedreduce.run.language import Function, Language, Values
from fusedreduce.run.stages import Tile

LANES = 2**17  # elements that are merged at a time: a few temporaries fit the second-level cache


@dataclass(frozen=True)
class General:
    """A stage in general form.

    always   every element is told from nothing by one of its slots, so that no side is empty
    ordered  the merge was not proved commutative: only neighbours are merged
    """

    record: Record
    lift: Function
    merge: Function
    always: bool
    ordered: bool

    @property
    def parameters(self) -> frozenset[str]:
        """What its lift reads: inputs, results of other stages, j."""
        return frozenset(self.lift.parameters)

    def step(self, tile: Tile, values: Values, old: Values | None) -> Values:
        """The state after one more tile; `old` is None before the first."""
        lifted = zip(self.record.fields, self.lift(values), strict=True)
        elements = {f.name: v.expand(-1, tile.columns) for f, v in lifted}
        if tile.inside is not None:
            inside, identities = tile.inside, {f.name: f.identity for f in self.record.fields}
            elements = {
                n: torch.where(inside, v, identities[n])  # type: ignore[arg-type]
                for n, v in elements.items()
            }
        rows = max(v.shape[0] for v in elements.values())
        lanes = min(max(1, LANES // rows), tile.columns)
        whole = tile.columns // lanes * lanes
        state = self.merged_lanes(_part(elements, 0, whole), lanes)
        if whole < tile.columns:
            tail = _part(elements, whole, tile.columns)
            state = self.merged(state, self.merged_lanes(tail, tile.columns - whole))
        return state if old is None else self.merged(old, state)

    def merged_lanes(self, elements: Values, lanes: int) -> Values:
        """Elements that lie side by side are merged step by step, then the lanes in a tree.

        In order, a lane is a run of neighbours; else it is every `lanes`-th element.
        """
        split, pair = (_runs, _neighbours) if self.ordered else (_strides, _halves)
        state, *later = split(elements, lanes)
        for more in later:
            state = self.merged(state, more)
        late = []
        while lanes > 1:
            a, b, odd = pair(state, lanes)
            late += odd
            state, lanes = self.merged(a, b), lanes // 2
        for odd_one in reversed(late):
            state = self.merged(state, odd_one)
        return {n: v.t() for n, v in state.items()} if self.ordered else state

    def merged(self, a: Values, b: Values) -> Values:
        """merge(a, b); edge rule (e): of a side with no element, the other side."""
        sides = {f"a.{n}": v for n, v in a.items()} | {f"b.{n}": v for n, v in b.items()}
        made = dict(zip(a, self.merge(sides), strict=True))
        if self.always:
            return made
        here: Tensor = edges.has_element(self.record, a)
        both = here & edges.has_element(self.record, b)
        return {n: torch.where(both, v, torch.where(here, a[n], b[n])) for n, v in made.items()}


def _part(state: Values, start: int, end: int) -> Values:
    return {n: v[:, start:end] for n, v in state.items()}


def _strides(state: Values, lanes: int) -> list[Values]:
    """Element k * lanes + l is step k of lane l."""
    columns = next(iter(state.values())).shape[1]
    return [_part(state, k, k + lanes) for k in range(0, columns, lanes)]


def _halves(state: Values, lanes: int) -> tuple[Values, Values, list[Values]]:
    """The first half, the second, and an odd last one."""
    half = lanes // 2
    odd = [_part(state, lanes - 1, lanes)] if lanes % 2 else []
    return _part(state, 0, half), _part(state, half, 2 * half), odd


def _runs(state: Values, lanes: int) -> list[Values]:
    """Element l * steps + k is step k of lane l; transposed, so that rows lie side by side."""
    turned = {n: v.t().reshape(lanes, -1, v.shape[0]) for n, v in state.items()}
    turned = {n: v.contiguous() if min(v.stride()) else v for n, v in turned.items()}
    steps = next(iter(turned.values())).shape[1]
    return [{n: v[:, k] for n, v in turned.items()} for k in range(steps)]


def _neighbours(state: Values, lanes: int) -> tuple[Values, Values, list[Values]]:
    """Lanes 0, 2, ..., lanes 1, 3, ..., and an odd last one; lanes are rows here."""
    even = lanes // 2 * 2
    odd = [{n: v[even:lanes] for n, v in state.items()}] if lanes % 2 else []
    first, second = ({n: v[k:even:2] for n, v in state.items()} for k in (0, 1))
    return first, second, odd


def general(stage: Stage, kinds: Mapping[str, str], language: Language) -> General:
    """A stage whose operands are over variables of these kinds."""
    record = stage.record
    types = [f.type for f in record.fields]
    lift = [substitute(e, dict(stage.operands)) for e in record.lift]
    sides = {f"{side}.{f.name}": f.type for side in ("a", "b") for f in record.fields}
    return General(
        record,
        language.function(lift, kinds, types),
        language.function(record.merge, sides, types),
        always=any(
            e.op == "const" and e.value != f.identity
            for e, f in zip(record.lift, record.fields, strict=True)
        ),
        ordered=not record.commutative,
    )
