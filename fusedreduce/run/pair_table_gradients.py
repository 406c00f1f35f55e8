"""Gradients of tables from what printed kernels have summed up: added up where they were read.

A kernel sums g = d loss / d (a read) as far as the indices of the read do not tell pairs apart
(`TableSum`). The indices, evaluated at the positions that are left, say where each sum belongs; the
order of all additions is fixed. Tables that no kernel sums for come from the tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from fusedreduce.gradient.pair_tables import TableSum
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.pair import INDICES
from fusedreduce.run import pair_gradients
from fusedreduce.run.language import Language, Values
from fusedreduce.run.pair_formulas import Formulas, Lookup, Region, add_at, formulas
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_table_kernels import split
from fusedreduce.run.pair_walk import plainly

LARGEST = 2**23  # sums by pair that are dealt out by their indices; more are left to the tiles


def beside(
    b: PairBackward, direction: str, inputs: PairInputs
) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """What the kernel of d q, or of d k and d v, writes besides: (B, H, Sq) or (B, H, Sk)."""
    length = inputs.k.shape[2] if direction == "keys" else inputs.q.shape[2]
    like = torch.Size((*inputs.rows[:2], length)), getattr(torch, b.forward.state)
    return {s.name: like for s in b.table_sums if s.direction == direction}


def by_kernels(b: PairBackward, inputs: PairInputs) -> frozenset[str]:
    """The tables whose gradients come from kernels here; those of the others from the tiles."""
    every = {s.read.table for s in b.table_sums}
    return frozenset(every - {s.read.table for s in b.table_sums if too_large(s, inputs)})


def too_large(s: TableSum, inputs: PairInputs) -> bool:
    """Would sums by pair take more than the table does, and much?"""
    pairs = prod(split(s, inputs)[0]) * inputs.q.shape[2] * inputs.k.shape[2]
    return s.direction == "tables" and not s.plain and pairs > LARGEST


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
    printed = by_kernels(b, inputs)
    of: dict[str, list[TableSum]] = {}
    for s in b.table_sums:
        if s.read.table in printed.intersection(wanted):
            of.setdefault(s.read.table, []).append(s)
    with plainly(inputs.q.device):
        found = {n: total(b, inputs, of_table, sums) for n, of_table in of.items()}
        found = {n: t.to(inputs.tables[n].dtype) for n, t in found.items()}
    left = {r.table for r, _ in b.tables}.intersection(wanted) - printed
    if left:
        rest = b.of_tables(frozenset(left))
        found |= pair_gradients.backward(rest, inputs, vectors, rows, left)
    return found


def total(
    b: PairBackward, inputs: PairInputs, of: Sequence[TableSum], sums: Mapping[str, Tensor]
) -> Tensor:
    """The sums of every read of one table, where they belong; in the state's dtype."""
    table = inputs.tables[of[0].read.table]
    language = Language(getattr(torch, b.forward.state), table.device)
    made: Tensor | None = None
    for s in of:
        value, places = spread(s, inputs, sums[s.name])
        indices = indices_of(b, s, language)
        if len(of) == 1 and s.direction == "tables":
            made = laid_out(indices.lookups[-1], value, table)
        if made is None:
            made = torch.zeros(table.shape, dtype=language.state, device=table.device)
        elif len(of) == 1:
            return made
        add(made, indices, value, places, inputs, language)
    assert made is not None
    return made


# ---- what a kernel wrote, as a value of every place that is left ---------------------------------


def spread(s: TableSum, inputs: PairInputs, found: Tensor) -> tuple[Tensor, Values]:
    """(b, h, i, j) with size 1 where it was summed; i and j where they are not all in a row."""
    if s.direction == "keys":
        return found[:, :, None], {}
    if s.direction == "queries":
        return found[..., None], {}
    found = found.sum(1) if found.shape[1] > 1 else found[:, 0]
    sizes = dict(zip("bh", inputs.rows[:2], strict=True))
    outer = [n if d in s.kept else 1 for d, n in sizes.items()]
    if s.direction == "tables":
        return found.view(*outer, *found.shape[1:]), {}
    Sq, Sk = inputs.q.shape[2], inputs.k.shape[2]
    distance = torch.arange(1 - Sk, Sq, device=found.device)[:, None]
    places = {"i": distance.clamp(min=0), "j": (-distance).clamp(min=0)}
    value = by_distance(found, Sq, Sk).view(*outer, -1, 1)
    return value, {n: t[None, None] for n, t in places.items()}


def by_distance(found: Tensor, Sq: int, Sk: int) -> Tensor:
    """(..., diagonals, block, block) of sums as (..., Sq + Sk - 1): of i - j from 1 - Sk on.

    >>> by_distance(torch.tensor([[[0, 0], [1, 0]], [[4, 2], [8, 4]]]), 2, 3)
    tensor([0, 3, 8, 8])
    """
    block, columns = found.shape[-1], -(-Sk // found.shape[-1])
    skewed = pad(found.flip(-1), (0, block)).flatten(-2)[..., : block * (2 * block - 1)]
    skewed = skewed.reshape(*found.shape[:-2], block, 2 * block - 1)
    sums = skewed.sum(-2)  # of each i - j from 1 - block on
    low, high = sums[..., :block], pad(sums[..., block:], (0, 1))
    joined = pad(low, (0, 0, 0, 1)) + pad(high, (0, 0, 1, 0))
    first = columns * block - Sk  # distances below 1 - Sk exist in a block that is cut off
    return joined.flatten(-2)[..., first : first + Sq + Sk - 1]


def laid_out(read: Lookup, value: Tensor, table: Tensor) -> Tensor | None:
    """The sums as they are, where every element of the table was read at one place of its own."""
    if read.axes is None:
        return None
    dims = [INDICES.index(a) for a in read.axes if isinstance(a, str)]
    others = [d for d in range(4) if d not in dims]
    found = value.permute(*dims, *others).flatten(len(dims) - 1)  # the others have size 1
    for dim, axis in enumerate(read.axes):
        found = found if isinstance(axis, str) else found.unsqueeze(dim)
    return found if found.shape == table.shape else None


# ---- where it belongs ----------------------------------------------------------------------------


def add(
    made: Tensor, indices: Formulas, value: Tensor, places: Values, inputs: PairInputs,
    language: Language,
) -> None:  # fmt: skip
    """Add a value to the elements of a table that were read."""
    *inner, read = indices.lookups
    region = Region((0, 0, 0, 0), (*value.shape,))
    if read.axes is not None:
        read.scatter(made, value, {}, region)
        return
    values = variables(indices, inputs, language, region) | places
    for lookup in inner:
        at = lookup.at(values)
        values[lookup.name] = language.load(element(inputs.tables[lookup.table], at))
    add_at(made, read.at(values), value)


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
