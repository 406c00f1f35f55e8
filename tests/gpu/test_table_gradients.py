"""Gradients of captured tensors by printed kernels on the device: values, bits, graphs.

Sums of a million terms of both signs: beside the accuracy rule one rounding of all of them is
granted, of which float64 tells the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.run import pair_gradients
from tests import printing
from tests.accuracy import require_near
from tests.attention import plain

B, H, HK, SQ, SK = 2, 6, 2, 777, 1001


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


@pytest.fixture
def no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise AssertionError("a gradient was left to the tiles")

    monkeypatch.setattr(pair_gradients, "backward", refused)


@dataclass(frozen=True)
class Learned:
    """A tensor of this shape; what a score is with it, for our calls and for whole tensors.

    size   |d score / d the tensor| beside |d loss / d score|, as (Sq, Sk) or a number
    """

    shape: tuple[int, ...]
    score: Callable[[Tensor], Callable[..., Any]]
    whole: Callable[[Tensor, Tensor], Tensor]  # of scores and the tensor
    size: Callable[[Tensor], Any] = lambda apart: 1.0


def between(device: torch.device) -> Tensor:
    return torch.arange(SQ, device=device)[:, None] - torch.arange(SK, device=device)


def apart(device: torch.device) -> Tensor:
    return between(device).abs()


KINDS = {
    "slope of a head": Learned(
        (H,), lambda t: lambda s, b, h, i, j: s - t[h] * torch.abs(i - j),
        lambda x, t: x - t[:, None, None] * apart(x.device), lambda d: d.double(),
    ),
    "bias of a key": Learned(
        (B, SK), lambda t: lambda s, b, h, i, j: s + t[b, j], lambda x, t: x + t[:, None, None],
    ),
    "bias of a key and head": Learned(
        (H, SK), lambda t: lambda s, b, h, i, j: s + t[h, j], lambda x, t: x + t[:, None],
    ),
    "bias of a query": Learned(  # its gradient is 0 but for rounding: softmax does not see it
        (B, H, SQ), lambda t: lambda s, b, h, i, j: s + t[b, h, i], lambda x, t: x + t[..., None],
    ),
    "blocks of keys": Learned(
        (H, 40), lambda t: lambda s, b, h, i, j: s + t[h, j // 32],
        lambda x, t: x + t[:, torch.arange(SK, device=x.device) // 32][:, None],
    ),
    "bias of a head": Learned(
        (H, SQ, SK), lambda t: lambda s, b, h, i, j: s + t[h, i, j], lambda x, t: x + t,
    ),
    "bias of a batch": Learned(
        (B, SQ, SK), lambda t: lambda s, b, h, i, j: s + t[b, i, j], lambda x, t: x + t[:, None],
    ),
    "bias of all": Learned(
        (B, H, SQ, SK), lambda t: lambda s, b, h, i, j: s + t[b, h, i, j], lambda x, t: x + t,
    ),
    "distance": Learned(
        (SQ + SK, H), lambda t: lambda s, b, h, i, j: s + t[i - j, h],
        lambda x, t: x + t.t()[:, between(x.device)],
    ),
    "far is far": Learned(
        (H, 32), lambda t: lambda s, b, h, i, j: s + t[h, torch.clamp(i - j, 0, 31)],
        lambda x, t: x + t[:, between(x.device).clamp(0, 31)],
    ),
}  # fmt: skip


def inputs(dtype: torch.dtype, device: torch.device, D: int = 64) -> tuple[Tensor, ...]:
    shapes = ((B, H, SQ, D), (B, HK, SK, D), (B, HK, SK, D))
    return tuple(torch.randn(s, device=device).to(dtype).requires_grad_() for s in shapes)


def masks(device: torch.device) -> dict[str, tuple[Any, Tensor | None]]:
    i, j = torch.arange(SQ, device=device)[:, None], torch.arange(SK, device=device)
    ids = torch.arange(max(SQ, SK), device=device) // 100
    return {
        "full": (None, None),
        "causal": (fr.masks.causal, i >= j),
        "documents": (fr.masks.document(ids), ids[i] == ids[j]),
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("mask", ["full", "causal", "documents"])
@pytest.mark.parametrize("kind", KINDS)
def test_values(kind: str, mask: str, dtype: torch.dtype, device: torch.device, no_tiles) -> None:
    learned, (given, seen) = KINDS[kind], masks(device)[mask]
    table = (0.1 * torch.randn(learned.shape, device=device)).requires_grad_()
    tensors = (*inputs(dtype, device), table)
    out = fr.attention(*tensors[:3], score_mod=learned.score(table), mask=given, enable_gqa=True,
                       impl="triton")  # fmt: skip
    up = torch.randn_like(out)
    found = torch.autograd.grad(out, tensors, up)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    every = torch.zeros(B, H, SQ, SK, dtype=torch.float64, device=device, requires_grad=True)

    def right(q: Tensor, k: Tensor, v: Tensor, t: Tensor, more: Any = 0.0) -> Tensor:
        return plain(q, k, v, seen, lambda x: learned.whole(x, t.to(x.dtype)) + more)["out"]

    *exact, of_scores = torch.autograd.grad(right(*wide, every), [*wide, every], up.double())
    rough = torch.autograd.grad(right(*tensors), tensors, up)
    for n, triple in enumerate(zip(found[:3], exact[:3], rough[:3], strict=True)):
        require_near(*triple, 3, (kind, f"gradient {n}"))
    shape = torch.zeros(learned.shape, dtype=torch.float64, device=device, requires_grad=True)
    terms = of_scores.abs() * learned.size(apart(device))
    nothing = torch.zeros((), dtype=torch.float64, device=device)
    (sizes,) = torch.autograd.grad(learned.whole(nothing, shape).expand(B, H, SQ, SK), shape, terms)
    noise = 2 * torch.finfo(torch.float32).eps * float(sizes.abs().max())
    require_near(found[3], exact[3], rough[3], 3, (kind, "the table"), noise)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["causal", "documents"])
def test_bits_repeat(mask: str, kind: str, device: torch.device, no_tiles: None) -> None:
    learned, (given, _) = KINDS[kind], masks(device)[mask]
    table = torch.randn(learned.shape, device=device, requires_grad=True)
    tensors = (*inputs(torch.bfloat16, device, 128), table)
    up = torch.randn(B, H, SQ, 128, device=device, dtype=torch.bfloat16)

    def run() -> tuple[Tensor, ...]:
        out = fr.attention(*tensors[:3], score_mod=learned.score(table), mask=given,
                           enable_gqa=True, impl="triton")  # fmt: skip
        return torch.autograd.grad(out, tensors, up)

    first, kept = run(), []
    for n in range(20):
        kept.append(torch.empty(1000 * (n % 7) + 1, device=device))
        assert all(map(torch.equal, first, run()))


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_agree(kind: str, device: torch.device) -> None:
    learned = KINDS[kind]
    table = (0.1 * torch.randn(learned.shape, device=device)).requires_grad_()
    tensors = (*inputs(torch.float32, device), table)
    up = torch.randn(B, H, SQ, 64, device=device)
    answers = []
    for impl in ("triton", "tiles"):
        out = fr.attention(*tensors[:3], score_mod=learned.score(table), is_causal=True,
                           enable_gqa=True, impl=impl)  # fmt: skip
        answers.append(torch.autograd.grad(out, tensors, up))
    size = 2e-5 * max(1.0, float(learned.size(torch.tensor(float(max(SQ, SK))))))
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=20 * size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_slopes_keep_their_digits(dtype: torch.dtype, device: torch.device) -> None:
    """What rounding did to <d out, out> is not added up over 8 million pairs by their distance.

    What is left is the rounding of scores in float32; with a rounded out it was 0.5.
    """
    S = 4096
    q, k, v, up = (torch.randn(1, 2, S, 64, device=device).to(dtype) for _ in range(4))
    slopes = (0.1 * torch.randn(2, device=device)).requires_grad_()
    out = fr.attention(q, k, v, is_causal=True, impl="triton",
                       score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j))  # fmt: skip
    (found,) = torch.autograd.grad(out, slopes, up)
    wide = slopes.detach().double().requires_grad_()
    j = torch.arange(S, device=device)
    by = lambda x: x - wide[:, None, None] * (j[:, None] - j)
    exact = plain(*(t.double() for t in (q, k, v)), j[:, None] >= j, by)["out"]
    (right,) = torch.autograd.grad(exact, wide, up.double())
    assert float((found - right).abs().max()) <= 2e-2 * float(right.abs().max())


@pytest.mark.parametrize(
    "kind", ["slope of a head", "blocks of keys", "bias of a head", "distance"]
)
def test_graph_replay(kind: str, device: torch.device, no_tiles: None) -> None:
    """A captured backward waits for nothing, and reads the tensor as it is at the replay."""
    learned = KINDS[kind]
    torch.use_deterministic_algorithms(False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # all of it: leaves belong to the stream they are made on
        table = torch.randn(learned.shape, device=device, requires_grad=True)
        tensors = (*inputs(torch.bfloat16, device), table)
        up = torch.randn(B, H, SQ, 64, device=device, dtype=torch.bfloat16)
        score = fr.score(learned.score(table))

        def run() -> tuple[Tensor, ...]:
            out = fr.attention(*tensors[:3], score_mod=score, is_causal=True, enable_gqa=True,
                               impl="triton")  # fmt: skip
            return torch.autograd.grad(out, tensors, up)

        for _ in range(2):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = run()
        for _ in range(2):
            with torch.no_grad():
                for t in (*tensors, up):
                    t.normal_()
            graph.replay()
            assert all(map(torch.equal, made, run()))
