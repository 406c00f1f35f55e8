"""What swapping the loops of attention buys: one declaration, queries outside or keys outside.

    python benchmarks/attention_keys_outer_gpu.py [--results FILE] [--blocks 64,256,1024] [--check]

FlashAttention's first version had key blocks outside: for every block of keys the state of all
queries (maximum, sum, accumulator) is read from memory, corrected, and written back. With queries
outside a query's state stays in registers and its result is written once. The declaration says the
same either way: a state merges with the keys that come. So both orders are run by `fr.pairwise` of
SoftmaxSum, the second one block of keys after the other, with the state as `seed`. Two columns show
it: the whole, where PyTorch merges the states of blocks (another read and write of them), and the
kernels alone, which write a state for each block and read none: no order with keys outside can cost
less. Bytes are counted, not measured: k and v once, q and the state for each block of keys, against
q, k, v and the result once.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from timing import Page, interleaved
from torch import Tensor

import fusedreduce as fr
from fusedreduce.plan.memory import NUMBER, size
from fusedreduce.reductions import SoftmaxSum

SHAPES = ((2, 16, 4096, 64), (2, 16, 4096, 128), (1, 16, 16384, 128))
HEADS = ("shape", "keys a block", "queries outside ms", "keys outside ms", "kernels alone ms",
         "times slower", "kernels alone", "bytes, queries outside", "bytes, keys outside",
         "times the bytes")  # fmt: skip


class Attention:
    """One pair reduction in both orders."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
        self.q, self.k, self.v = q, k, v
        scale = q.shape[3] ** -0.5
        self.options: dict[str, Any] = {"score_mod": fr.score(lambda s, b, h, i, j: s * scale)}
        if causal:
            self.options["mask"] = fr.masks.causal

    def queries_outside(self) -> Tensor:
        return fr.pairwise(SoftmaxSum, self.q, self.k, v=self.v, outputs="out", **self.options)

    def keys_outside(self, block: int) -> Tensor:
        """The state goes through memory from one block of keys to the next; finished at the end."""
        state: Any = None
        last = (self.k.shape[2] - 1) // block * block
        for at in range(0, last, block):
            _, state = self.step(at, block, seed=state, return_state=True, outputs=())
        out: Tensor = self.step(last, block, seed=state, outputs="out")
        return out

    def kernels_alone(self, block: int) -> None:
        """A state for each block of keys, none merged or finished."""
        for at in range(0, self.k.shape[2], block):
            self.step(at, block, return_state=True, outputs=())

    def step(self, at: int, block: int, **more: Any) -> Any:
        k, v = (t[:, :, at : at + block] for t in (self.k, self.v))
        return fr.pairwise(SoftmaxSum, self.q, k, v=v, k_offset=at, **self.options, **more)

    def bytes(self, block: int | None) -> int:
        """Of q, k, v, result and state; without a block of queries outside."""
        q, k, v = (t.numel() * t.element_size() for t in (self.q, self.k, self.v))
        queries = self.q.numel() // self.q.shape[3]
        out = queries * self.v.shape[3] * self.q.element_size()
        if block is None:
            return q + k + v + out
        state = queries * (2 + self.v.shape[3]) * NUMBER
        blocks = -(-self.k.shape[2] // block)
        return k + v + blocks * q + (2 * blocks - 1) * state + out


def compare(page: Page, shape: tuple[int, ...], block: int, causal: bool, budget: float,
            device: torch.device) -> None:  # fmt: skip
    inputs = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in "qkv")
    a = Attention(*inputs, causal)
    right, found = a.queries_outside().float(), a.keys_outside(block).float()
    off = float((found - right).abs().max() / right.abs().max())
    assert off <= 2 * torch.finfo(torch.bfloat16).eps, f"the two orders differ by {off:.1e}"
    calls = {
        "queries": a.queries_outside,
        "keys": lambda: a.keys_outside(block),
        "alone": lambda: a.kernels_alone(block),
    }
    ms = interleaved(calls, device, budget)
    least, most = a.bytes(None), a.bytes(block)
    B, H, S, D = shape
    page.row(
        f"B{B} H{H} S{S} D{D}{' causal' * causal}", f"{block}", f"{ms['queries']:.3f}",
        f"{ms['keys']:.3f}", f"{ms['alone']:.3f}", f"{ms['keys'] / ms['queries']:.1f}",
        f"{ms['alone'] / ms['queries']:.1f}", size(least), size(most), f"{most / least:.1f}",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", metavar="FILE")
    parser.add_argument("--blocks", default="64,256,1024", help="keys a block")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--budget", type=float, default=60.0, help="ms an order")
    parser.add_argument("--check", action="store_true", help="tiny, on the CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.check else "cuda")
    torch.manual_seed(0)
    notes = [" ".join(__doc__.split("\n\n")[2].split())]
    page = Page.started(options.results, "Attention, queries or keys outside", device, notes)
    page.table("Forward, bfloat16", HEADS)
    shapes, blocks = SHAPES, [int(b) for b in options.blocks.split(",")]
    if options.check:
        shapes, blocks, options.budget = ((1, 2, 150, 16),), [64], 1.0
    with torch.no_grad():
        for shape in shapes:
            for block in blocks:
                compare(page, shape, block, options.causal, options.budget, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
