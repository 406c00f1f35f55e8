"""Expressions over scores, indices and tables as tensors (batches, heads, queries, keys).

A value has size 1 along what it does not vary with. Tables are read by their indices: as a view
where these are b, h, i, j themselves, else element by element; out of range is torch's IndexError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fusedreduce.ir.expr import Expr, make, var, walk
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import INDICES, Pair, Read
from fusedreduce.run.language import Function, Language, Values
from fusedreduce.run.pair_inputs import PairInputs


@dataclass(frozen=True)
class Region:
    """A box of a pair: where it starts and how far it goes along b, h, i and j."""

    starts: tuple[int, int, int, int]
    sizes: tuple[int, int, int, int]

    @property
    def rows(self) -> int:
        """How many queries, over batches and heads."""
        return prod(self.sizes[:3])

    def cut(self, t: Tensor, last: int) -> Tensor:
        """The part of a tensor (B, H or Hk, length): `last` 2 is along queries, 3 along keys."""
        for dim, axis in enumerate((0, 1, last)):
            t = t.narrow(dim, self.starts[axis], self.sizes[axis])
        return t

    def index(self, axis: int, device: torch.device) -> Tensor:
        start, size = self.starts[axis], self.sizes[axis]
        shape = [size if k == axis else 1 for k in range(4)]
        return torch.arange(start, start + size, device=device).reshape(shape)

    def indices(self, device: torch.device) -> Values:
        return {name: self.index(axis, device) for axis, name in enumerate(INDICES)}


def constants(pair: Pair, inputs: PairInputs, language: Language) -> Values:
    """Numbers, lengths, and how the tables lie."""
    found = {n: language.full(inputs.numbers[n], "float") for n in pair.numbers}
    integers = {**inputs.sizes(), **inputs.integers()}
    return found | {n: language.full(v, "int") for n, v in integers.items()}


@dataclass(frozen=True)
class Lookup:
    """One read: its name among the values, its table, and the index of each dimension.

    axes   the indices, where each is one of b, h, i, j of its own or a number
    """

    name: str
    table: str
    axes: tuple[str | int, ...] | None
    indices: Function

    def __call__(self, table: Tensor, values: Values, region: Region) -> Tensor:
        if self.axes is not None:
            return self.view(table, region)
        return table[self.at(values)]

    def at(self, values: Values) -> tuple[Tensor, ...]:
        """The index of each dimension, with four dimensions."""
        found = self.indices(values)
        return tuple(t if t.ndim == 4 else t.reshape(1, 1, 1, 1) for t in found)

    def view(self, table: Tensor, region: Region) -> Tensor:
        assert self.axes is not None
        for dim in reversed(range(table.ndim)):
            axis = self.axes[dim]
            if isinstance(axis, int):
                table = table.select(dim, axis)
                continue
            start, size = (t[INDICES.index(axis)] for t in (region.starts, region.sizes))
            if start + size > table.shape[dim]:
                raise IndexError(
                    f"index {start + size - 1} is out of bounds for dimension {dim} of table "
                    f"{self.table} with size {table.shape[dim]}"
                )
            table = table.narrow(dim, start, size)
        letters = [a for a in self.axes if isinstance(a, str)]
        order = sorted(range(len(letters)), key=lambda k: INDICES.index(letters[k]))
        return table.permute(order)[tuple(slice(None) if n in letters else None for n in INDICES)]

    def scatter(self, total: Tensor, value: Tensor, values: Values, region: Region) -> None:
        """Add the values (b, h, i, j) to the elements of `total` that were read for them."""
        if self.axes is not None:
            place = self.view(total, region)
            place.add_(_summed(value, place.shape))
            return
        add_at(total, self.at(values), value)


def add_at(total: Tensor, at: Sequence[Tensor], value: Tensor) -> None:
    """Add the values (b, h, i, j) to the elements of `total` at these indices of its dimensions.

    What lies beyond the tensor is dropped, as printed kernels read 0 there.
    """
    shape = torch.broadcast_shapes(*(t.shape for t in at))  # type: ignore[no-untyped-call]
    device = value.device
    flat = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=device)
    exists = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
    for index, size in zip(at, total.shape, strict=True):
        index = torch.where(index < 0, index + size, index)
        exists = exists & (index >= 0) & (index < size)
        flat = flat * size + index
    part = torch.where(exists, _summed(value, shape), 0.0).reshape(-1)
    where = torch.where(exists, flat, 0).expand(shape).reshape(-1)
    if total.is_cuda:  # NOTE: index_add_ adds in any order there; this one sorts first
        total.view(-1).index_put_((where,), part, accumulate=True)
    else:
        total.view(-1).index_add_(0, where, part)


def _summed(value: Tensor, shape: Sequence[int]) -> Tensor:
    """The sum over the dimensions along which `shape` has size 1."""
    dims = [k for k, (n, m) in enumerate(zip(value.shape, shape, strict=True)) if n != m]
    return value.sum(dims, keepdim=True) if dims else value


@dataclass(frozen=True)
class Formulas:
    """Several expressions: the reads they need, in an order in which they can be done."""

    lookups: tuple[Lookup, ...]
    nodes: tuple[Expr, ...]  # of the lookups
    function: Function

    def __call__(
        self, values: Values, tables: Mapping[str, Tensor], region: Region, language: Language
    ) -> list[Tensor]:
        """The values, each with four dimensions."""
        return self.both(values, tables, region, language)[0]

    def both(
        self, values: Values, tables: Mapping[str, Tensor], region: Region, language: Language
    ) -> tuple[list[Tensor], Values]:
        """The values; and all that they were made of, reads by the names of the lookups."""
        values = dict(values)
        for k in self.lookups:
            values[k.name] = language.load(k(tables[k.table], values, region))
        made = self.function(values)
        return [t if t.ndim == 4 else t.reshape(1, 1, 1, 1) for t in made], values


def formulas(
    exprs: Sequence[Expr],
    pair: Pair,
    rows: Mapping[str, str],
    language: Language,
    types: Sequence[str],
    also: Sequence[Read] = (),
) -> Formulas:
    """Expressions over the variables of a pair and row values of these kinds.

    also   reads whose `Lookup` is wanted though no expression needs them
    """
    known = {simplify(r.node): r for r in pair.reads} | {r.node: r for r in pair.reads}
    nodes = [n for n in walk(*exprs, *(r.node for r in also)) if n.op == "read"]
    names = {node: f"@read{k}" for k, node in enumerate(nodes)}
    kinds = {**pair.kinds, **rows}
    kinds |= {name: pair.kinds[known[node].table] for node, name in names.items()}
    lookups = []
    for node, name in names.items():
        indices = known[node].indices
        function = language.function(_opened(indices, names), kinds, ["int"] * len(indices))
        lookups.append(Lookup(name, known[node].table, _axes(indices), function))
    function = language.function(_opened(exprs, names), kinds, types)
    return Formulas(tuple(lookups), tuple(names), function)


def _axes(indices: Sequence[Expr]) -> tuple[str | int, ...] | None:
    found: list[str | int] = []
    for e in indices:
        if e.op == "var" and e.value in INDICES and e.value not in found:
            found.append(str(e.value))
        elif e.op == "const" and isinstance(e.value, int):
            found.append(e.value)
        else:
            return None
    return tuple(found)


def _opened(exprs: Sequence[Expr], names: Mapping[Expr, str]) -> list[Expr]:
    """The expressions with every read by its name."""
    done: dict[Expr, Expr] = {}
    for node in walk(*exprs):
        args = tuple(done[a] for a in node.args)
        done[node] = var(names[node]) if node in names else make(node.op, args, node.value)
    return [done[e] for e in exprs]
