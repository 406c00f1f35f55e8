"""Gradients of tables from what printed kernels have summed up: added up where they were read.

A kernel sums g = d loss / d (a read) over the queries of each key, or over the keys of each query
(`TableSum`). The indices of the read, evaluated at those positions, say where each sum belongs; the
order of all additions is fixed. Tables that no kernel sums for come from the tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fusedreduce.gradient.pair_tables import TableSum
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.pair import INDICES
from fusedreduce.run import pair_gradients
from fusedreduce.run.language import Language, Values
from fusedreduce.run.pair_formulas import Formulas, Region, add_at, formulas
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_walk import plainly


def memory(b: PairBackward, direction: str, inputs: PairInputs) -> dict[str, Tensor]:
    """What the kernel of a direction writes: (B, H, Sk) or (B, H, Sq), in the state's dtype."""
    length = inputs.k.shape[2] if direction == "keys" else inputs.q.shape[2]
    shape = (*inputs.rows[:2], length)
    dtype = getattr(torch, b.forward.state)
    return {s.name: torch.empty(shape, dtype=dtype, device=inputs.q.device)
            for s in b.table_sums if s.direction == direction}  # fmt: skip


def gradients(
    b: PairBackward,
    inputs: PairInputs,
    vectors: Mapping[str, Tensor | None],
    rows: Mapping[str, Tensor],
    sums: Mapping[str, Tensor],
    wanted: Sequence[str],
) -> dict[str, Tensor]:
    """The gradients of the tables in `wanted`.

    sums   by name, as the kernels wrote them
    """
    state = getattr(torch, b.forward.state)
    totals: dict[str, Tensor] = {}
    with plainly(inputs.q.device):
        for s in b.table_sums:
            table = s.read.table
            if table in wanted:
                zeros = torch.zeros(inputs.tables[table].shape, dtype=state, device=inputs.q.device)
                add(totals.setdefault(table, zeros), s, b, inputs, sums[s.name])
    found = {n: t.to(inputs.tables[n].dtype) for n, t in totals.items()}
    left = {r.table for r, _ in b.in_tiles.tables} & {*wanted}
    if left:
        found |= pair_gradients.backward(b.in_tiles, inputs, vectors, rows, left)
    return found


def add(total: Tensor, s: TableSum, b: PairBackward, inputs: PairInputs, found: Tensor) -> None:
    """Add the sums (B, H, length) to the elements of a table that were read."""
    keys = s.direction == "keys"
    value = found[:, :, None] if keys else found[..., None]
    region = Region((0, 0, 0, 0), (*value.shape,))
    language = Language(total.dtype, total.device)
    made = indices_of(b, s, language)
    *inner, read = made.lookups
    if read.axes is not None:
        read.scatter(total, value, {}, region)
        return
    values = variables(made, inputs, language, region)
    for lookup in inner:
        at = lookup.at(values)
        values[lookup.name] = language.load(element(inputs.tables[lookup.table], at))
    add_at(total, read.at(values), value)


@lru_cache(maxsize=256)
def indices_of(b: PairBackward, s: TableSum, language: Language) -> Formulas:
    """The read as the last of the lookups, after those that its indices need."""
    return formulas([], b.forward, {}, language, [], (s.read,))


def variables(made: Formulas, inputs: PairInputs, language: Language, region: Region) -> Values:
    """What the indices name, but for reads: positions, lengths, numbers, how tables lie."""
    integers, found = inputs.sizes() | inputs.integers(), {}
    for n in dict.fromkeys(p for lookup in made.lookups for p in lookup.indices.parameters):
        if n in INDICES:
            found[n] = region.index(INDICES.index(n), language.device)
        elif n in integers:
            found[n] = language.full(integers[n], "int")
        elif n in inputs.numbers:
            found[n] = language.full(inputs.numbers[n], "float")
    return found


def element(table: Tensor, at: Sequence[Tensor]) -> Tensor:
    """table[at], 0 beyond the table, as printed kernels read."""
    exists = torch.ones((), dtype=torch.bool, device=table.device)
    for index, size in zip(at, table.shape, strict=True):
        exists = exists & (index >= 0) & (index < size)
    clamped = tuple(i.clamp(0, n - 1) for i, n in zip(at, table.shape, strict=True))
    return torch.where(exists, table[clamped], 0)
