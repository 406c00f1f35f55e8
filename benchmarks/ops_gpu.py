"""Every row operation forward and backward on one GPU, beside torch eager and torch.compile.

    python benchmarks/ops_gpu.py [results file] [operation ...]

Random bf16 data, medians of interleaved rounds in one process (`timing.interleaved`: the L2 cache
is overwritten, and the device is at work when a call comes, so host time shows where it is longer
than the kernels). The backward is torch.autograd.grad on a kept graph, for all three the same way.
Bytes a call has to move, in elements of x (weights, labels and rows' numbers are ignored): see
TABLE. GB/s; a star marks where fusedreduce is behind torch eager.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from timing import interleaved

from fusedreduce import ops

SHAPES = ((32768, 1024), (32768, 4096), (16384, 8192), (8192, 32768), (4096, 131072))
BUDGET = 20.0  # ms an implementation, operation and shape
Make = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """An operation beside torch's own; `moved` counts elements of x, forward and backward."""

    ours: Callable[..., torch.Tensor]
    plain: Callable[..., torch.Tensor]
    make: Make
    moved: tuple[int, int]


def one(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return (noise(m, n),)


def two(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return noise(m, n), noise(m, n)


def affine(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return noise(m, n), noise(n), noise(n)


def scaled(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return noise(m, n), noise(n)


def labelled(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return noise(m, n), torch.randint(0, n, (m,), device="cuda")


def log_probabilities(m: int, n: int) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        made = tuple(torch.log_softmax(noise(m, n).float(), -1).bfloat16() for _ in "pq")
    return made[0].requires_grad_(), made[1]


def image(m: int, n: int) -> tuple[torch.Tensor, ...]:
    """m n elements as images of 64 channels in 32 groups, 64 pixels wide."""
    x = noise(m * n // (64 * 4096), 64, 64, 64)
    return x, noise(64), noise(64)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def z_loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    lse = torch.logsumexp(x.float(), -1)
    loss = F.cross_entropy(x.float(), target, label_smoothing=0.1, reduction="none")
    return (loss + 1e-4 * lse * lse).mean()


TABLE = {
    "softmax": Case(lambda x: ops.softmax(x, -1), lambda x: torch.softmax(x, -1), one, (2, 3)),
    "log_softmax": Case(
        lambda x: ops.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1), one, (2, 3)
    ),
    "logsumexp": Case(
        lambda x: ops.logsumexp(x, -1), lambda x: torch.logsumexp(x, -1), one, (1, 2)
    ),
    "layer_norm": Case(
        lambda x, w, b: ops.layer_norm(x, x.shape[-1:], w, b),
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        affine, (2, 3),
    ),
    "rms_norm": Case(
        lambda x, w: ops.rms_norm(x, x.shape[-1:], w),
        lambda x, w: F.rms_norm(x, x.shape[-1:], w),
        scaled, (2, 3),
    ),
    "group_norm": Case(
        lambda x, w, b: ops.group_norm(x, 32, w, b), lambda x, w, b: F.group_norm(x, 32, w, b),
        image, (2, 3),
    ),
    "var_mean": Case(
        lambda x: ops.var_mean(x, -1)[0], lambda x: torch.var_mean(x, -1)[0], one, (1, 2)
    ),
    "normalize": Case(
        lambda x: ops.normalize(x, dim=-1), lambda x: F.normalize(x, dim=-1), one, (2, 3)
    ),
    "cosine_similarity": Case(
        lambda x, y: ops.cosine_similarity(x, y, dim=-1),
        lambda x, y: F.cosine_similarity(x, y, dim=-1),
        two, (2, 4),
    ),
    "cross_entropy": Case(
        lambda x, t: ops.cross_entropy(x, t), lambda x, t: F.cross_entropy(x, t), labelled, (1, 2)
    ),
    "cross_entropy, smoothing and z-loss": Case(
        lambda x, t: ops.cross_entropy(x, t, label_smoothing=0.1, z_loss=1e-4), z_loss,
        labelled, (1, 2),
    ),
    "kl_div": Case(
        lambda p, q: ops.kl_div(p, q, reduction="batchmean", log_target=True),
        lambda p, q: F.kl_div(p, q, reduction="batchmean", log_target=True),
        log_probabilities, (2, 2),
    ),
}  # fmt: skip


def backward(fn: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> Callable:
    """A call of the backward alone."""
    y = fn(*inputs)
    up = torch.randn_like(y)
    wanted = [t for t in inputs if t.requires_grad]
    return lambda: torch.autograd.grad(y, wanted, up, retain_graph=True)


def rows(name: str, shape: tuple[int, int]) -> list[str]:
    """One line forward, one backward."""
    torch._dynamo.reset()
    case = TABLE[name]
    inputs = case.make(*shape)
    size = inputs[0].numel() * inputs[0].element_size()
    fns = (case.ours, case.plain, torch.compile(case.plain, dynamic=False))
    lines = []
    for way, count in zip(("forward", "backward"), case.moved, strict=True):
        with torch.set_grad_enabled(way == "backward"):
            runs = {
                str(k): backward(fn, inputs) if way == "backward" else lambda fn=fn: fn(*inputs)
                for k, fn in enumerate(fns)
            }
            ms = interleaved(runs, inputs[0].device, BUDGET)
        rates = [count * size / ms[n] / 1e6 for n in runs]
        star = "*" * (rates[0] < rates[1])
        text = " | ".join(f"{r:.0f}" for r in rates)
        lines.append(f"| {name} | {way} | {shape[0]}x{shape[1]} | {text} | {star} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    names = sys.argv[2:] or list(TABLE)
    lines = [
        "# Row operations, bf16, GB/s", "",
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}. "
        "`python benchmarks/ops_gpu.py`", "",
        "| op | | shape | fusedreduce | torch | torch.compile | behind torch |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name in names:
        for shape in SHAPES:
            lines += rows(name, shape)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
