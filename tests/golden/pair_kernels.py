"""Pair kernels whose text is kept: attention as a call on an H200 prints it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.api.pairwise import PairCall
from fusedreduce.gradient.pairs import backward
from fusedreduce.kernels.rows import print_rows
from fusedreduce.pair import Pair
from fusedreduce.pairing import Given, pair_of
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import layout
from fusedreduce.reductions import SoftmaxSum
from fusedreduce.run import launch, pair_kernels, pair_splits, pair_table_kernels
from fusedreduce.run.pair_dropout import Dropout
from fusedreduce.run.pair_inputs import PairInputs

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
MASKS = {
    "causal": fr.masks.causal,
    "window": fr.masks.window(1023, 0),
    "documents": fr.masks.document(torch.arange(2048) // 100) & fr.masks.causal,
}
BIAS, FAR = torch.zeros(4, 2048, 512), torch.zeros(4, 32)
DROPOUT = Dropout(0.1, torch.tensor([0]), (0, 0))
SCORES = {
    "alibi": fr.score(lambda s, b, h, i, j: s + SLOPES[h] * (j - i)),
    "learned_alibi": fr.score(lambda s, b, h, i, j: s + SLOPES[h] * (j - i)),
    "learned_bias": fr.score(lambda s, b, h, i, j: s + BIAS[h, i, j]),
    "learned_distance": fr.score(lambda s, b, h, i, j: s + FAR[h, torch.clamp(i - j, 0, 31)]),
}


@dataclass(frozen=True)
class PairKernel:
    """One golden file: attention with a mask or a score, in one direction.

    direction   "split": forward, with the keys of a query split over programs
    what        scores that are called learned have a tensor s0 that gets a gradient
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
        forward = self.direction in ("forward", "split")
        outputs = ("out", "lse") if forward else ("out",)
        pair, inputs = attention(q, k, self.what, outputs, self.mask)
        learned = ("s0",) if "learned" in self.what else ()
        b = None if forward else backward(pair, ("q", "k", "v", *learned))
        pair = pair if b is None else b.forward
        plan = pair_kernels.plan_of(pair, "forward" if forward else self.direction, (9, 0))
        blocks, precise = pair_kernels.blocks_of(pair, inputs, plan), pair_kernels.precision(pair)
        if self.direction == "split":
            pair, blocks = pair_splits.pair_of_states(pair), replace(blocks, splits=True)
        if b is not None and self.direction in pair_table_kernels.DIRECTIONS:
            blocks = pair_table_kernels.blocks_of(pair, inputs, plan)
            made = pair_table_kernels.table_kernel(b, b.table_sums[0], plan, blocks, precise)
        elif b is None:
            made = pair_kernels.forward_kernel(pair, plan, blocks, ("scale",), precise)
        else:
            made = pair_kernels.backward_kernel(b, plan, blocks, precise)
        return SimpleNamespace(kernel=made.kernel)


@dataclass(frozen=True)
class Merge:
    """One golden file: the row kernel that merges the states of split keys."""

    what: str
    splits: int
    width: int = 128
    dtype: torch.dtype = torch.bfloat16

    @property
    def name(self) -> str:
        dtype = str(self.dtype).partition(".")[2]
        return f"attention_{self.what}_merge_{self.width}_{dtype}"

    def print(self, rows: int = 8) -> Any:
        q, k = (torch.empty(rows, 4, n, self.width, dtype=self.dtype) for n in (1, 8192))
        pair, inputs = attention(q, k, self.what, ("out", "lse"))
        shape = (*inputs.rows, self.splits, self.width)
        program = pair_splits.merging_program(pair, shape)
        lay = layout(program, launch.program_strides(program, {}))
        kernel = print_rows(program, row_plans.plan(program, lay), lay, program.name)
        return SimpleNamespace(kernel=kernel, traced=SimpleNamespace(program=program))


def attention(
    q: Tensor, k: Tensor, what: str, outputs: tuple[str, ...], mask: str = ""
) -> tuple[Pair, PairInputs]:
    """The pair of a call, with the mask or score of that name, and what it is run on."""
    call = PairCall(
        SoftmaxSum, q, k, k, q.shape[3] ** -0.5, SCORES.get(what), MASKS.get(mask or what), outputs,
        {}, 0, 0, None, False, DROPOUT if what == "dropout" else None,
        torch.zeros(q.shape[1]) if what == "sinks" else None,
    )  # fmt: skip
    runner, values = call.prepared("")
    pair = pair_of(runner.task, values, trust=False)
    return pair, Given(runner.task, values).inputs(pair.numbers)


MERGE = Merge("full", 8)
KERNELS = (
    PairKernel("causal", "forward"),
    PairKernel("documents", "forward"),
    PairKernel("alibi", "forward", torch.float32, 80, shared=2),
    PairKernel("window", "queries", torch.float16, 64),
    PairKernel("causal", "queries"),
    PairKernel("causal", "keys", shared=2),
    PairKernel("window", "split", torch.float16, shared=4),
    MERGE,
    PairKernel("dropout", "forward"),
    PairKernel("sinks", "forward", mask="causal"),
    PairKernel("dropout", "queries"),
    PairKernel("learned_alibi", "queries", width=64, mask="causal"),
    PairKernel("learned_bias", "tables", width=64, shared=2),
    PairKernel("learned_distance", "diagonals", width=64, mask="causal"),
)
