"""Attention forward and backward on one GPU, beside SDPA flash and cuDNN and FlexAttention.

    python benchmarks/attention_gpu.py [--results FILE] [--parts forward,backward,...]
        [--shapes TEXT,...] [--peers NAME,...] [--budget MS] [--graphs] [--check]

--shapes takes the cases whose name holds one of the texts ("S2048", "D64 causal"), --parts some of
    forward backward causal window decode memory
and FILE grows: a part that is run later is added below. Before it is timed each implementation is
compared with float32 mathematics on one head; ours must be right, or the exit code is 1. --graphs
replays each call from a CUDA graph: the device's time alone, without what the host takes. --check
runs every part tiny, on the CPU, where ours are tiles in PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from attention_peers import OURS, Case, implementations
from attention_times import Session, Times, measured, released
from timing import Page, interleaved, replayed

from fusedreduce.api.explain import noted
from fusedreduce.plan.memory import AttentionMemory, size
from fusedreduce.report.pairs import Report
from fusedreduce.report.target import target_of

SHAPES = (
    Case(8, 16, 16, 2048, 128), Case(8, 16, 16, 2048, 128, "causal"),
    Case(2, 16, 16, 8192, 128), Case(2, 16, 16, 8192, 128, "causal"),
    Case(1, 16, 16, 16384, 128), Case(1, 16, 16, 16384, 128, "causal"),
    Case(4, 32, 32, 4096, 64), Case(4, 32, 32, 4096, 64, "causal"),
    Case(2, 8, 8, 8192, 256), Case(2, 8, 8, 8192, 256, "causal"),
    Case(32, 16, 16, 512, 128, "causal"), Case(2, 32, 8, 8192, 128, "causal"),
)  # fmt: skip
LONG = Case(1, 16, 16, 16384, 128)
MASKED = Case(2, 16, 16, 8192, 128)
DECODE = (
    Case(64, 32, 8, 8192, 128, Sq=1), Case(8, 32, 8, 8192, 128, Sq=1),
    Case(8, 32, 8, 32768, 128, Sq=1), Case(1, 32, 8, 8192, 128, Sq=1),
    Case(1, 32, 8, 32768, 128, Sq=1), Case(1, 32, 8, 131072, 128, Sq=1),
    Case(1, 8, 8, 131072, 128, Sq=1), Case(4, 8, 8, 16384, 128, Sq=16),
)  # fmt: skip
NOTES = (
    "bfloat16, random normal data. FLOPs: 4 B H S^2 D, half when causal; backward 2.5 times the "
    "forward. Each implementation was compared with float32 mathematics before it was timed: the "
    "largest error at most twice (gradients: three times) that of the same mathematics in "
    "bfloat16, and one rounding. SDPA runs inside `sdpa_kernel` of one backend; FlexAttention is "
    "torch.compile(flex_attention, dynamic=False), its block mask built before.",
)


# ---- the parts -----------------------------------------------------------------------------------


def rates(s: Session, cases: Sequence[Case], backward: bool) -> None:
    way = "Backward" if backward else "Forward"
    way += ", replayed from CUDA graphs" * s.graphs
    s.page.table(f"{way}, TFLOP/s", ["case", *s.names, "ours / best peer"])
    for case in cases:
        times = measured(s, case, backward)
        work = case.flops * (2.5 if backward else 1.0)
        cells = [times.cell(n, work) for n in s.names]
        s.page.row(case.name, *cells, against(times))


def against(times: Times) -> str:
    """Our speed as a part of the best peer's."""
    peers = {n: t for n, t in times.ms.items() if n != OURS}
    if OURS not in times.ms or not peers:
        return "-"
    best = min(peers, key=lambda n: peers[n])
    return f"{peers[best] / times.ms[OURS]:.2f} of {best}"


def causal(s: Session, base: Case) -> None:
    """Time of causal attention as a part of full attention's: half the pairs count."""
    s.page.table(f"Causal time / full time, {base.name}", ["", *s.names])
    for backward in (False, True):
        full, half = (measured(s, c, backward) for c in (base, replace(base, seen="causal")))
        cells = [f"{half.ms[n] / full.ms[n]:.3f}" if n in half.ms and n in full.ms else "fails"
                 for n in s.names]  # fmt: skip
        s.page.row("backward" if backward else "forward", *cells)


def window(s: Session, base: Case) -> None:
    """Time in proportion to the blocks that are visited."""
    both = f"{OURS},FlexAttention"
    masked = (replace(base, seen="window", keys=max(base.S // 8, 1)),
              replace(base, seen="documents", keys=8))  # fmt: skip
    s.page.table(
        f"Window and documents, {base.name}: time / full time beside visited blocks / all",
        ["case", "", "visited", *(f"{n} {what}" for n in both.split(",")
                                  for what in ("ms", "/ full"))],
    )  # fmt: skip
    for backward in (False, True):
        full = measured(s, base, backward, both)
        for case in masked:
            times = measured(s, case, backward, both)
            cells = [c for n in both.split(",") for c in (
                times.cell(n, 0.0),
                f"{times.ms[n] / full.ms[n]:.3f}" if n in times.ms and n in full.ms else "-",
            )]  # fmt: skip
            way = "backward" if backward else "forward"
            s.page.row(case.name, way, f"{visited(case, s.device):.3f}", *cells)


def visited(case: Case, device: torch.device) -> float:
    """The fraction of blocks that the forward does not skip."""
    return 1.0 - reported(case, device).share.saved


def reported(case: Case, device: torch.device) -> Report:
    run = implementations(device)[OURS](case, device)
    (call,) = noted(run, *case.inputs(device))
    return Report(call, target_of(call.values, None))


def decode(s: Session, cases: Sequence[Case]) -> None:
    """One new token a sequence, or a few: the bytes of k and v, beside a copy that moves as many.

    A copy of half as many bytes reads and writes as much as attention reads. Graphs are replayed:
    the shortest of these take less time than a call takes on the host.
    """
    how = "replays of CUDA graphs" if s.device.type == "cuda" else "plain calls"
    s.page.table(f"Decode, {how}: GB/s of k and v (part of the copy's)",
                 ["case", "k and v", "splits", *s.names, "copy"])  # fmt: skip
    for case in cases:
        moved = 2 * case.B * case.Hk * case.S * case.D * 2
        times = measured(s, case, backward=False, graphs=True)
        source = torch.randn(moved // 4, device=s.device, dtype=torch.bfloat16)
        into = torch.empty_like(source)
        with torch.cuda.stream(torch.cuda.Stream()) if into.is_cuda else nullcontext():
            run = replayed(lambda into=into, source=source: into.copy_(source), s.device)
            copy = interleaved({"copy": run}, s.device, s.budget)["copy"]
        cells = [times.failed.get(n)
                 or f"{moved / times.ms[n] / 1e6:.0f} ({copy / times.ms[n]:.0%})"
                 for n in s.names]  # fmt: skip
        told = (case.name, size(moved), str(splits(case, s.device)))
        s.page.row(*told, *cells, f"{moved / copy / 1e6:.0f}")
        del run, source, into
        released(s.device)


def splits(case: Case, device: torch.device) -> int:
    """Over how many programs our forward splits the keys of a query."""
    merging = reported(case, device).merging
    return 1 if merging is None else merging.splits


def memory(s: Session, case: Case) -> None:
    """Peak of forward and backward above the inputs, beside what scores would take."""
    s.page.table(f"Peak memory of forward and backward above q, k, v, d out, {case.name}", s.names)
    s.page.row(
        *(peak(case, make, s.device) for make in implementations(s.device, s.peers).values())
    )
    table = AttentionMemory(case.B, case.H, case.queries, case.S, "bfloat16", saved=1)
    results = size(2 * case.B * case.S * case.D * (2 * case.H + 2 * case.Hk))
    s.page.say(
        "", f"Results (out, d q, d k, d v): {results}. One score matrix a head in 16 bits: "
        f"{size(table.scores)}; two float32 numbers a query: {size(table.two_numbers)}; ours saves "
        f"{size(table.ours)}.",
    )  # fmt: skip


def peak(case: Case, make: Callable, device: torch.device) -> str:
    if device.type != "cuda":
        return "not counted on the CPU"
    try:
        function, inputs = make(case, device), case.inputs(device, grad=True)
        up = torch.randn_like(inputs[0])
        torch.autograd.grad(function(*inputs), inputs, up)  # compiles; and what it keeps is kept
        released(device)
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        grads = torch.autograd.grad(function(*inputs), inputs, up)
        torch.cuda.synchronize()
        del grads
        return size(torch.cuda.max_memory_allocated() - base)
    except Exception as reason:
        return f"{type(reason).__name__}"


def tiny(case: Case) -> Case:
    """The same kind of case, small enough for a CPU."""
    return replace(case, B=1, H=2 * case.H // case.Hk, Hk=2, S=128, D=16)


PARTS = ("forward", "backward", "causal", "window", "decode", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", metavar="FILE", help="written, or continued")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--shapes", default="", help="parts of the names of cases")
    parser.add_argument("--peers", default="", help="names; FlashAttention-4 if installed")
    parser.add_argument("--budget", type=float, default=60.0, help="ms an implementation and case")
    parser.add_argument("--graphs", action="store_true", help="CUDA graphs: no host time")
    parser.add_argument("--check", action="store_true", help="everything tiny, on the CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.check else "cuda")
    torch.manual_seed(0)
    shrink = tiny if options.check else lambda case: case
    texts = [t.strip() for t in options.shapes.split(",") if t.strip()]
    cases = [shrink(c) for c in SHAPES if not texts or any(t in c.name for t in texts)]
    if options.check:
        cases = list(dict.fromkeys(cases))
    page = Page.started(options.results, "Attention, bfloat16", device, NOTES)
    budget = 1.0 if options.check else options.budget
    s = Session(device, page, budget, options.peers, options.graphs)
    parts = {
        "forward": lambda: rates(s, cases, backward=False),
        "backward": lambda: rates(s, cases, backward=True),
        "causal": lambda: causal(s, shrink(LONG)),
        "window": lambda: window(s, shrink(MASKED)),
        "decode": lambda: decode(s, list(dict.fromkeys(map(shrink, DECODE)))),
        "memory": lambda: memory(s, shrink(MASKED)),
    }
    for part in options.parts.split(","):
        parts[part]()
    for told in s.wrong:
        print(f"WRONG: {told}", file=sys.stderr)
    return 1 if s.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
