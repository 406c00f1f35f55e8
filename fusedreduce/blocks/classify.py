"""The block map of a mask: 0 skip, 1 partial, 2 full, by interval arithmetic over blocks.

Parts of the mask that need one index (i, or j, with b and h) are computed exactly at each position
and pooled to (least, largest) per block; intervals are used only where i meets j. So memory is
linear in positions and blocks, never Sq x Sk, and nothing waits for the device. A block is called
skip or full only if it certainly is; where that is not found out, it is partial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.blocks import spans
from fusedreduce.blocks.axis import Axis
from fusedreduce.blocks.bound import Bound, check_sizes, value
from fusedreduce.blocks.spans import Span
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.check import all_kinds, promote
from fusedreduce.ir.dependence import depends
from fusedreduce.ir.expr import Expr, walk
from fusedreduce.ir.grouping import RESTS, grouped

_INDICES = ("b", "h", "i", "j")


def classify(bound: Bound, B: int, H: int, Sq: int, Sk: int, BQ: int, BK: int) -> Tensor:
    """The block map of a bound mask: (B or 1, H or 1, ceil(Sq / BQ), ceil(Sk / BK)), int8.

    0   skip: no query of the block sees any key of the block
    1   partial: some may
    2   full: each query sees every key. Blocks at the ends count positions that exist only

    The first two sizes are 1 where the mask does not depend on b or h. All on bound.device.

    >>> from fusedreduce.masks import causal
    >>> classify(causal.bind(200, 200, torch.device("cpu")), 2, 8, 200, 200, 64, 128)[0, 0]
    tensor([[1, 0],
            [1, 0],
            [2, 1],
            [2, 1]], dtype=torch.int8)
    """
    check_sizes(bound, {"b": B, "h": H, "i": Sq, "j": Sk})
    facts = _analysed(bound.expr, tuple(bound.kinds.items()))
    axes = {"i": Axis(2, Sq, BQ, bound.device), "j": Axis(3, Sk, BK, bound.device)}
    outer = tuple(n if name in facts.needs[facts.root] else 1 for name, n in (("b", B), ("h", H)))
    shape = (*outer, axes["i"].count, axes["j"].count)
    if 0 in shape:
        return torch.zeros(shape, dtype=torch.int8, device=bound.device)
    blocks = _Blocks(bound, facts, {"b": B, "h": H}, axes).cut()
    return _mapped(blocks.of(facts.root), blocks.axes, shape)


@dataclass(frozen=True, eq=False)
class _Facts:
    """What does not depend on values: kinds, indices needed, each `x % period`, in order.

    `uses` counts for each node the nodes above it in which i and j meet.
    """

    root: Expr
    kinds: Mapping[Expr, str]
    needs: Mapping[Expr, frozenset[str]]
    periods: tuple[tuple[Expr, int], ...]
    uses: Mapping[Expr, int]


@lru_cache(maxsize=256)
def _analysed(expr: Expr, kinds: tuple[tuple[str, str], ...]) -> _Facts:
    root = grouped(promote(expr, dict(kinds)), dict(kinds))
    periods = [
        (node.args[0], node.args[1].value)
        for node in walk(root)
        if node.op == "mod" and isinstance(node.args[1].value, int)
    ]
    needs = depends(root, on={name: frozenset((name,)) for name in _INDICES})
    meeting = (n for n in walk(root) if {"i", "j"} <= needs[n] and n.op != "read")
    uses = Counter(a for n in meeting for a in set(n.args))
    return _Facts(root, all_kinds(root, dict(kinds)), needs, tuple(periods), uses)


def _mapped(found: Span, axes: Mapping[str, Axis], shape: tuple[int, ...]) -> Tensor:
    """The parts of blocks joined: possible in one of them, certain in all."""
    rows, keys = axes["i"], axes["j"]
    cut = (*shape[:2], rows.count, rows.parts, keys.count, keys.parts)
    fine = (*shape[:2], rows.count * rows.parts, keys.count * keys.parts)
    there = rows.present()[:, :, None, None] & keys.present()
    possible = (found.hi.expand(fine).reshape(cut) & there).any(5).any(3)
    certain = (found.lo.expand(fine).reshape(cut) | ~there).all(5).all(3)
    return possible.to(torch.int8) + certain.to(torch.int8)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Spans of subexpressions, of shapes (B or 1, H or 1, blocks of i or 1, blocks of j or 1)."""

    bound: Bound
    facts: _Facts
    outer: Mapping[str, int]
    axes: Mapping[str, Axis]
    done: dict[Expr, Span] = field(default_factory=dict)
    left: Counter[Expr] = field(default_factory=Counter)

    @property
    def kinds(self) -> Mapping[Expr, str]:
        return self.facts.kinds

    @property
    def needs(self) -> Mapping[Expr, frozenset[str]]:
        return self.facts.needs

    @cached_property
    def values(self) -> dict[str, Any]:
        """What the names of the expression stand for, each index along a dimension of its own."""
        device = self.bound.device
        at = {name: torch.arange(n, device=device) for name, n in self.outer.items()}
        at |= {name: axis.positions() for name, axis in self.axes.items()}
        spread = {n: at[n].reshape([-1 if d == k else 1 for d in range(4)])
                  for k, n in enumerate(_INDICES)}  # fmt: skip
        return {**spread, **self.bound.numbers, **self.bound.tables, **self.bound.measures}

    def at_positions(self, node: Expr) -> Tensor:
        """A subexpression of one index at every position: (B or 1, H or 1, Sq or 1, Sk or 1)."""
        found = value(node, self.values, self.bound.device, self.bound.state)
        return found.reshape((1,) * (4 - found.ndim) + tuple(found.shape))

    def cut(self) -> _Blocks:
        """Blocks cut where a row of `i % width` ends, for the first such in the mask."""
        axes = dict(self.axes)
        for x, period in self.facts.periods:
            index = next(iter(self.needs[x])) if len(self.needs[x]) == 1 else ""
            if self.kinds[x] != "int" or period < 1 or index not in axes or axes[index].parts > 1:
                continue
            size = axes[index].size
            if x.op != "var" or (size % period and period % size):
                axes[index] = axes[index].cut(self.at_positions(x).flatten(), period)
        return replace(self, axes=axes, done={}, left=Counter())

    def of(self, node: Expr) -> Span:
        """The span of a node; made of those below it only where i and j meet."""
        if node not in self.done:
            meet = {"i", "j"} <= self.needs[node]
            self.done[node] = self.met(node) if meet else self.pooled(node)
        return self.done[node]

    def pooled(self, node: Expr) -> Span:
        """A subexpression of one index, exactly: (least, largest) of each block."""
        found = _numbers(self.at_positions(node))
        for index, axis in self.axes.items():
            if index in self.needs[node]:
                return self._named(*axis.pool(found), node)
        return self._named(found, found, node)

    def _named(self, lo: Tensor, hi: Tensor, node: Expr) -> Span:
        kind = self.kinds[node]
        if kind == "bool":
            return Span.truth(lo.bool(), hi.bool())
        return Span(lo.double(), hi.double(), kind) if kind == "float" else Span(lo, hi, kind)

    def met(self, node: Expr) -> Span:
        """A node in which i and j meet."""
        if node.op == "read":
            return self.read(node)
        args = [self.of(a) for a in node.args]
        for a in set(node.args):  # what nobody needs any more is let go
            self.left[a] += 1
            if self.left[a] == self.facts.uses[a]:
                del self.done[a]
        if node.op == "cast":
            return spans.converted(args[0], str(node.value))
        if node.op not in spans.RULES:
            return spans.anything(torch.zeros((1,) * 4, device=self.bound.device), self.kinds[node])
        made = spans.RULES[node.op](*args)
        if node.op in ("eq", "ne") and self._separate(node):
            apart = ~self._rests_meet(*node.args)
            yes, no = (made.lo, made.hi & ~apart), (made.lo | apart, made.hi)
            return Span.truth(*(yes if node.op == "eq" else no))
        return made

    def _separate(self, node: Expr) -> bool:
        """One side needs i, the other j, both are integers."""
        sides = [self.needs[a] & {"i", "j"} for a in node.args]
        whole = all(self.kinds[a] != "float" for a in node.args)
        return whole and len(sides[0]) == len(sides[1]) == 1

    def _rests_meet(self, a: Expr, b: Expr) -> Tensor:
        """Whether some value of a and some of b leave the same rest: exact for few documents."""
        if "j" in self.needs[a]:
            a, b = b, a
        rows, keys = (self._rests(e, self.axes[name]) for e, name in ((a, "i"), (b, "j")))
        return rows @ keys.transpose(-1, -2) > 0

    def _rests(self, node: Expr, axis: Axis) -> Tensor:
        """(B, H, blocks, RESTS): 1 where a value of the block leaves that rest."""
        found = (self.at_positions(node).long() % RESTS).flatten(2)
        found = found.reshape(*found.shape[:2], axis.count, axis.size)
        empty = torch.zeros((*found.shape[:3], RESTS), device=self.bound.device)
        return empty.scatter_(-1, found, 1.0).repeat_interleave(axis.parts, 2)

    def read(self, node: Expr) -> Span:
        """An element at (..., f(i), g(j)), pooled per block; else what the whole table spans."""
        name, indices = ir_tables.split(node)
        table = _numbers(self.bound.tables[name])
        needs = {dim: self.needs[e] for dim, e in indices.items()}
        rows = [d for d, n in needs.items() if n == {"i"}]
        keys = [d for d, n in needs.items() if n == {"j"}]
        others = [n for d, n in needs.items() if d not in (*rows, *keys)]
        if len(rows) == len(keys) == 1 and all(not n & {"i", "j"} for n in others):
            return self._named(*self._by_blocks(table, indices, rows[0], keys[0]), node)
        flat = table.reshape(1, 1, 1, -1)
        return self._named(flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True), node)

    def _by_blocks(
        self, table: Tensor, indices: Mapping[int, Expr], row: int, key: int
    ) -> tuple[Tensor, Tensor]:
        """First along keys, then along queries: what lies between is (rows of the table, nk)."""
        outer = [d for d in range(table.ndim) if d not in (row, key)]
        at = [self.at_positions(indices[d])[..., 0, 0] if d in indices else 0 for d in outer]
        chosen = table.permute(*outer, row, key)
        chosen = chosen[tuple(at)] if at else chosen
        chosen = chosen.reshape((1,) * (4 - chosen.ndim) + tuple(chosen.shape))
        spread = self._along(chosen, self.axes["j"], indices[key])
        lo, hi = self.axes["j"].pool(spread)
        rows = self.axes["i"]
        return (
            rows.pool(self._along(lo, rows, indices[row]))[0],
            rows.pool(self._along(hi, rows, indices[row]))[1],
        )

    def _along(self, table: Tensor, axis: Axis, index: Expr) -> Tensor:
        """table with its dimension `axis.dim` at the index of every position."""
        positions = self.at_positions(index).flatten()
        wrapped = torch.where(positions < 0, positions + table.shape[axis.dim], positions)
        return table.index_select(axis.dim, wrapped)


_UNSORTED = (torch.uint16, torch.uint32)  # torch finds no least and largest of these


def _numbers(values: Tensor) -> Tensor:
    if values.dtype == torch.bool:
        return values.to(torch.uint8)
    return values.long() if values.dtype in _UNSORTED else values
