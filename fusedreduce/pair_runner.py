"""Runs pair reductions: one pair for each dtype and width, run at any lengths and strides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fusedreduce.operators import Found, found_in
from fusedreduce.pair import Pair
from fusedreduce.pair_prepared import (
    PreparedPair,
    backward_of,
    chosen_backend,
    kept,
    require_tiles,
    structure_of,
)
from fusedreduce.pairing import PairTask, pair_of
from fusedreduce.pipeline import ONE_AT_A_TIME
from fusedreduce.request import key_of, require_served
from fusedreduce.runner import Runner, is_noting
from fusedreduce.sizes import hint

Values = Mapping[str, Any]
MOST_ONCE = 4096
Tensors = dict[str, Tensor]


def placed_anywhere(values: Values) -> dict[str, Any]:
    """Without the offsets: they are numbers, and as tensors lie on the CPU."""
    return {n: v for n, v in values.items() if not n.endswith("_offset")}


@dataclass
class PairRunner(Runner):
    """Runs one `PairTask`; of all lengths and strides by the same pairs, in normal form."""

    task: PairTask  # type: ignore[assignment]  # it is not traced as rows are
    operator: str = "pairs"
    pairs: dict[Any, Pair] = field(default_factory=dict)
    once: dict[int, None] = field(default_factory=dict)  # hashes of what came once

    def __call__(self, values: Values, impl: str | None, trust: bool = False) -> Any:
        """NOTE: on the meta device there are shapes alone, and the operators know those."""
        if values["q"].is_meta and impl != "eager" and not is_noting():
            return self.in_operators(values, impl, trust)
        return super().__call__(values, impl, trust)

    def key(self, values: Values, impl: str | None, trust: bool) -> tuple[Any, ...]:
        """NOTE: launches know how long tables are; those that are made end where positions do."""
        known = super().key(values, impl, trust)
        if not self.task.makes_tables:
            return known
        offsets = [v for n, v in values.items() if n.endswith("_offset")]
        return (*known, *[int(v.flatten()[0] if isinstance(v, Tensor) else v) for v in offsets])

    def keeps(self, key: Any) -> bool:
        """From the second time on: a sequence that grows has each length once, and Python's
        collector would walk through what was kept of them all."""
        again = hash(key)
        if again in self.once:
            del self.once[again]
            return True
        self.once[again] = None
        if len(self.once) > MOST_ONCE:
            self.once.pop(next(iter(self.once)))
        return False

    def widths(self, values: Values) -> tuple[Any, ...]:
        """What a pair holds for: dtypes and widths; not how long anything is, nor how it lies."""
        wide = tuple(values[n].shape[-1] for n in "qkv" if n in values)
        return (wide, *map(self.kind, values.values()), *values)

    def kind(self, value: Any) -> Any:
        """NOTE: a size of 1 is in the task."""
        if not isinstance(value, Tensor):
            return key_of(value)
        return value.dtype, value.dim(), value.device

    def prepare(self, values: Values, impl: str | None, trust: bool) -> PreparedPair:  # type: ignore[override]
        require_served(placed_anywhere(values))
        pair = self.pair(values, trust)
        chosen = chosen_backend(impl, values["q"].device)
        if chosen == "triton" and not pair.in_any_order:
            require_tiles(pair, impl)
            chosen = "tiles"
        if 0 in values["q"].shape or 0 in values["k"].shape:
            chosen = "tiles"  # there is no launch of no program
        return PreparedPair(self.task, pair, chosen, self.eager, self.depth)

    def pair(self, values: Values, trust: bool) -> Pair:
        key = (trust, *self.widths(values))
        if key not in self.pairs:
            self.pairs[key] = pair_of(self.task, self.inner(values), trust)
        return self.pairs[key]

    def inner(self, values: Values) -> dict[str, Any]:
        """The arguments of one call of the batch around it."""
        at = (0,) * self.depth
        return {n: v[at] if isinstance(v, Tensor) and at else v for n, v in values.items()}

    def fake(
        self, values: Values, trust: bool, wanted: tuple[str, ...]
    ) -> tuple[list[Tensor], Found]:
        """Empty results, of the sizes of q and v."""
        q = values["q"]
        pair, found = self.outline(values, trust, wanted)
        shape = (*q.shape[:-1],)
        wide = (*shape, values["v"].shape[-1]) if "v" in values else shape
        made = [
            torch.empty(wide if r.vector else shape, dtype=getattr(torch, r.dtype), device=q.device)
            for r in pair.results
        ]
        return made, found

    def outline(self, values: Values, trust: bool, wanted: tuple[str, ...]) -> tuple[Any, Found]:
        """The pair with all that it saves, and what is to be known of it."""
        stand_ins = {
            n: torch.empty(tuple(map(hint, v.shape)), dtype=v.dtype, device="meta")
            if isinstance(v, Tensor)
            else v
            for n, v in values.items()
        }
        key = (trust, wanted, *self.widths(stand_ins))
        if key not in self.outlines:
            require_served(placed_anywhere(values))
            with ONE_AT_A_TIME:
                none = {n: 0.0 for n in values if n.endswith("_offset")}
                self.outlines[key] = self.found(self.inner(stand_ins | none), trust, wanted)
        return self.outlines[key]

    def found(self, values: Values, trust: bool, wanted: tuple[str, ...]) -> tuple[Any, Found]:
        pair = pair_of(self.task, values, trust)
        made = backward_of(self.task, pair, wanted) if wanted else None
        dtypes = tuple(r.dtype for r in pair.results)
        found = found_in(structure_of(pair, self.task), dtypes, wanted, made is not None)
        if made is None:
            return pair, found
        outputs = [r.name for r in pair.results]
        return made.forward, replace(found, kept=tuple(outputs.index(n) for n in kept(made)))
