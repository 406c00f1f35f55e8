"""The backward of a pair in plain PyTorch: one pass over its tiles, scores recomputed in each.

d score_ij = factor * score_formula(score, rows_i, dp_ij),   dp_ij = <d_out_i, v_j>
d v_j = sum_i weight_ij * d_out_i,  d q_i = sum_j d score_ij * k_j,  d k_j = sum_i d score_ij * q_i
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fusedreduce.gradient.pair_state import adjoint
from fusedreduce.gradient.pair_widths import DP
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import is_const, names
from fusedreduce.pair import SCORE
from fusedreduce.run.language import Language, Values
from fusedreduce.run.pair_formulas import Formulas, Lookup, Region, formulas
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_walk import (
    Inside,
    Keys,
    Walk,
    cleared,
    inside,
    mask_of,
    plainly,
    scores,
)
from fusedreduce.run.views import Box


def backward(
    b: PairBackward,
    inputs: PairInputs,
    vectors: Mapping[str, Tensor | None],
    rows: Mapping[str, Tensor],
    wanted: Collection[str],
    tile: tuple[int, int] | None = None,
) -> dict[str, Tensor]:
    """The gradients of "q", "k", "v" and of tables, of the names in `wanted`, as these lie.

    vectors   d_<vector result> (B, H, Sq, DV); missing or None counts as 0
    rows      the row values `b.rows` (B, H, Sq), as `pair_rows.RowValues` makes them
    """
    with plainly(inputs.q.device):
        run = _Run(b, inputs, vectors.get(adjoint(b.vector)), rows, frozenset(wanted), tile)
        for heads in run.walk.heads:
            run.heads(heads)
        return run.gradients()


# ---- a backward, compiled ------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """A backward as functions of tiles.

    made   the weight of d v (if there is one), d score but for the factor, d of each table's read
    """

    language: Language
    mask: Formulas | None
    factor: Formulas
    made: Formulas
    weighed: bool
    scored: bool
    tables: tuple[tuple[str, Lookup], ...]
    reads: frozenset[str]  # the variables of the formulas


@lru_cache(maxsize=256)
def _steps(b: PairBackward, device: torch.device) -> Steps:
    pair = b.forward
    language = Language(getattr(torch, pair.state), device)
    kinds = {r.name: _kind(r.dtype) for r in pair.results if not r.vector}
    rows = {n: kinds.get(n, "float") for n in b.rows} | {DP: "float"}
    exprs = [] if b.weight is None else [b.weight]
    exprs += [b.score, *(e for _, e in b.tables)]
    reads = tuple(r for r, _ in b.tables)
    made = formulas(exprs, pair, rows, language, ["float"] * len(exprs), reads)
    by_node = dict(zip(made.nodes, made.lookups, strict=True))
    return Steps(
        language,
        mask_of(pair, language),
        formulas([b.factor], pair, rows, language, ["float"]),
        made,
        b.weight is not None,
        not is_const(b.score, 0),
        tuple((r.table, by_node[r.node]) for r in reads),
        frozenset(names(*exprs)),
    )


def _kind(dtype: str) -> str:
    return "float" if "float" in dtype else "bool" if dtype == "bool" else "int"


# ---- one run -------------------------------------------------------------------------------------


class _Run:
    """Totals in the state's dtype: of q a block at a time, of k, v and tables all along."""

    def __init__(
        self,
        b: PairBackward,
        inputs: PairInputs,
        d_out: Tensor | None,
        rows: Mapping[str, Tensor],
        wanted: frozenset[str],
        tile: tuple[int, int] | None,
    ) -> None:
        self.steps = _steps(b, inputs.q.device)
        self.walk = Walk(b.forward, inputs, self.steps.language, tile)
        self.inputs, self.rows, self.wanted = inputs, rows, wanted
        if d_out is None and b.vector:
            d_out = inputs.q.new_zeros(()).expand(*inputs.rows, b.forward.DV)
        self.d_out = d_out
        given = {"q": inputs.q, "k": inputs.k, "v": inputs.v, **inputs.tables}
        self.given = {n: t for n, t in given.items() if t is not None and n in wanted}
        state = self.steps.language.state
        self.totals = {
            n: torch.zeros(t.shape, dtype=state, device=t.device) for n, t in self.given.items()
        }

    def gradients(self) -> dict[str, Tensor]:
        return {n: self.totals[n].to(t.dtype) for n, t in self.given.items()}

    def heads(self, heads: Box) -> None:
        """All queries and keys of some heads."""
        keys = Keys.loaded(self.walk, heads)
        sums = {n: self.of_heads(n, heads) for n in self.given if n in ("k", "v")}
        for queries in self.walk.queries:
            self.queries(heads, queries, keys, sums)

    def of_heads(self, name: str, heads: Box) -> Tensor:
        """The total of k or v for some of its heads: (heads of k, Sk, width), a view."""
        total = self.totals[name]
        for dim in range(2):
            total = total.narrow(dim, heads.starts[dim], heads.sizes[dim])
        return total.view(heads.count, *total.shape[2:])

    def queries(
        self, heads: Box, queries: tuple[int, int], keys: Keys, sums: Mapping[str, Tensor]
    ) -> None:
        walk, steps = self.walk, self.steps
        block = walk.region(heads, queries, (0, 1))
        q = walk.rows(self.inputs.q, block)
        d_out = None if self.d_out is None else walk.rows(self.d_out, block)
        known = {n: steps.language.load(block.cut(t, 2)[..., None]) for n, t in self.rows.items()}
        (factor,) = steps.factor(walk.values(block) | known, self.inputs.tables, block,
                                 walk.language)  # fmt: skip
        scaled = (q.view(*block.sizes[:3], -1) * factor).view(q.shape)
        d_q = torch.zeros_like(q)
        for part in walk.keys:
            region = walk.region(heads, queries, part)
            values = walk.values(region) | known
            seen = inside(steps.mask, walk, region, values)
            if seen is None or not seen.nothing:
                weight, d_score = self.tile(region, values, seen, q, d_out, keys)
                self.add(region, seen, weight, d_score, scaled, d_out, d_q, keys, sums)
        if "q" in self.given:
            d_q = d_q.view(*block.sizes[:3], -1) * factor
            block.cut(self.totals["q"], 2).copy_(d_q)

    def tile(
        self,
        region: Region,
        values: Values,
        seen: Inside | None,
        q: Tensor,
        d_out: Tensor | None,
        keys: Keys,
    ) -> tuple[Tensor | None, Tensor]:
        """The weight of d v and d score / factor, (b, h, i, j); tables get their part."""
        steps = self.steps
        if SCORE in steps.reads:
            values[SCORE] = scores(q, keys.k, region)
        if DP in steps.reads:
            assert d_out is not None
            assert keys.v is not None
            values[DP] = scores(d_out, keys.v, region)
        tables = self.inputs.tables
        found, looked = steps.made.both(values, tables, region, steps.language)
        made = [_whole(t, region, seen) for t in found]
        weight = made.pop(0) if steps.weighed else None
        d_score = made.pop(0)
        for (name, lookup), part in zip(steps.tables, made, strict=True):
            if name in self.given:
                lookup.scatter(self.totals[name], part, looked, region)
        return weight, d_score

    def add(
        self,
        region: Region,
        seen: Inside | None,
        weight: Tensor | None,
        d_score: Tensor,
        scaled: Tensor,
        d_out: Tensor | None,
        d_q: Tensor,
        keys: Keys,
        sums: Mapping[str, Tensor],
    ) -> None:
        """The matmuls of a tile, added to the totals."""
        start, count = region.starts[3], region.sizes[3]
        heads = scaled.shape[0]
        seeing = None if seen is None else seen.seeing_rows
        d_score = d_score.reshape(heads, -1, count)  # it lies as a table may
        if "q" in self.given and self.steps.scored:
            k = keys.k.narrow(1, start, count)
            d_q.baddbmm_(d_score, cleared(k, None if seen is None else seen.seen_keys))
        if "k" in sums and self.steps.scored:
            total = sums["k"].narrow(1, start, count)
            total.baddbmm_(d_score.transpose(1, 2), cleared(scaled, seeing))
        if "v" in sums and weight is not None and d_out is not None:
            total = sums["v"].narrow(1, start, count)
            by_head = weight.reshape(heads, -1, count)
            total.baddbmm_(by_head.transpose(1, 2), cleared(d_out, seeing))


def _whole(t: Tensor, region: Region, seen: Inside | None) -> Tensor:
    """The value of every pair of a tile, 0 where there is no element."""
    if seen is not None:
        return torch.where(seen.mask, t, 0.0)
    return t if t.shape == region.sizes else t.expand(region.sizes).contiguous()
