"""One case of attention by every implementation: those that are right are timed, interleaved."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from attention_peers import OURS, Case, Right, implementations, laid_out_for, slices
from timing import Page, interleaved, replayed
from torch import Tensor


@dataclass
class Session:
    """What the parts share: the device, the page, how long to measure; what was found wrong."""

    device: torch.device
    page: Page
    budget: float
    peers: str
    graphs: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return list(implementations(self.device, self.peers))


@dataclass(frozen=True)
class Times:
    """Milliseconds by implementation, and why the others have none."""

    ms: dict[str, float]
    failed: dict[str, str]

    def cell(self, name: str, work: float) -> str:
        """Work / s in units of 1e12 (TFLOP/s), or the reason."""
        if name in self.failed:
            return self.failed[name]
        return f"{work / self.ms[name] / 1e9:.3g}" if work else f"{self.ms[name]:.3f} ms"


def measured(
    s: Session, case: Case, backward: bool, peers: str | None = None, graphs: bool = False
) -> Times:
    """Every implementation, those that are right, interleaved; as replays of CUDA graphs."""
    graphs = s.device.type == "cuda" and (graphs or s.graphs)
    with torch.cuda.stream(torch.cuda.Stream()) if graphs else nullcontext():
        return on_this_stream(s, case, backward, peers, graphs)


def on_this_stream(
    s: Session, case: Case, backward: bool, peers: str | None, graphs: bool
) -> Times:
    inputs = case.inputs(s.device, backward)
    up = torch.randn_like(inputs[0]) if backward else None
    right = Right.of(case, inputs, up)
    calls: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    for name, make in implementations(s.device, s.peers if peers is None else peers).items():
        try:
            call, found = prepared(case, name, make, inputs, up, s.device)
            told = right.complaint(found)
            call = replayed(call, s.device) if graphs and not told else call
        except Exception as reason:  # a peer that cannot is told in its cell; ours never hides
            told = f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0][:60]}"
        if not told:
            calls[name] = call
            continue
        failed[name] = told.replace("|", "/")
        if name == OURS:
            s.wrong.append(f"{case.name} {'backward' if backward else 'forward'}: {told}")
    ms = interleaved(calls, s.device, s.budget)
    del inputs, calls
    released(s.device)
    return Times(ms, failed)


def prepared(
    case: Case, name: str, make: Callable, inputs: Sequence[Tensor], up: Tensor | None,
    device: torch.device,
) -> tuple[Callable[[], object], tuple[Tensor, ...]]:  # fmt: skip
    """What is timed, and one head of its results."""
    function = make(case, device)
    given = [laid_out_for(name, t) for t in inputs]
    if up is None:
        with torch.no_grad():
            out = function(*given)
        return inference(function, given), (slices(case, out, out, out)[0],)
    out, up = function(*given), laid_out_for(name, up)
    grads = torch.autograd.grad(out, given, up, retain_graph=True)
    found = slices(case, out.detach(), out, out)[0], *slices(case, *grads)
    return lambda: torch.autograd.grad(out, given, up, retain_graph=True), found


def inference(function: Callable, given: Sequence[Tensor]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return function(*given)

    return run


def released(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
