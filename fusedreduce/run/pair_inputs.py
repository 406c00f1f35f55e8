"""What a pair reduction is run on: queries, keys, payload, tables, numbers; and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from fusedreduce.pair import Pair

NO_TABLES: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(slots=True)  # frozen, it takes 2 us to make
class PairInputs:
    """q (B, H, Sq, D), k (B, Hk, Sk, D), v (B, Hk, Sk, DV) or None; H is a multiple of Hk.

    tables   by the names they have in the pair, any strides
    """

    q: Tensor
    k: Tensor
    v: Tensor | None
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    q_offset: int = 0
    k_offset: int = 0

    @property
    def group(self) -> int:
        """How many heads of q share one of k."""
        return self.q.shape[1] // max(self.k.shape[1], 1)

    @property
    def rows(self) -> tuple[int, int, int]:
        """(B, H, Sq): the shape of a row value."""
        return (*self.q.shape[:3],)

    def sizes(self) -> dict[str, int]:
        """The run-time integers that operands and mask may read."""
        return {"Sq": self.q.shape[2], "Sk": self.k.shape[2], **self.offsets}

    @property
    def offsets(self) -> dict[str, int]:
        return {"q_offset": self.q_offset, "k_offset": self.k_offset}

    def integers(self) -> dict[str, int]:
        """How the tables lie: strides and sizes by name."""
        found: dict[str, int] = {}
        for name, t in self.tables.items():
            found |= {f"{name}_stride_{k}": s for k, s in enumerate(t.stride())}
            found |= {f"{name}_size_{k}": n for k, n in enumerate(t.shape)}
        return found

    def shapes(self, pair: Pair, splits: int = 1) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of the results of a pair; those of several splits side by side."""
        rows = torch.Size((*self.q.shape[:3], *[splits] * (splits > 1)))
        wide = torch.Size((*rows, pair.DV))
        return {r.name: (wide if r.vector else rows, getattr(torch, r.dtype)) for r in pair.results}

    def empty(self, pair: Pair) -> dict[str, Tensor]:
        """Memory for the results of a pair."""
        return {n: torch.empty(shape, dtype=dtype, device=self.q.device)
                for n, (shape, dtype) in self.shapes(pair).items()}  # fmt: skip
