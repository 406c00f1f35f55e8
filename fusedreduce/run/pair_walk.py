"""How a pair is cut into tiles of queries and keys, and what one holds: vectors, mask, scores."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from fusedreduce.pair import Pair
from fusedreduce.run.language import Language, Values
from fusedreduce.run.pair_formulas import Formulas, Region, constants, formulas
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.tiles import keep_memory
from fusedreduce.run.views import Box, boxes

ELEMENTS = 2**19  # scores of a tile: its few temporaries stay in the last-level cache
ONE_HEAD = 2**16  # of these, for one head
QUERIES = 256  # of one head, where there are so many


def plainly(device: torch.device) -> AbstractContextManager[object]:
    """Nothing recorded, nothing cast, and memory of earlier tiles used again."""
    keep_memory(device)
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    if torch.amp.is_autocast_available(device.type):
        stack.enter_context(torch.autocast(device.type, enabled=False))
    return stack


# ---- where the tiles lie -------------------------------------------------------------------------


class Walk:
    """How a pair is cut: boxes over (batch, head of k), ranges of queries and of keys."""

    def __init__(
        self, pair: Pair, inputs: PairInputs, language: Language, tile: tuple[int, int] | None
    ) -> None:
        self.inputs, self.language = inputs, language
        self.fixed = constants(pair, inputs, language)
        (B, H, Sq), (Hk, Sk) = inputs.rows, inputs.k.shape[1:3]
        self.group = inputs.group
        heads = B * Hk if H else 0
        queries, keys = tile or chosen_tile(Sq, Sk, self.group)
        room = max(1, ELEMENTS // max(1, self.group * queries * keys))
        self.heads = boxes((B, Hk), room) if heads else []
        self.queries = _ranges(Sq, queries)
        self.keys = _ranges(Sk, keys)

    def region(self, heads: Box, queries: tuple[int, int], keys: tuple[int, int]) -> Region:
        """A tile in b, h, i, j: all heads of q that share those of k."""
        (b, k), (bs, ks) = heads.starts, heads.sizes
        return Region(
            (b, k * self.group, queries[0], keys[0]), (bs, ks * self.group, queries[1], keys[1])
        )

    def values(self, region: Region) -> Values:
        """What every expression may read but the score."""
        return self.fixed | region.indices(self.inputs.q.device)

    def rows(self, t: Tensor, region: Region) -> Tensor:
        """The region's queries of a tensor (B, H, Sq, D) as (heads of k, group * queries, D)."""
        part = region.cut(t, 2).to(self.language.state)
        heads = region.sizes[0] * region.sizes[1] // self.group
        return part.reshape(heads, self.group * region.sizes[2], t.shape[3])


def chosen_tile(Sq: int, Sk: int, group: int) -> tuple[int, int]:
    """(queries, keys). How the keys are cut does not depend on batch or heads: bits repeat."""
    keys = min(Sk, ONE_HEAD // max(1, min(Sq, QUERIES)))
    return min(Sq, QUERIES, max(1, ELEMENTS // max(1, group * keys))), keys


def _ranges(size: int, step: int) -> list[tuple[int, int]]:
    """(start, length) of consecutive parts."""
    return [(k, min(step, size - k)) for k in range(0, size, max(step, 1))]


@dataclass(frozen=True)
class Keys:
    """The keys and payload of some heads in the state's dtype: (heads of k, Sk, D or DV)."""

    k: Tensor
    v: Tensor | None

    @classmethod
    def loaded(cls, walk: Walk, heads: Box) -> Keys:
        def load(t: Tensor) -> Tensor:
            for dim in range(2):
                t = t.narrow(dim, heads.starts[dim], heads.sizes[dim])
            return t.to(walk.language.state).reshape(heads.count, *t.shape[2:])

        v = walk.inputs.v
        return cls(load(walk.inputs.k), None if v is None else load(v))


def mask_of(pair: Pair, language: Language) -> Formulas | None:
    return None if pair.mask is None else formulas([pair.mask], pair, {}, language, ["bool"])


@dataclass(frozen=True)
class Inside:
    """Which pairs of a tile count.

    small   the mask, with size 1 along what it does not vary with
    mask    the same as (b, h, i, j)
    """

    small: Tensor
    mask: Tensor
    group: int

    @property
    def nothing(self) -> bool:
        return not bool(self.small.any())

    @property
    def seen_keys(self) -> Tensor | None:
        """(heads of k, keys, 1): the keys that some query sees; None: all."""
        seen = self.small.any(2, keepdim=True)
        if bool(seen.all()):
            return None
        b, h, _, n = self.mask.shape
        seen = seen.expand(b, h, 1, n).reshape(-1, self.group, n).any(1)
        return seen[..., None]

    @property
    def seeing_rows(self) -> Tensor | None:
        """(heads of k, group * queries, 1): the queries that see some key; None: all."""
        seen = self.small.any(3, keepdim=True)
        if bool(seen.all()):
            return None
        b, h, n, _ = self.mask.shape
        return seen.expand(b, h, n, 1).reshape(-1, self.group * n, 1)


def inside(mask: Formulas | None, walk: Walk, region: Region, values: Values) -> Inside | None:
    """None where every pair of the tile counts."""
    if mask is None:
        return None
    (found,) = mask(values, walk.inputs.tables, region, walk.language)
    return None if bool(found.all()) else Inside(found, found.expand(region.sizes), walk.group)


def cleared(t: Tensor, seen: Tensor | None) -> Tensor:
    """0 for vectors that nobody sees: what they hold may be NaN, and 0 * NaN is."""
    return t if seen is None else torch.where(seen, t, 0.0)


def scores(q: Tensor, k: Tensor, region: Region) -> Tensor:
    """q . k of a tile: (b, h, i, j)."""
    part = k.narrow(1, region.starts[3], region.sizes[3])
    return torch.bmm(q, part.transpose(1, 2)).view(region.sizes)
