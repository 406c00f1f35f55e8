"""CPU tiles beside plain PyTorch, both in one process: DESIGN section 8, `CPU tiles, 4096 x 4096`.

Medians of interleaved repetitions. A plain formulation makes its own temporaries; one that writes
into a buffer kept from call to call is shown too, since the first touch of 64 MiB costs more than
the arithmetic. On a machine that others use, two threads that wait for each other lose more than
one thread does, on either side: so both are measured.

Usage: python benchmarks/cpu_tiles.py [--rows R] [--columns C] [--repetitions N] [--write]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import torch

import fusedreduce as fr
from fusedreduce.reductions import LogSumExp, Moments, Welford

RESULTS = Path(__file__).parent / "results" / "cpu-tiles.md"
BARS = {"LogSumExp": 1.5, "Moments": 2.0, "Welford": 8.0}
Call = Callable[[], object]


def log_sum_exp_peers(x: torch.Tensor, kept: torch.Tensor) -> dict[str, Call]:
    def by_hand() -> torch.Tensor:
        m = x.amax(1, keepdim=True)
        return m[:, 0] + torch.log(torch.exp(x - m).sum(1))

    def in_place() -> torch.Tensor:
        m = x.amax(1, keepdim=True)
        return m[:, 0] + torch.log((x - m).exp_().sum(1))

    def kept_buffer() -> torch.Tensor:
        m = x.amax(1, keepdim=True)
        torch.sub(x, m, out=kept)
        return m[:, 0] + torch.log(torch.exp(kept, out=kept).sum(1))

    return {
        "torch.logsumexp": lambda: torch.logsumexp(x, 1),
        "max, sub, exp, sum": by_hand,
        "max, sub, exp_, sum": in_place,
        "kept buffer": kept_buffer,
    }


def moments_peers(x: torch.Tensor, kept: torch.Tensor) -> dict[str, Call]:
    def by_hand() -> tuple[torch.Tensor, torch.Tensor]:
        mean = x.mean(1, keepdim=True)
        d = x - mean
        return mean, (d * d).mean(1)

    def in_place() -> tuple[torch.Tensor, torch.Tensor]:
        mean = x.mean(1, keepdim=True)
        return mean, (x - mean).square_().mean(1)

    def norm() -> tuple[torch.Tensor, torch.Tensor]:
        mean = x.mean(1, keepdim=True)
        return mean, torch.linalg.vector_norm(x - mean, dim=1) ** 2 / x.shape[1]

    def kept_buffer() -> tuple[torch.Tensor, torch.Tensor]:
        mean = x.mean(1, keepdim=True)
        torch.sub(x, mean, out=kept)
        return mean, torch.linalg.vector_norm(kept, dim=1) ** 2 / x.shape[1]

    return {
        "torch.var_mean": lambda: torch.var_mean(x, 1, correction=0),
        "mean, sub, mul, mean": by_hand,
        "mean, sub, square_, mean": in_place,
        "mean, sub, norm": norm,
        "kept buffer": kept_buffer,
    }


def interleaved(calls: Mapping[str, Call], repetitions: int) -> dict[str, float]:
    """Median milliseconds of each call."""
    times: dict[str, list[float]] = {n: [] for n in calls}
    for repetition in range(repetitions + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if repetition >= 2:  # the first two warm up
                times[name].append(1e3 * (time.perf_counter() - start))
    return {n: statistics.median(t) for n, t in times.items()}


def measure(rows: int, columns: int, repetitions: int) -> list[str]:
    """A Markdown table: each declaration, its peers, the ratios."""
    x = torch.randn(rows, columns)
    kept = torch.empty_like(x)
    peers = {
        LogSumExp: log_sum_exp_peers(x, kept),
        Moments: moments_peers(x, kept),
        Welford: moments_peers(x, kept),
    }
    lines = [
        "| declaration | threads | tiles ms | best plain ms | which | ratio | bar "
        "| kept buffer ms | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for R, plain in peers.items():
        name = R.__name__
        ours = {"tiles": lambda R=R: fr.reduce(R, x, impl="tiles")}
        took = interleaved(ours | plain, repetitions)
        print(name, {n: round(t, 2) for n, t in took.items()}, file=sys.stderr)
        tiles, kept_ms = took.pop("tiles"), took.pop("kept buffer")
        best = min(took, key=lambda n: took[n])
        lines.append(
            f"| {name} | {torch.get_num_threads()} | {tiles:.1f} | {took[best]:.1f} | {best} "
            f"| {tiles / took[best]:.2f} | {BARS[name]} | {kept_ms:.1f} | {tiles / kept_ms:.2f} |"
        )
    return lines


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [n for n in info.read_text().splitlines() if "model name" in n] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=21)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    torch.manual_seed(0)
    table: list[str] = []
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        made = measure(options.rows, options.columns, options.repetitions)
        table += made[2:] if table else made
    text = "\n".join(
        [
            f"# CPU tiles, {options.rows} x {options.columns} float32, along the last dimension",
            "",
            f"{processor()}; torch {torch.__version__}, Python {platform.python_version()}; "
            f"{date.today()}.",
            f"Command: `python {' '.join(sys.argv)}`. Medians of {options.repetitions} interleaved "
            "repetitions in one process, random data.",
            "",
            *table,
            "",
        ]
    )
    print(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
