"""Pair kernels whose text is kept: attention as a call on an H200 prints it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

import fusedreduce as fr
from fusedreduce.api.pairwise import PairCall
from fusedreduce.gradient.pairs import backward
from fusedreduce.pairing import Given, pair_of
from fusedreduce.reductions import SoftmaxSum
from fusedreduce.run import pair_kernels, pair_table_kernels

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
MASKS = {
    "causal": fr.masks.causal,
    "window": fr.masks.window(1023, 0),
    "documents": fr.masks.document(torch.arange(2048) // 100) & fr.masks.causal,
}
BIAS, FAR = torch.zeros(4, 2048, 512), torch.zeros(4, 32)
SCORES = {
    "alibi": fr.score(lambda s, b, h, i, j: s + SLOPES[h] * (j - i)),
    "learned_alibi": fr.score(lambda s, b, h, i, j: s + SLOPES[h] * (j - i)),
    "learned_bias": fr.score(lambda s, b, h, i, j: s + BIAS[h, i, j]),
    "learned_distance": fr.score(lambda s, b, h, i, j: s + FAR[h, torch.clamp(i - j, 0, 31)]),
}


@dataclass(frozen=True)
class PairKernel:
    """One golden file: attention with a mask or a score, in one direction.

    Scores that are called learned have a tensor s0 that gets a gradient.
    """

    what: str
    direction: str
    dtype: torch.dtype = torch.bfloat16
    width: int = 128
    shared: int = 1  # heads of q that share one of k
    mask: str = ""  # of a score

    @property
    def name(self) -> str:
        dtype = str(self.dtype).partition(".")[2]
        return f"attention_{self.what}_{self.direction}_{self.width}_{dtype}"

    def print(self, rows: int = 8) -> Any:
        q = torch.empty(2, 4, 64 * rows, self.width, dtype=self.dtype)
        k = torch.empty(2, 4 // self.shared, 512, self.width, dtype=self.dtype)
        outputs = ("out", "lse") if self.direction == "forward" else ("out",)
        call = PairCall(
            SoftmaxSum, q, k, k, self.width**-0.5, SCORES.get(self.what),
            MASKS.get(self.mask or self.what), outputs, {}, 0, 0, None, False,
        )  # fmt: skip
        task, values = call.prepared("")
        pair = pair_of(task, values, trust=False)
        inputs = Given(task, values).inputs(pair.numbers)
        learned = ("s0",) if "learned" in self.what else ()
        b = None if self.direction == "forward" else backward(pair, ("q", "k", "v", *learned))
        pair = pair if b is None else b.forward
        plan = pair_kernels.plan_of(pair, self.direction, (9, 0))
        blocks, precise = pair_kernels.blocks_of(pair, inputs, plan), pair_kernels.precision(pair)
        if b is not None and self.direction in pair_table_kernels.DIRECTIONS:
            blocks = pair_table_kernels.blocks_of(pair, inputs, plan)
            made = pair_table_kernels.table_kernel(b, b.table_sums[0], plan, blocks, precise)
        elif b is None:
            made = pair_kernels.forward_kernel(pair, plan, blocks, ("scale",), precise)
        else:
            made = pair_kernels.backward_kernel(b, plan, blocks, precise)
        return SimpleNamespace(kernel=made.kernel)


KERNELS = (
    PairKernel("causal", "forward"),
    PairKernel("documents", "forward"),
    PairKernel("alibi", "forward", torch.float32, 80, shared=2),
    PairKernel("window", "queries", torch.float16, 64),
    PairKernel("causal", "queries"),
    PairKernel("causal", "keys", shared=2),
    PairKernel("learned_alibi", "queries", width=64, mask="causal"),
    PairKernel("learned_bias", "tables", width=64, shared=2),
    PairKernel("learned_distance", "diagonals", width=64, mask="causal"),
)
