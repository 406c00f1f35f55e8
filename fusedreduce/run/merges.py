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
        state = self.neighbours(elements, tile) if self.ordered else self.halves(elements, tile)
        return state if old is None else self.merged(old, state)

    def halves(self, state: Values, tile: Tile) -> Values:
        """The first half merged with the second, until one element is left."""
        late = []
        n = tile.columns
        while n > 1:
            half = n // 2
            if n % 2:
                late.append({k: v[:, n - 1 :] for k, v in state.items()})
            a, b = ({k: v[:, at : at + half] for k, v in state.items()} for at in (0, half))
            state, n = self.merged(a, b), half
        return self.appended(state, late)

    def neighbours(self, state: Values, tile: Tile) -> Values:
        """Elements 0 and 1 merged, 2 and 3, ...; transposed, so that rows lie side by side."""
        state = {k: v.t().contiguous() if min(v.stride()) else v.t() for k, v in state.items()}
        late = []
        n = tile.columns
        while n > 1:
            paired = n // 2 * 2
            if n % 2:
                late.append({k: v[n - 1 :] for k, v in state.items()})
            a, b = ({k: v[at:paired:2] for k, v in state.items()} for at in (0, 1))
            state, n = self.merged(a, b), n // 2
        return {k: v.t() for k, v in self.appended(state, late).items()}

    def appended(self, state: Values, late: list[Values]) -> Values:
        """Odd elements that were left at the end, the last one left first."""
        for odd in reversed(late):
            state = self.merged(state, odd)
        return state

    def merged(self, a: Values, b: Values) -> Values:
        """merge(a, b); edge rule (e): of a side with no element, the other side."""
        sides = {f"a.{n}": v for n, v in a.items()} | {f"b.{n}": v for n, v in b.items()}
        made = dict(zip(a, self.merge(sides), strict=True))
        if self.always:
            return made
        here: Tensor = edges.has_element(self.record, a)
        both = here & edges.has_element(self.record, b)
        return {n: torch.where(both, v, torch.where(here, a[n], b[n])) for n, v in made.items()}


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
