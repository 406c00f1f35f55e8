"""Tiles of the attention forward, from too small to too large: time and what the machine needs.

    python benchmarks/attention_tiles_gpu.py [--results FILE] [--widths 64,128] [--causal] [--check]

One declaration, one printer; only the tile differs. A small tile reads k and v again for every few
queries: it has few products for each byte it loads, and below 64 queries Hopper's large matmul
instruction does not fit. A large one has a score tile and an accumulator that do not fit in
registers (spills: bytes of stack), or leaves room for one program on a multiprocessor, with nothing
to do while it waits. Registers, stack and shared memory come from the compiler; in parentheses what
the plan adds up before. --check is tiny; on the CPU tiles run in PyTorch, and the kernels are
compiled for sm_90 all the same.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from timing import Page, interleaved

import fusedreduce as fr
from fusedreduce.api.explain import noted
from fusedreduce.errors import BackendError
from fusedreduce.plan.device import WARP, Device
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.plan.pairs import plan as planned
from fusedreduce.report.pairs import Report
from fusedreduce.report.target import target_of
from fusedreduce.run import pair_kernels, pair_printed, pair_tiles
from fusedreduce.run.compiled import Needs, pair_needs

TILES = ((16, 16), (16, 64), (32, 32), (32, 64), (64, 16), (64, 32), (64, 64), (64, 128), (128, 32),
         (128, 64), (128, 128), (256, 64), (256, 128))  # fmt: skip
FOUR_WARPS = 64 * 64  # scores of a tile that four warps share; eight take larger ones
WIDE = 64  # queries: the rows of one wgmma
Tile = tuple[int, int, int, int]
HEADS = ("queries x keys", "warps", "stages", "ms", "TFLOP/s", "FLOP a byte loaded",
         "registers (planned)", "stack bytes", "shared bytes (planned)", "programs at once",
         "what limits it")  # fmt: skip


def tile_of(queries: int, keys: int, pair: object, limits: Device) -> Tile:
    """The most stages that fit in shared memory; one where none does."""
    warps = 4 if queries * keys <= FOUR_WARPS else 8
    for stages in (3, 2, 1):
        tile = queries, keys, warps, stages
        if planned(pair, "forward", tile=tile).shared <= limits.shared_bytes:
            break
    return tile


def needs(made: Report, plan: PairPlan) -> Needs | str:
    """What the compiler says of the kernel with this tile."""
    precise = pair_kernels.precision(made.pair)
    positive = tuple(n for n, v in made.inputs.numbers.items() if v > 0)
    kernel = pair_kernels.forward_printed(made.pair, plan, made.laid(plan), positive, precise)
    try:
        return pair_needs(kernel, plan, made.pair, made.to.number)
    except BackendError as reason:
        return str(reason).splitlines()[1].strip()


def at_once(found: Needs, plan: PairPlan, limits: Device) -> int:
    """Programs that one multiprocessor has room for, by registers and by shared memory."""
    by_registers = limits.registers // (found.registers * WARP * plan.num_warps)
    return min(by_registers, limits.shared_bytes // max(found.shared, 1), 64 // plan.num_warps)


def verdict(found: Needs, plan: PairPlan, made: Report) -> str:
    """In words, from the figures of its row."""
    told = []
    if plan.QUERIES < WIDE:
        told.append("few products for each byte loaded")
        told += ["no wgmma"] * (made.to.capability[0] == 9)
    if found.stack:
        told.append("spills")
    if at_once(found, plan, made.to.limits) < 2:
        told.append("one program at once")
    return ", ".join(told)


def intensity(plan: PairPlan, D: int) -> float:
    """Products of a step by the bytes of k and v that it loads: 4 Q K D / (2 * 2 K D) = Q."""
    return 4.0 * plan.QUERIES * plan.KEYS * D / (2 * 2 * plan.KEYS * D)


def sweep(page: Page, q: torch.Tensor, causal: bool, budget: float) -> None:
    B, H, S, D = q.shape
    k, v = torch.randn_like(q), torch.randn_like(q)
    (call,) = noted(fr.attention, q, k, v, is_causal=causal)
    made = Report(call, target_of(call.values, None))
    pair, limits = made.pair, made.to.limits
    right = fr.attention(q, k, v, is_causal=causal)
    page.table(f"B{B} H{H} S{S} D{D} {'causal' if causal else 'full'}, bfloat16", HEADS)
    flops = 4.0 * B * H * S * S * D / (2 if causal else 1)
    for queries, keys in TILES:
        tile = tile_of(queries, keys, pair, limits)
        plan = planned(pair, "forward", tile=tile)
        ms, why = timed(made, tile, right, budget)
        rate = flops / ms / 1e9
        found = needs(made, plan)
        cells = [f"{queries} x {keys}", f"{tile[2]}", f"{tile[3]}"]
        cells += ["-", "-"] if math.isnan(ms) else [f"{ms:.3f}", f"{rate:.3g}"]
        cells += [f"{intensity(plan, D):.0f}"]
        if isinstance(found, str):
            page.row(*cells, *["-"] * 4, why or found)
            continue
        page.row(
            *cells, f"{found.registers} ({plan.registers})", f"{found.stack}",
            f"{found.shared:,} ({plan.shared:,})", f"{at_once(found, plan, limits)}",
            why or verdict(found, plan, made),
        )  # fmt: skip
    chosen = made.plan("forward")
    page.say("", f"The plan takes {chosen.describe()}.")


def timed(made: Report, tile: Tile, right: torch.Tensor, budget: float) -> tuple[float, str]:
    """Milliseconds, or NaN and the reason."""
    pair, inputs = made.pair, made.inputs
    forward = pair_printed.Forward(pair, tile)

    def run() -> dict[str, torch.Tensor]:
        if inputs.q.is_cuda:
            return forward(inputs)
        return pair_tiles.forward(pair, inputs, tile[:2])

    try:
        out = run()["out"].float()
    except BackendError as reason:
        return math.nan, str(reason).splitlines()[0][:90].replace("|", "/")
    off = float((out - right.float()).abs().max() / right.float().abs().max())
    assert off <= 2 * torch.finfo(torch.bfloat16).eps, f"tile {tile} is off by {off:.1e}"
    return interleaved({"tile": run}, inputs.q.device, budget)["tile"], ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", metavar="FILE")
    parser.add_argument("--widths", default="64,128")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--budget", type=float, default=30.0, help="ms a tile")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    device = torch.device("cpu" if options.check else "cuda")
    torch.manual_seed(0)
    notes = [" ".join(__doc__.split("\n\n")[2].split())]
    page = Page.started(options.results, "Tiles of the attention forward", device, notes)
    shape = (1, 1, 300) if options.check else (2, 16, 4096)
    for width in map(int, options.widths.split(",")):
        q = torch.randn(*shape, width, device=device, dtype=torch.bfloat16)
        sweep(page, q, options.causal, 1.0 if options.check else options.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
