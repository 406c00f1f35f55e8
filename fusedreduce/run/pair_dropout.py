"""Dropout of a pair: the weight of a payload, what it reads, and its value on tensors of indices.

    keep[b, h, i, j] = 0 where random(seed, i, h, j, b) < dropped, else kept = 1 / (1 - p)

Tiles, printed kernels and backwards make it of the position alone, so that nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fusedreduce.blocks.language import torch_dialect
from fusedreduce.ir import tables
from fusedreduce.ir.evaluate import evaluate
from fusedreduce.ir.expr import Expr, call, cast, const, rewrite, var, where
from fusedreduce.ir.philox import BITS

Offsets: TypeAlias = "tuple[str | int, str | int]"  # of queries and keys, by name; 0: none
SEED = tables.element("seed", [const(0)])


@dataclass(frozen=True)
class Dropout:
    """With which probability payloads are dropped; the seed, int64 of shape (1,); the offsets."""

    p: float
    seed: Tensor
    by: Offsets

    @property
    def values(self) -> dict[str, Any]:
        """The arguments of a call; at p = 1 nothing is kept."""
        kept = 1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0
        return {"seed": self.seed, "dropped": float(round(self.p * 2**BITS)), "kept": kept}


def keep(by: Offsets) -> Expr:
    """The weight; positions count in the whole, so that its pieces draw what the whole draws."""
    i, j = (
        var(n) + var(o) if isinstance(o, str) else var(n) for n, o in zip("ij", by, strict=True)
    )
    bits = cast(call("random", SEED, i, var("h"), j, var("b")), "float")
    return where(call("ge", bits, var("dropped")), var("kept"), 0.0)


def kept(by: Offsets, values: Mapping[str, Any], at: Mapping[str, Any], state: torch.dtype
         ) -> Tensor:  # fmt: skip
    """The weights at tensors of indices b, h, i, j and numbers q_offset, k_offset."""
    seed = values["seed"].reshape(())
    expr = rewrite(keep(by), lambda n: var("seed") if n is SEED else None)
    given = {"seed": seed, "dropped": values["dropped"], "kept": values["kept"], **at}
    made: Tensor = evaluate(expr, given, torch_dialect(state, seed.device))
    return made
