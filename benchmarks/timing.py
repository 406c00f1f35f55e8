"""What the benchmarks of attention share: interleaved medians, and result pages that grow."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fusedreduce.run.driver import triton_version

Call = Callable[[], object]
CACHE = 256 << 20  # bytes: more than the L2 cache of any GPU, written before each call
AHEAD = 10  # times it is written before a round: half a millisecond or more
WARM_UP, LEAST, MOST = 3, 5, 60  # rounds
ROUNDS = "Times are medians of interleaved rounds in one process: each runs once in every round"
HOW = {
    "cuda": f"{ROUNDS}, with an L2 cache that was overwritten, between two CUDA events; plain "
    "calls to a device that is at work: host time shows where it is longer than what runs on the "
    "device, unless a table says CUDA graphs.",
    "cpu": f"{ROUNDS}; wall-clock time on the CPU: a check, no measurement.",
}


def interleaved(calls: Mapping[str, Call], device: torch.device, budget_ms: float) -> dict:
    """Median milliseconds of each call; every round runs each of them once, in order.

    budget_ms   about how long one implementation is measured
    """
    once = _on_gpu if device.type == "cuda" else _on_cpu
    warm = [once(calls) for _ in range(WARM_UP)][-1]
    slowest = max([*warm.values(), 1e-3])
    rounds = min(max(int(budget_ms / slowest), LEAST), MOST)
    taken = [once(calls) for _ in range(rounds)]
    return {n: statistics.median(t[n] for t in taken) for n in calls}


def replayed(call: Call, device: torch.device) -> Call:
    """The call as the replay of a CUDA graph, captured on the stream it runs on now.

    What it takes on the host does not count. What it reads and makes lives as long as the replay.
    """
    if device.type != "cuda":
        return call
    for _ in range(WARM_UP):
        call()
    stream = torch.cuda.current_stream()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = call()

    def replay(held: object = (call, made)) -> object:
        graph.replay()
        return held

    return replay


def _on_gpu(calls: Mapping[str, Call]) -> dict[str, float]:
    cache = torch.empty(CACHE, dtype=torch.int8, device="cuda")
    events = {}
    for _ in range(AHEAD):  # the first call finds the device at work, as the others do
        cache.zero_()
    for name, call in calls.items():
        cache.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        events[name] = start, end
    torch.cuda.synchronize()
    return {n: start.elapsed_time(end) for n, (start, end) in events.items()}


def _on_cpu(calls: Mapping[str, Call]) -> dict[str, float]:
    found = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        found[name] = 1e3 * (time.perf_counter() - start)
    return found


def machine(device: torch.device) -> str:
    """Machine and versions in one line."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    versions = f"torch {torch.__version__}, Triton {triton_version()}"
    if device.type == "cuda":
        versions += f", cuDNN {torch.backends.cudnn.version()}"
    return f"{name}; {versions}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"


@dataclass
class Page:
    """A Markdown page that is on disk after every row, so that what was measured is kept."""

    path: Path | None
    lines: list[str] = field(default_factory=list)

    @staticmethod
    def started(path: str | None, title: str, device: torch.device, notes: Sequence[str]) -> Page:
        """A new page, or the page that is there with more parts."""
        page = Page(None if path is None else Path(path))
        if page.path is not None and page.path.exists():
            page.lines = page.path.read_text(encoding="utf-8").splitlines()
        else:
            page.say(f"# {title}", "", f"{machine(device)}.", HOW[device.type], *notes)
        command = " ".join(["python", *sys.argv])
        page.say("", f"`{command}`")
        return page

    def say(self, *lines: str) -> None:
        for line in lines:
            print(line, flush=True)
            self.lines.append(line)
        if self.path is not None:
            self.path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def table(self, title: str, heads: Sequence[str]) -> None:
        self.say("", f"## {title}", "", row(heads), row(["---"] * len(heads)))

    def row(self, *cells: str) -> None:
        self.say(row(cells))


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
