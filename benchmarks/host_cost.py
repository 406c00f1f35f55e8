"""What a call costs on the host, in microseconds: operations beside torch's own, on tiny tensors.

    python benchmarks/host_cost.py [--rounds N] [operation ...]

The numbers are so few that the device's time does not count. On a GPU everything is as it is; on a
machine without one the printed kernels are replaced by functions that do nothing, which leaves out
what Triton and the driver take to launch them, while torch's own operations compute. Medians of
interleaved rounds, all in one process. A backward is torch.autograd.grad on a kept graph.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from fusedreduce import attention, masks, ops
from fusedreduce.run import driver, launch

CALLS = 100  # in a row, of one round
WAYS = ("forward", "forward with a graph", "backward")
Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """An operation of `ops` (with options for its implementation) beside torch's."""

    ours: Callable[..., torch.Tensor]
    plain: Callable[..., torch.Tensor]
    inputs: Callable[[], tuple[torch.Tensor, ...]]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, requires_grad=True)


def labelled() -> tuple[torch.Tensor, ...]:
    return noise(4, 64), torch.randint(0, 64, (4,), device=DEVICE)


def heads() -> tuple[torch.Tensor, ...]:
    return tuple(noise(1, 2, 64, 64).detach().half().requires_grad_() for _ in "qkv")


def image() -> tuple[torch.Tensor, ...]:
    return noise(2, 4, 3, 3), noise(4), noise(4)


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TABLE = {
    "layer_norm": Case(
        lambda x, w, b, **o: ops.layer_norm(x, (64,), w, b, **o),
        lambda x, w, b: F.layer_norm(x, (64,), w, b),
        lambda: (noise(4, 64), noise(64), noise(64)),
    ),
    "rms_norm": Case(
        lambda x, w, **o: ops.rms_norm(x, (64,), w, **o),
        lambda x, w: F.rms_norm(x, (64,), w),
        lambda: (noise(4, 64), noise(64)),
    ),
    "group_norm": Case(
        lambda x, w, b, **o: ops.group_norm(x, 2, w, b, **o),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        image,
    ),
    "softmax": Case(
        lambda x, **o: ops.softmax(x, -1, **o), lambda x: F.softmax(x, -1), lambda: (noise(4, 64),)
    ),
    "cross_entropy": Case(
        lambda x, t, **o: ops.cross_entropy(x, t, **o), F.cross_entropy, labelled
    ),
    "attention": Case(attention, F.scaled_dot_product_attention, heads),
    "causal attention": Case(
        lambda q, k, v, **o: attention(q, k, v, mask=masks.causal, **o),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        heads,
    ),
    "kl_div": Case(
        lambda p, q, **o: ops.kl_div(p, q, reduction="batchmean", log_target=True, **o),
        lambda p, q: F.kl_div(p, q, reduction="batchmean", log_target=True),
        lambda: (noise(4, 64), noise(4, 64).detach()),
    ),
}


# ---- kernels that do nothing -------------------------------------------------------------------


class Nothing:
    """Stands for a kernel, for its build and for its launcher."""

    def __getitem__(self, grid: Any) -> Nothing:
        return self

    def __call__(self, *args: Any, **options: Any) -> Nothing:
        return self


def without_kernels() -> AbstractContextManager[Any]:
    """On a CPU: everything up to the launch happens, the launch does not."""
    if DEVICE.type == "cuda":
        return nullcontext()
    module = lambda kernel: SimpleNamespace(**{kernel.name: Nothing()}, __file__="")
    stack = ExitStack()
    stack.enter_context(patch.object(launch, "load", module))
    stack.enter_context(patch.object(driver, "interpreting", lambda: True))
    return stack


# ---- measuring ---------------------------------------------------------------------------------


def call(fn: Callable[..., torch.Tensor], way: str, inputs: tuple[torch.Tensor, ...]) -> Call:
    if way != "backward":
        return lambda: fn(*inputs)
    y = fn(*inputs)
    up = torch.ones_like(y)
    wanted = [t for t in inputs if t.requires_grad]
    return lambda: torch.autograd.grad(y, wanted, up, retain_graph=True)


def microseconds(calls: tuple[Call, ...], rounds: int) -> list[float]:
    """The median of each, taking turns."""
    for fn in calls:
        for _ in range(CALLS):
            fn()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for fn, found in zip(calls, times, strict=True):
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                fn()
            found.append((time.perf_counter() - start) / CALLS * 1e6)
    return [statistics.median(found) for found in times]


def lines(name: str, rounds: int) -> list[str]:
    case = TABLE[name]
    options = {"impl": "triton"}
    ours = lambda *inputs: case.ours(*inputs, **options)
    answer = []
    for way in WAYS:
        inputs = case.inputs()
        with torch.set_grad_enabled(way != "forward"):
            made = tuple(call(fn, way, inputs) for fn in (case.plain, ours))
            plain, mine = microseconds(made, rounds)
        answer.append(f"| {name} | {way} | {plain:.1f} | {mine:.1f} | {mine - plain:+.1f} |")
        print(answer[-1], flush=True)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("operations", nargs="*", default=list(TABLE))
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    where = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "a CPU, no kernels"
    print("# What a call costs on the host, us\n")
    print(f"{where}, torch {torch.__version__}, Python {platform.python_version()}.")
    print("`python benchmarks/host_cost.py`\n")
    print("| op | | torch | fusedreduce | more |\n|---|---|---|---|---|")
    with without_kernels():
        for name in given.operations:
            lines(name, given.rounds)


if __name__ == "__main__":
    main()
