"""Dropout on the device: the pairs that PyTorch's integers choose, values given them, graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from tests import printing
from tests.attention import check
from tests.dropout import kept, plain

P = 0.17
LENGTHS = [(1, 1), (3, 799), (113, 203), (128, 217), (256, 512), (1023, 1024), (2048, 2048)]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


def inputs(
    device: torch.device, Sq: int, Sk: int, D: int = 64, dtype: torch.dtype = torch.bfloat16,
    B: int = 2, H: int = 4, Hk: int = 2,
) -> tuple[Tensor, ...]:  # fmt: skip
    shapes = ((B, H, Sq, D), (B, Hk, Sk, D), (B, Hk, Sk, D))
    return tuple(torch.randn(s, device=device).to(dtype).requires_grad_() for s in shapes)


def dropped(q: Tensor, k: Tensor, v: Tensor, seed: Any = 7, **more: Any) -> Tensor:
    out: Tensor = fr.attention(q, k, v, enable_gqa=True, dropout_p=P, rng_seed=seed,
                               impl="triton", **more)  # fmt: skip
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("Sq", "Sk"), [(33, 40), (128, 192), (256, 500), (1, 333)])
def test_the_same_pairs_as_on_a_cpu(
    Sq: int, Sk: int, dtype: torch.dtype, device: torch.device
) -> None:
    q, k = torch.zeros(2, 4, Sq, 64, dtype=dtype), torch.zeros(2, 2, Sk, 64, dtype=dtype)
    for seed in (0, -1, 81985529216486895):
        right = kept(q, k, P, seed, "eager")
        for impl in ("triton", "tiles"):
            assert torch.equal(kept(q.to(device), k.to(device), P, seed, impl).cpu(), right)
    at = {"q_offset": 5, "k_offset": 11}
    piece = kept(q.to(device), k.to(device), P, 7, "triton", **at)
    assert torch.equal(piece.cpu(), kept(q, k, P, 7, "eager", **at))


@pytest.mark.parametrize("p", [0.17, 0.5])
def test_the_fraction_that_is_dropped(p: float, device: torch.device) -> None:
    """FlashAttention's criterion."""
    q = torch.zeros(2, 4, 512, 64, device=device, dtype=torch.bfloat16)
    assert abs((~kept(q, q, p, None, "triton")).float().mean() - p) < 0.01


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize(("Sq", "Sk"), LENGTHS)
def test_forward_and_gradients(
    Sq: int, Sk: int, D: int, causal: bool, device: torch.device
) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        tensors = inputs(device, Sq, Sk, D, dtype)
        keep = kept(*tensors[:2], P, 7, "tiles")
        seen = torch.arange(Sq, device=device)[:, None] >= torch.arange(Sk, device=device)
        check(
            dropped(*tensors, is_causal=causal),
            lambda q, k, v, keep=keep, seen=seen if causal else None: plain(q, k, v, keep, P, seen),
            tensors, (Sq, Sk, D, causal, dtype), saturated=True,
        )  # fmt: skip


def test_bits_repeat(device: torch.device) -> None:
    q, k, v = inputs(device, 1000, 1000)
    runs = []
    for _ in range(3):
        out = dropped(q, k, v)
        runs.append((out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))))
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))


def test_a_graph_draws_at_every_replay(device: torch.device) -> None:
    q, k, v = (t.detach() for t in inputs(device, 256, 256))
    dropped(q, k, v, None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dropped(q, k, v, None)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(out.clone())
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_a_graph_reads_the_seed_it_is_given(device: torch.device) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # all of it: leaves belong to the stream they are made on
        q, k, v = inputs(device, 256, 256)
        seed = torch.tensor([1], device=device)

        def step() -> list[Tensor]:
            out = dropped(q, k, v, seed)
            return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

        step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = step()
        for number in (1, 8):
            seed.fill_(number)
            graph.replay()
            for got, right in zip(made, step(), strict=True):
                assert torch.equal(got, right)


def test_torch_compile(device: torch.device) -> None:
    q, k, v = (t.detach() for t in inputs(device, 256, 256))
    function = torch.compile(lambda q: dropped(q, k, v, None), fullgraph=True)
    assert not torch.equal(function(q), function(q))
