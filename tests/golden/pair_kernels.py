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
from fusedreduce.run import pair_kernels
from fusedreduce.run.pair_dropout import Dropout

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
MASKS = {
    "causal": fr.masks.causal,
    "window": fr.masks.window(1023, 0),
    "documents": fr.masks.document(torch.arange(2048) // 100) & fr.masks.causal,
}
DROPOUT = Dropout(0.1, torch.tensor([0]), (0, 0))
SCORES = {"alibi": fr.score(lambda s, b, h, i, j: s + SLOPES[h] * (j - i))}


@dataclass(frozen=True)
class PairKernel:
    """One golden file: attention with a mask or a score, in one direction."""

    what: str
    direction: str
    dtype: torch.dtype = torch.bfloat16
    width: int = 128
    shared: int = 1  # heads of q that share one of k

    @property
    def name(self) -> str:
        dtype = str(self.dtype).partition(".")[2]
        return f"attention_{self.what}_{self.direction}_{self.width}_{dtype}"

    def print(self, rows: int = 8) -> Any:
        q = torch.empty(2, 4, 64 * rows, self.width, dtype=self.dtype)
        k = torch.empty(2, 4 // self.shared, 512, self.width, dtype=self.dtype)
        outputs = ("out", "lse") if self.direction == "forward" else ("out",)
        call = PairCall(
            SoftmaxSum, q, k, k, self.width**-0.5, SCORES.get(self.what), MASKS.get(self.what),
            outputs, {}, 0, 0, None, False, DROPOUT if self.what == "dropout" else None,
        )  # fmt: skip
        runner, values = call.prepared("")
        pair = pair_of(runner.task, values, trust=False)
        inputs = Given(runner.task, values).inputs(pair.numbers)
        b = None if self.direction == "forward" else backward(pair, ("q", "k", "v"))
        pair = pair if b is None else b.forward
        plan = pair_kernels.plan_of(pair, self.direction, (9, 0))
        blocks, precise = pair_kernels.blocks_of(pair, inputs, plan), pair_kernels.precision(pair)
        if b is None:
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
    PairKernel("dropout", "forward"),
    PairKernel("dropout", "queries"),
)
