"""What softcap, biases, learned tables, sinks and dropout cost: causal attention with each of them.

    python benchmarks/attention_features_gpu.py [--results FILE] [--only TEXT,...] [--budget MS]
        [--check]

Each feature is timed forward and backward beside attention without it (times its time) and beside
the one peer that can do it without storing scores: compiled FlexAttention (dynamic=False; sinks by
its lse), SDPA flash for dropout. Learned tensors get their gradients, by ours in a fixed order, by
FlexAttention with atomic adds. Before it is timed each is compared on the first head with the plain
formula in float32, dropout with the same pairs dropped; SDPA draws others and is not compared.
--check is tiny, on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch._functorch.config
import torch.nn.functional as F
from attention_peers import EPS, error, exact
from attention_times import released
from timing import Page, interleaved
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import fusedreduce as fr

Attend = Callable[..., Tensor]
Score = Callable[..., Callable[..., Tensor]]
HEADS = ("feature", "peer", "forward ms", "/ without", "peer's forward ms", "backward ms",
         "/ without", "peer's backward ms")  # fmt: skip
DROPPED, CAP = 0.1, 30.0


@dataclass(frozen=True)
class Feature:
    """An option of attention by ours and by a peer.

    learned   the shape of a float32 tensor with heads first (None: none), by H and S
    plain     the formula, every score stored, in the dtype of q
    """

    name: str
    ours: Attend
    peer: str
    theirs: Attend
    plain: Attend
    learned: Callable[[int, int], tuple[int, ...]] | None = None


def scored(name: str, score: Score, learned: Callable | None = None) -> Feature:
    """A score function, written once for both libraries: score(t...) is FlexAttention's."""

    def ours(q: Tensor, k: Tensor, v: Tensor, *t: Tensor) -> Tensor:
        return fr.attention(q, k, v, is_causal=True, score_mod=score(*t))

    def theirs(q: Tensor, k: Tensor, v: Tensor, *t: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=score(*t), block_mask=causal_blocks(q))

    def plain(q: Tensor, k: Tensor, v: Tensor, *t: Tensor) -> Tensor:
        b, h, i, j = indices(q)
        scores = score(*t)(causal_scores(q, k, False), b, h, i, j).to(q.dtype)
        return scores.masked_fill(i < j, float("-inf")).softmax(-1) @ v

    return Feature(name, ours, "FlexAttention", theirs, plain, learned)


def indices(q: Tensor) -> list[Tensor]:
    """b, h, i, j along the dimensions of the scores."""
    sizes = (*q.shape[:3], q.shape[2])
    return [torch.arange(n, device=q.device).reshape([-1 if d == k else 1 for d in range(4)])
            for k, n in enumerate(sizes)]  # fmt: skip


def causal_scores(q: Tensor, k: Tensor, masked: bool = True) -> Tensor:
    _, _, i, j = indices(q)
    scores = q @ k.mT / q.shape[3] ** 0.5
    return scores.masked_fill(i < j, float("-inf")) if masked else scores


@lru_cache(maxsize=1)
def blocks_of(queries: int, device: torch.device) -> BlockMask:
    return create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, queries, device=device)


def causal_blocks(q: Tensor) -> BlockMask:
    return blocks_of(q.shape[2], q.device)


def softcap() -> Callable[..., Tensor]:
    return lambda s, b, h, i, j: CAP * torch.tanh(s / CAP)


def per_head(slope: Tensor) -> Callable[..., Tensor]:
    return lambda s, b, h, i, j: s - slope[h] * (i - j)


def per_key(bias: Tensor) -> Callable[..., Tensor]:
    return lambda s, b, h, i, j: s + bias[h, j]


def per_distance(table: Tensor) -> Callable[..., Tensor]:
    middle = table.shape[1] // 2
    return lambda s, b, h, i, j: s + table[h, i - j + middle]


def sinks_ours(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    return fr.attention(q, k, v, is_causal=True, sinks=sinks)


def sinks_flex(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """p of keys and a sink is p of the keys alone times sigmoid(lse - sink)."""
    out, lse = flex_attention(q, k, v, block_mask=causal_blocks(q), return_lse=True)
    return out * torch.sigmoid(lse - sinks[:, None])[..., None].to(out.dtype)


def sinks_plain(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = causal_scores(q, k)
    sink = sinks.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v


def dropout_ours(q: Tensor, k: Tensor, v: Tensor, **more: object) -> Tensor:
    return fr.attention(q, k, v, is_causal=True, dropout_p=DROPPED, rng_seed=7, **more)


def dropout_plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The pairs that ours drops."""
    return dropout_ours(q, k, v, impl="eager")


def dropout_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=DROPPED)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=DROPPED)


FEATURES = (
    scored("causal alone", lambda: lambda s, b, h, i, j: s),
    scored("softcap", softcap),
    scored("learned slope a head", per_head, lambda H, S: (H,)),
    scored("learned bias of keys", per_key, lambda H, S: (H, S)),
    scored("learned bias of distances", per_distance, lambda H, S: (H, 2 * S - 1)),
    Feature(
        "learned sinks", sinks_ours, "FlexAttention", sinks_flex, sinks_plain, lambda H, S: (H,)
    ),
    Feature("dropout", dropout_ours, "SDPA flash", dropout_sdpa, dropout_plain),
)


def inputs_of(f: Feature, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """q, k, v in bfloat16, and what is learned."""
    found = tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in "qkv")
    if f.learned is not None:
        found += (0.1 * torch.randn(f.learned(shape[1], shape[2]), device=device),)
    return tuple(t.requires_grad_() for t in found)


def first_head(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Of q, k, v: (B, 1, S, D); of what is learned: the row of the first head."""
    return [t[:, :1] if t.dim() == 4 else t[:1] for t in tensors]


def results(fn: Attend, inputs: tuple[Tensor, ...], up: Tensor) -> list[Tensor]:
    """out and the gradients, of the first head."""
    out = fn(*inputs)
    grads = torch.autograd.grad(out, inputs, up.to(out.dtype))
    return first_head((out.detach(), *grads[:3])) + first_head(grads[3:])


def right(f: Feature, inputs: tuple[Tensor, ...], up: Tensor) -> Callable[[Attend], str]:
    """Tells what is off by more than 2 (gradients: 3) times the plain formula in bfloat16."""
    head = [t.detach() for t in first_head(inputs)]

    def plain(dtype: torch.dtype) -> list[Tensor]:
        given = tuple((t.to(dtype) if t.dim() == 4 else t).requires_grad_() for t in head)
        with exact():
            return results(f.plain, given, first_head((up,))[0])

    single, half = plain(torch.float32), plain(torch.bfloat16)

    def complaint(fn: Attend) -> str:
        told = []
        names = ("out", "dq", "dk", "dv", "d learned")
        for n, came, value, other in zip(
            names, results(fn, inputs, up), single, half, strict=False
        ):
            allowed = (2 if n == "out" else 3) * error(other, value) + EPS
            if not error(came, value) <= allowed:
                told.append(f"{n} off by {error(came, value):.1e}, allowed {allowed:.1e}")
        return "; ".join(told)

    return complaint


def implementations(f: Feature, device: torch.device) -> dict[str, Attend]:
    """Ours and the peer; FlexAttention has no backward on a CPU."""
    if f.peer != "FlexAttention":
        return {"ours": f.ours, "peer": f.theirs}
    if device.type == "cpu":
        return {"ours": f.ours}
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # a backward of it is run again and again
    return {"ours": f.ours, "peer": torch.compile(f.theirs, dynamic=False)}


def compare(page: Page, f: Feature, shape: tuple[int, ...], budget: float, device: torch.device,
            alone: dict[str, float]) -> list[str]:  # fmt: skip
    """One row, and what is wrong; `alone` has the times of the first feature."""
    inputs = inputs_of(f, shape, device)
    up = torch.randn_like(inputs[0])
    complaint = right(f, inputs, up)
    wrong, failed, runs = [], "-", {}
    for name, fn in implementations(f, device).items():
        try:
            told = complaint(fn) if name == "ours" or f.peer == "FlexAttention" else ""
            out = fn(*inputs)
            torch.autograd.grad(out, inputs, up, retain_graph=True)
        except Exception as reason:  # a peer that cannot is told in its cell; ours never hides
            if name == "ours":
                raise
            failed = type(reason).__name__
            continue
        wrong += [f"{f.name}, {name}: {told}"] * bool(told)
        runs[name] = fn, out
    back = interleaved(
        {n: lambda y=y: torch.autograd.grad(y, inputs, up, retain_graph=True)
         for n, (_, y) in runs.items()}, device, budget,
    )  # fmt: skip
    with torch.no_grad():
        calls = {n: lambda fn=fn: fn(*inputs) for n, (fn, _) in runs.items()}
        ahead = interleaved(calls, device, budget)
    cells = []
    for way, ms in (("forward", ahead), ("backward", back)):
        part = ms["ours"] / alone.setdefault(way, ms["ours"])
        peer = f"{ms['peer']:.3f}" if "peer" in ms else failed
        cells += [f"{ms['ours']:.3f}", f"{part:.2f}", peer]
    page.row(f.name, f.peer, *cells)
    del runs
    released(device)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", metavar="FILE", help="written, or continued")
    parser.add_argument("--only", default="", help="parts of the names of features")
    parser.add_argument("--budget", type=float, default=30.0, help="ms an implementation")
    parser.add_argument("--check", action="store_true", help="tiny, on the CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.check else "cuda")
    torch.manual_seed(0)
    shape = (1, 2, 130, 16) if options.check else (2, 16, 4096, 128)
    B, H, S, D = shape
    notes = [" ".join(__doc__.split("\n\n")[2].split())]
    page = Page.started(options.results, "Features of attention, bfloat16", device, notes)
    page.table(f"B{B} H{H} S{S} D{D} causal", HEADS)
    texts = [t.strip() for t in options.only.split(",") if t.strip()]
    budget = 1.0 if options.check else options.budget
    wrong: list[str] = []
    alone: dict[str, float] = {}
    for f in FEATURES:
        if f is FEATURES[0] or not texts or any(t in f.name for t in texts):
            wrong += compare(page, f, shape, budget, device, alone)
    for told in wrong:
        print(f"WRONG: {told}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
