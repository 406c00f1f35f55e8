"""Sinks on the device, and seeds: against the formula, in CUDA graphs, bits that repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.reductions import LogSumExp, SoftmaxSum
from tests import printing
from tests.attention import causal, check
from tests.pair_checks import split_keys
from tests.sinks import NAMES, joined, plain

INF = float("inf")


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


def inputs(
    device: torch.device, B: int, H: int, Hk: int, Sq: int, Sk: int, D: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """q, k, v and sinks, all differentiable; one sink outweighs every key."""
    shapes = ((B, H, Sq, D), (B, Hk, Sk, D), (B, Hk, Sk, D))
    q, k, v = (torch.randn(s, device=device).to(dtype) for s in shapes)
    sinks = torch.randn(H, device=device)
    sinks[1] = 9.0
    return tuple(t.requires_grad_() for t in (q, k, v, sinks))


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_and_gradients(
    dtype: torch.dtype, is_causal: bool, D: int, device: torch.device
) -> None:
    """Lengths that are no multiples of tiles; queries after the last key."""
    tensors = inputs(device, 2, 4, 2, 333, 271, D, dtype)
    seen = causal(333, 271).to(device) if is_causal else None
    names = NAMES[:2]

    def ours(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        out, more = fr.attention(q, k, v, sinks=sinks, is_causal=is_causal, enable_gqa=True,
                                 aux=("lse",), impl="triton")  # fmt: skip
        return joined({"out": out, **more}, names)

    check(ours(*tensors), lambda *a: joined(plain(*a, seen), names), tensors, (dtype, is_causal))


def test_statistics(device: torch.device) -> None:
    tensors = inputs(device, 1, 4, 4, 200, 300, 64, torch.float32)

    def ours(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        out, more = fr.attention(q, k, v, sinks=sinks, aux=NAMES[1:], impl="triton")
        return joined({"out": out, **more}, NAMES)

    check(ours(*tensors), lambda *a: joined(plain(*a), NAMES), tensors)


@pytest.mark.parametrize("n", [1, 4, 64])
@pytest.mark.parametrize("queries", [1, 4])
def test_split_keys(queries: int, n: int, device: torch.device) -> None:
    """The first part has the sink, once; of one query a head, heads are rows."""
    q, k, v, sinks = inputs(device, 2, 8, 2, queries, 1300, 128, torch.bfloat16)
    with split_keys(n):
        out, more = fr.attention(q, k, v, sinks=sinks, enable_gqa=True, aux=("lse",), impl="triton")
    right = plain(*(t.detach().double() for t in (q, k, v, sinks)))
    torch.testing.assert_close(out.double(), right["out"], rtol=0.02, atol=0.02)
    torch.testing.assert_close(more["lse"].double(), right["lse"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_infinite_sinks_and_nan(dtype: torch.dtype, device: torch.device) -> None:
    q, k, v, _ = (t.detach() for t in inputs(device, 1, 4, 4, 200, 200, 64, dtype))
    odd = torch.tensor([INF, float("nan"), -INF, -1e30], device=device)
    mask = fr.mask(lambda b, h, i, j: (i % 5 != 3) & (j <= i))
    answers = [fr.attention(q, k, v, sinks=odd, mask=mask, aux=("lse",), impl=impl)
               for impl in ("triton", "eager")]  # fmt: skip
    (out, more), (right, others) = answers
    assert (out[:, 0] == 0).all()
    assert (more["lse"][:, 0] == INF).all()
    torch.testing.assert_close(out, right, equal_nan=True, rtol=0.02, atol=0.02)
    torch.testing.assert_close(more, others, equal_nan=True, rtol=1e-3, atol=1e-3)


def test_bits_repeat(device: torch.device) -> None:
    tensors = inputs(device, 2, 4, 2, 600, 600, 64, torch.bfloat16)
    up = torch.randn(2, 4, 600, 64, device=device, dtype=torch.bfloat16)
    answers = []
    for _ in range(3):
        out = fr.attention(*tensors[:3], sinks=tensors[3], is_causal=True, enable_gqa=True)
        answers.append([out, *torch.autograd.grad(out, tensors, up)])
    for again in answers[1:]:
        assert all(map(torch.equal, answers[0], again))


# ---- captured ------------------------------------------------------------------------------------


def replayed(make: Callable[[], tuple[Callable[[], list[Tensor]], list[Tensor]]]) -> None:
    """What is run in a graph is what is run outside of it, for other numbers in the same tensors.

    make   answers what is run, and the tensors it reads; all on the stream of the capture
    """
    torch.use_deterministic_algorithms(False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # all of it: leaves belong to the stream they are made on
        run, tensors = make()
        for _ in range(3):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = run()
        for _ in range(2):
            with torch.no_grad():
                for t in tensors:
                    t.normal_()
            graph.replay()
            assert all(map(torch.equal, made, run()))


@pytest.mark.parametrize("names", [(), ("lse", "entropy", "max_logit")], ids=len)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sinks_in_a_graph(dtype: torch.dtype, names: tuple[str, ...], device: Any) -> None:
    """Forward and backward: nothing is copied from the CPU."""

    def make() -> tuple[Callable[[], list[Tensor]], list[Tensor]]:
        tensors = inputs(device, 2, 4, 2, 300, 300, 64, dtype)
        up = torch.randn(2, 4, 300, 64, device=device).to(dtype)

        def run() -> list[Tensor]:
            found = fr.attention(*tensors[:3], sinks=tensors[3], is_causal=True, enable_gqa=True,
                                 aux=names, impl="triton")  # fmt: skip
            out, more = found if names else (found, {})
            loss = (out * up).sum() + sum(t.sum() for t in more.values())
            return [out, *more.values(), *torch.autograd.grad(loss, tensors)]

        return run, [*tensors, up]

    replayed(make)


def test_sinks_of_split_keys_in_a_graph(device: torch.device) -> None:
    def make() -> tuple[Callable[[], list[Tensor]], list[Tensor]]:
        tensors = [t.detach() for t in inputs(device, 2, 8, 2, 1, 8192, 128, torch.bfloat16)]
        run = lambda: [fr.attention(*tensors[:3], sinks=tensors[3], enable_gqa=True, impl="triton")]
        return run, tensors

    replayed(make)


def test_a_seed_of_pairs_in_a_graph(device: torch.device) -> None:
    """The state of some keys goes on with others, and what sees nothing is filled in there."""
    mask = fr.mask(lambda b, h, i, j: (i % 5 != 3) & (j <= i))

    def make() -> tuple[Callable[[], list[Tensor]], list[Tensor]]:
        q, k, v, _ = (t.detach() for t in inputs(device, 1, 2, 2, 100, 100, 64, torch.float32))

        def run() -> list[Tensor]:
            _, seed = fr.pairwise(SoftmaxSum, q, k[:, :, :40], v=v[:, :, :40], mask=mask,
                                  return_state=True, impl="triton")  # fmt: skip
            found = fr.pairwise(SoftmaxSum, q, k[:, :, 40:], v=v[:, :, 40:], mask=mask, k_offset=40,
                                seed=seed, impl="triton")  # fmt: skip
            return [*found.values()]

        return run, [q, k, v]

    replayed(make)


def test_a_seed_of_rows_in_a_graph(device: torch.device) -> None:
    def make() -> tuple[Callable[[], list[Tensor]], list[Tensor]]:
        x, y = (torch.randn(64, 1000, device=device) for _ in range(2))

        def run() -> list[Tensor]:
            _, seed = fr.reduce(LogSumExp, x, return_state=True, impl="triton")
            return [fr.reduce(LogSumExp, y, seed=seed, impl="triton")]

        return run, [x, y]

    replayed(make)
