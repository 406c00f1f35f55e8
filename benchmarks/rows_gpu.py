"""logsumexp, softmax and layer norm forward on one GPU, beside torch eager and torch.compile.

    python benchmarks/rows_gpu.py [results file]

Times are medians of triton.testing.do_bench in one process, random bf16 data, L2 cleared. Bytes:
logsumexp reads MN elements, softmax and layer norm read and write MN (weights ignored). The host
cost is the time of a call on a tiny tensor with nothing else to wait for, beside F.layer_norm.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from triton.testing import do_bench

import fusedreduce as fr
from fusedreduce.reductions import LogSumExp, Moments

SHAPES = ((32768, 1024), (32768, 4096), (16384, 8192), (8192, 32768), (4096, 131072))
EPS = 1e-5


@fr.fuse
def softmax(x):
    return torch.softmax(x, -1)


@fr.fuse
def layer_norm(x, weight, bias, eps):
    r = fr.reduce(Moments, x, keepdim=True)
    return (x - r["mean"]) * torch.rsqrt(r["var"] + eps) * weight + bias


def contenders(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> dict[str, dict[str, Callable]]:
    """For each operation: the implementations, and the elements it moves per element of x."""
    n = x.shape[-1:]
    plain = {
        "logsumexp": lambda: torch.logsumexp(x, -1),
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, n, w, b, EPS),
    }
    ours = {
        "logsumexp": lambda: fr.reduce(LogSumExp, x),
        "softmax": lambda: softmax(x),
        "layer_norm": lambda: layer_norm(x, w, b, EPS),
    }
    compiled = {name: torch.compile(fn, dynamic=False) for name, fn in plain.items()}
    return {
        name: {"fusedreduce": ours[name], "torch": plain[name], "torch.compile": compiled[name]}
        for name in plain
    }


def rate(fn: Callable, moved: int) -> float:
    """GB/s of `moved` bytes."""
    fn()
    ms = do_bench(fn, warmup=15, rep=60, return_mode="median")
    return moved / ms / 1e6


def table() -> list[str]:
    lines = [
        "| op | shape | fusedreduce | torch | torch.compile | plan |",
        "|---|---|---|---|---|---|",
    ]
    for rows, columns in SHAPES:
        torch._dynamo.reset()
        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        w, b = (torch.randn(columns, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for name, fns in contenders(x, w, b).items():
            moved = x.numel() * 2 * (1 if name == "logsumexp" else 2)
            rates = [f"{rate(fn, moved):.0f}" for fn in fns.values()]
            lines.append(
                f"| {name} | {rows}x{columns} | {' | '.join(rates)} | {plan(name, x, w, b)} |"
            )
            print(lines[-1], flush=True)
    return lines


def plan(name: str, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> str:
    text = {
        "logsumexp": lambda: fr.fuse(lambda x: fr.reduce(LogSumExp, x)).explain(x),
        "softmax": lambda: softmax.explain(x),
        "layer_norm": lambda: layer_norm.explain(x, w, b, EPS),
    }[name]()
    return next(line.split("plan")[1].strip() for line in text.splitlines() if "plan" in line)


def host_cost() -> list[str]:
    """Microseconds of a call that launches a tiny kernel, the device kept idle."""
    x = torch.randn(8, 128, device="cuda", dtype=torch.bfloat16)
    w, b = (torch.randn(128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    calls = {
        "F.layer_norm": lambda: F.layer_norm(x, (128,), w, b, EPS),
        "fusedreduce layer_norm": lambda: layer_norm(x, w, b, EPS),
        "fusedreduce logsumexp": lambda: fr.reduce(LogSumExp, x),
    }
    lines = ["", "| host cost of a call | us |", "|---|---|"]
    for name, fn in calls.items():
        for _ in range(20):
            fn()
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(20):
                fn()
            times.append((time.perf_counter() - start) / 20)
        lines.append(f"| {name} | {sorted(times)[len(times) // 2] * 1e6:.1f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    a = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    copy = rate(lambda: out.copy_(a), 4 * a.numel())
    head = [
        "# Row kernels forward, bf16, GB/s",
        "",
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}; "
        f"copy of 2 GB: {copy:.0f} GB/s. `python benchmarks/rows_gpu.py`",
        "",
    ]
    text = "\n".join([*head, *table(), *host_cost()]) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
