"""softmax and layer norm backward on one GPU, beside torch eager and torch.compile.

    python benchmarks/rows_backward_gpu.py [results file]

torch.autograd.grad on a kept graph, all three the same way, so host time is in the small shapes;
medians of triton.testing.do_bench, random bf16 data. Bytes: 3 M N elements (weights ignored).
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
from rows_gpu import EPS, SHAPES, layer_norm, rate, softmax


def backward(fn: Callable, inputs: tuple[torch.Tensor, ...]) -> Callable:
    """A call of the backward alone."""
    y = fn(*inputs)
    up = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, inputs, up, retain_graph=True)


def row(name: str, shape: tuple[int, int]) -> str:
    torch._dynamo.reset()
    x = torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w, b = (torch.randn(shape[1], device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(2))  # fmt: skip
    if name == "softmax":
        inputs: tuple[torch.Tensor, ...] = (x,)
        plain, ours = (lambda x: torch.softmax(x, -1)), softmax
    else:
        inputs = (x, w, b)
        plain = lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, EPS)
        ours = lambda x, w, b: layer_norm(x, w, b, EPS)
    moved = 3 * x.numel() * 2
    fns = (ours, plain, torch.compile(plain, dynamic=False))
    rates = [f"{rate(backward(fn, inputs), moved):.0f}" for fn in fns]
    return f"| {name} | {shape[0]}x{shape[1]} | {' | '.join(rates)} |"


def main() -> None:
    lines = [
        "# Row kernels backward, bf16, GB/s", "",
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}. "
        "`python benchmarks/rows_backward_gpu.py`", "",
        "| op | shape | fusedreduce | torch | torch.compile |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for shape in SHAPES:
        for name in ("softmax", "layer_norm"):
            lines.append(row(name, shape))
            print(lines[-1], flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
