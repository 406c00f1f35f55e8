"""Any pair reduction in plain PyTorch, a tile of queries and keys at a time, on any device.

The algorithm of the printed kernels, with memory linear in the lengths: query blocks outside, key
blocks inside; a tile of scores is (batches * heads * queries, keys), and the state of its rows
moves from tile to tile as in `stages`. Tiles whose mask is nowhere true are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from fusedreduce.declare.record import Record
from fusedreduce.ir.check import kind_of
from fusedreduce.ir.expr import names, var
from fusedreduce.pair import SCORE, Pair, first_state
from fusedreduce.program import Stage
from fusedreduce.run.language import Function, Language, Values
from fusedreduce.run.merges import General, general
from fusedreduce.run.pair_formulas import Formulas, Region, formulas
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
from fusedreduce.run.stages import Corrected, Tile, corrected
from fusedreduce.run.tiles import identity
from fusedreduce.run.views import Box


def forward(
    pair: Pair, inputs: PairInputs, tile: tuple[int, int] | None = None
) -> dict[str, Tensor]:
    """The results of a pair by name: (B, H, Sq), vectors (B, H, Sq, DV); `tile` (queries, keys).

    A query that sees no key gets what the results say of the state of nothing.
    """
    made = inputs.empty(pair)
    with plainly(inputs.q.device):
        steps = _steps(pair, inputs.q.device)
        walk = Walk(pair, inputs, steps.language, tile)
        for heads in walk.heads:
            keys = Keys.loaded(walk, heads)
            for first, queries in walk.queries:
                state = _state(steps, walk, keys, heads, first, queries)
                _write(steps, walk.region(heads, (first, queries), (0, 0)), state, made)
    return made


# ---- a pair, compiled ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """A pair as functions of tiles."""

    pair: Pair
    language: Language
    record: Record
    body: Corrected | General
    operands: Formulas
    names: tuple[str, ...]  # of the operands that are needed
    mask: Formulas | None
    finish: Function
    first: Formulas | None  # the state of an element before the keys
    started: tuple[str, ...]  # what that makes
    scored: bool  # do they read the score?


@lru_cache(maxsize=256)
def _steps(pair: Pair, device: torch.device) -> Steps:
    language = Language(getattr(torch, pair.state), device)
    record = weighed(pair)
    own = tuple((n, var(n)) for n, _ in pair.operands)
    stage = Stage("state", record, own, 0)
    kinds = dict.fromkeys("bhij", "int")
    kinds |= {n: kind_of(e, pair.kinds) for n, e in pair.operands}
    body: Corrected | General
    if record.form == "corrected":
        body = corrected(stage, kinds, language, frozenset(f.name for f in pair.vectors))
    else:
        body = general(stage, kinds, language)
        body = body if pair.mask is None else replace(body, always=False)
    needed = tuple((n, e) for n, e in pair.operands if n in body.parameters)
    operands = formulas([e for _, e in needed], pair, {}, language, ["any"] * len(needed))
    fields = {f.name: f.result for f in record.fields} | {s.name: s.type for s in record.slots}
    exprs = [r.expr for r in pair.results]
    start = first_state(pair.record, dict(pair.first)) if pair.first else {}
    types = {f.name: f.type for f in record.fields} | {s.name: s.type for s in record.slots}
    first = formulas([*start.values()], pair, {}, language, [types[n] for n in start])
    return Steps(
        pair, language, record, body, operands, tuple(n for n, _ in needed),
        mask_of(pair, language), language.function(exprs, fields, ["any"] * len(exprs)),
        first if pair.first else None, tuple(start), any(SCORE in names(e) for _, e in needed),
    )  # fmt: skip


def weighed(pair: Pair) -> Record:
    """The record with weights for the terms of its vector fields.

    A weight that is the term of another sum needs the select of edge rule (a) when that one does.
    """
    record, guards = pair.record, pair.record.guards
    fields = []
    for f in record.fields:
        if f.name not in pair.weights:
            fields.append(f)
            continue
        weight = pair.weights[f.name]
        fields.append(replace(f, term=weight))
        twins = [g for g in record.fields if g.kind == "Sum" and g.term is weight]
        if guards is not None and any(not record.guarded(f"present:{g.name}") for g in twins):
            guards = guards - {f"present:{f.name}"}
    return replace(record, fields=tuple(fields), guards=guards)


# ---- a block of queries --------------------------------------------------------------------------


def _state(steps: Steps, walk: Walk, keys: Keys, heads: Box, first: int, queries: int) -> Values:
    """The state of some queries, one tile of keys after the other."""
    state = _first(steps, walk, walk.region(heads, (first, queries), (0, 1)))
    q: Tensor | None = None
    for start, count in walk.keys:
        region = walk.region(heads, (first, queries), (start, count))
        values = walk.values(region)
        seen = inside(steps.mask, walk, region, values)
        if seen is not None and seen.nothing:
            continue
        if steps.scored:
            q = walk.rows(walk.inputs.q, region) if q is None else q
            values[SCORE] = scores(q, keys.k, region)
        made = steps.operands(values, walk.inputs.tables, region, walk.language)
        flat = {n: _flat(values[n], region) for n in steps.body.parameters & set("bhij")}
        flat |= {n: _flat(t, region) for n, t in zip(steps.names, made, strict=True)}
        tile = Tile(start, count, _rows_of(seen, region), _payload(keys, seen, region))
        state = steps.body.step(tile, flat, state)
    return identity(steps.record, steps.body, walk.language) if state is None else state


def _first(steps: Steps, walk: Walk, region: Region) -> Values | None:
    """The state after the element before the keys; None where there is none."""
    if steps.first is None:
        return None
    made = steps.first(walk.values(region), walk.inputs.tables, region, walk.language)
    return {n: _flat(t, region) for n, t in zip(steps.started, made, strict=True)}


def _rows_of(seen: Inside | None, region: Region) -> Tensor | None:
    return None if seen is None else seen.mask.reshape(region.rows, region.sizes[3])


def _payload(keys: Keys, seen: Inside | None, region: Region) -> Callable[[Tensor], Tensor] | None:
    """The sum over the keys of a tile of weights (rows, keys) times the payload."""
    if keys.v is None:
        return None
    v = keys.v.narrow(1, region.starts[3], region.sizes[3])
    v = cleared(v, None if seen is None else seen.seen_keys)

    def weigh(weight: Tensor) -> Tensor:
        whole = weight.expand(region.rows, region.sizes[3])
        by_head = whole.reshape(v.shape[0], -1, region.sizes[3])
        return torch.bmm(by_head, v).view(region.rows, v.shape[2])

    return weigh


def _flat(t: Tensor, region: Region) -> Tensor:
    """(b, h, i, j) as (rows, keys), with 1 where it does not vary."""
    b, h, i, j = t.shape
    if b == h == i == 1:
        return t.view(1, j)
    return t.expand(*region.sizes[:3], j).reshape(region.rows, j)


def _write(steps: Steps, region: Region, state: Values, made: dict[str, Tensor]) -> None:
    for r, value in zip(steps.pair.results, steps.finish(state), strict=True):
        place = region.cut(made[r.name], 2)
        width = place.shape[3] if r.vector else 1
        place.copy_(value.expand(region.rows, width).reshape(place.shape))
