"""Positions along one side of the map, in blocks: what they hold pooled to (least, largest)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: How many pieces a block is cut into where rows of a `%` end inside of it.
_PIECES = 3


@dataclass(frozen=True, eq=False)
class Axis:
    """`length` positions in blocks of `size`; each block in as many parts as `pieces` numbers.

    dim      the dimension of (B, H, Sq, Sk) that it is: 2 or 3
    pieces   (count * size,) integers from 0 to 2, None for blocks that are not cut
    """

    dim: int
    length: int
    size: int
    device: torch.device
    pieces: Tensor | None = None

    @property
    def count(self) -> int:
        return -(-self.length // self.size)

    @property
    def parts(self) -> int:
        return 1 if self.pieces is None else _PIECES

    def positions(self) -> Tensor:
        """Whole blocks of positions, those after the last one standing for the last."""
        every = torch.arange(self.count * self.size, device=self.device)
        return every.clamp_(max=max(self.length - 1, 0))

    def blocks(self, values: Tensor) -> Tensor:
        """Values at positions along `dim`, with blocks in `dim` and their positions after it."""
        shape, d = values.shape, self.dim
        return values.reshape(*shape[:d], self.count, self.size, *shape[d + 1 :])

    def pool(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(least, largest) of every part of a block; of an empty part, the wrong way round."""
        blocks, d = self.blocks(values), self.dim + 1
        if self.pieces is None:
            return blocks.amin(d), blocks.amax(d)
        piece = self.pieces.reshape(self.count, self.size, *(1,) * (values.ndim - d))
        dtype = values.dtype
        limit = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        least, largest = [], []
        for p in range(_PIECES):
            least.append(torch.where(piece == p, blocks, limit.max).amin(d))
            largest.append(torch.where(piece == p, blocks, limit.min).amax(d))
        return torch.stack(least, d).flatten(d - 1, d), torch.stack(largest, d).flatten(d - 1, d)

    def present(self) -> Tensor:
        """(count, parts): which parts hold a position."""
        if self.pieces is None:
            return torch.ones((self.count, 1), dtype=torch.bool, device=self.device)
        piece = self.pieces.reshape(self.count, self.size, 1)
        return (piece == torch.arange(_PIECES, device=self.device)).any(1)

    def cut(self, values: Tensor, period: int) -> Axis:
        """The same axis, its blocks cut where a row of `values` ends, `period` long.

        A block is then a row or the end of one, whole rows, and a row or the start of one: in each,
        the row (values // period) and the column (values % period) range independently.
        """
        blocks = values.reshape(self.count, self.size)
        row = torch.div(blocks, period, rounding_mode="floor")
        pieces = torch.where(row == row[:, :1], 0, torch.where(row == row[:, -1:], 2, 1))
        return replace(self, pieces=pieces.flatten())
