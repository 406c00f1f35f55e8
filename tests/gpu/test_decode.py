"""Few queries and many keys on the device: keys split over programs, states merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from tests import printing
from tests.accuracy import require_near
from tests.attention import plain
from tests.pair_checks import split_keys

HALF = (torch.bfloat16, torch.float16)
SHAPES = [  # B, H, Hk, Sq, Sk, D
    (1, 32, 8, 1, 8192, 128), (1, 8, 8, 1, 4097, 64), (2, 8, 1, 1, 20000, 128),
    (1, 1, 1, 1, 131072, 64), (8, 16, 2, 1, 8192, 128), (1, 4, 4, 5, 5000, 80),
    (3, 4, 2, 16, 3001, 128), (1, 2, 2, 200, 3000, 64), (32, 32, 8, 1, 2048, 128),
]  # fmt: skip
KINDS = ("full", "causal", "window", "lengths", "documents", "softcap", "alibi")


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


def inputs(
    device: torch.device, B: int, H: int, Hk: int, Sq: int, Sk: int, D: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(s, device=device).to(dtype)
               for s in ((B, H, Sq, D), (B, Hk, Sk, D), (B, Hk, Sk, D)))  # fmt: skip
    return q, k, v


def kind_of(kind: str, B: int, H: int, Sq: int, Sk: int, device: torch.device) -> tuple[Any, ...]:
    """(arguments, who sees whom, the score) of one kind; the queries are the last positions."""
    first = Sk - Sq
    i, j = torch.arange(Sq, device=device)[:, None] + first, torch.arange(Sk, device=device)
    lengths = (torch.arange(B, device=device) * 1237 + (B == 1) * Sk // 2) % Sk  # 0 of several
    ids = j // 700
    slopes = 2.0 ** -torch.arange(1, H + 1, device=device)
    at = {"q_offset": first}
    return {
        "full": ({}, None, None),
        "causal": ({"mask": fr.masks.causal} | at, i >= j, None),
        "window": ({"mask": fr.masks.window(900, 0)} | at, (i >= j) & (i - j <= 900), None),
        "lengths": (
            {"mask": fr.mask(lambda b, h, i, j: j < lengths[b])},
            (j < lengths[:, None])[:, None, None], None,
        ),
        "documents": (
            {"mask": fr.mask(lambda b, h, i, j: ids[i + first] == ids[j])}, ids[i] == ids[j], None,
        ),
        "softcap": (
            {"score_mod": lambda s, b, h, i, j: 15.0 * torch.tanh(s / 15.0)}, None,
            lambda x: 15.0 * torch.tanh(x / 15.0),
        ),
        "alibi": (
            {"score_mod": lambda s, b, h, i, j: s + slopes[h] * (j - i)} | at, None,
            lambda x: x + slopes.to(x)[:, None, None] * (j - i),
        ),
    }[kind]  # fmt: skip


def is_split(tensors: tuple[Tensor, ...], arguments: dict[str, Any]) -> bool:
    return "split over" in fr.explain(fr.attention, *tensors, enable_gqa=True, **arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(shape: tuple[int, ...], kind: str, device: torch.device) -> None:
    """out and lse beside float64, by the accuracy rule."""
    B, H, _, Sq, Sk, _ = shape
    arguments, seen, score = kind_of(kind, B, H, Sq, Sk, device)
    for dtype in HALF:
        tensors = inputs(device, *shape, dtype)
        assert is_split(tensors, arguments) == (Sq <= 64)
        out, more = fr.attention(*tensors, enable_gqa=True, aux=("lse",), impl="triton",
                                 **arguments)  # fmt: skip
        right = plain(*(t.double() for t in tensors), seen, score)
        rough = plain(*tensors, seen, score)
        require_near(out, right["out"], rough["out"].to(dtype), 2, (kind, dtype))
        require_near(more["lse"], right["lse"], rough["lse"].float(), 2, (kind, dtype, "lse"))


@pytest.mark.parametrize("shape", SHAPES[:7], ids=str)
def test_float32(shape: tuple[int, ...], device: torch.device) -> None:
    tensors = inputs(device, *shape, torch.float32)
    out = fr.attention(*tensors, enable_gqa=True, impl="triton")
    right = plain(*(t.double() for t in tensors))["out"]
    require_near(out, right, plain(*tensors)["out"], 2)


@pytest.mark.parametrize("kind", ["full", "window", "lengths"])
@pytest.mark.parametrize("shape", SHAPES[:7], ids=str)
def test_bits_repeat(shape: tuple[int, ...], kind: str, device: torch.device) -> None:
    """out, lse and entropy of 30 runs, at other addresses each."""
    B, H, _, Sq, Sk, _ = shape
    tensors = inputs(device, *shape, torch.bfloat16)
    arguments, *_ = kind_of(kind, B, H, Sq, Sk, device)

    def run() -> list[Tensor]:
        out, more = fr.attention(*tensors, enable_gqa=True, aux=("lse", "entropy"),
                                 impl="triton", **arguments)  # fmt: skip
        return [out, *more.values()]

    first, kept = run(), []
    for n in range(30):
        kept.append(torch.empty(1000 * (n % 7) + 1, device=device))
        assert all(map(torch.equal, first, run()))


@pytest.mark.parametrize("R", [fr.reductions.LogSumExp, fr.reductions.Welford,
                               fr.reductions.SoftmaxEntropy], ids=lambda R: R.__name__)  # fmt: skip
def test_other_declarations(R: Any, device: torch.device) -> None:
    """Corrected and general forms beside tiles in plain PyTorch."""
    q, k, _ = inputs(device, 2, 4, 4, 3, 10000, 64, torch.float32)
    got, right = (fr.pairwise(R, q / 8, k, impl=impl) for impl in ("triton", "tiles"))
    got, right = (x if isinstance(x, dict) else {"": x} for x in (got, right))
    for n, t in right.items():
        torch.testing.assert_close(got[n], t, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32, 64])
def test_any_number(n: int, device: torch.device) -> None:
    """One build serves every number of splits, those that leave splits without a key too."""
    q, k, v = inputs(device, 1, 8, 2, 4, 1300, 128, torch.bfloat16)
    seen = torch.arange(4, device=device)[:, None] + 1000 >= torch.arange(1300, device=device)
    with split_keys(n):
        out = fr.attention(q, k, v, mask=fr.masks.causal, q_offset=1000, enable_gqa=True,
                           impl="triton")  # fmt: skip
    right, rough = (plain(*(t.to(d) for t in (q, k, v)), seen)["out"]
                    for d in (torch.float64, torch.bfloat16))  # fmt: skip
    require_near(out, right, rough, 2, n)


def test_sinks_states_and_gradients(device: torch.device) -> None:
    """A state that is merged with more, and a backward from merged states."""
    q, k, v = (t.requires_grad_() for t in inputs(device, 1, 4, 4, 16, 4096, 64, torch.float32))
    sinks = torch.randn(4, device=device, requires_grad=True)
    answers = []
    for impl in ("triton", "tiles"):
        out, more = fr.attention(q, k, v, sinks=sinks, aux=("lse",), impl=impl)
        loss = out.square().sum() + more["lse"].sum()
        answers.append([out, more["lse"], *torch.autograd.grad(loss, (q, k, v, sinks))])
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_graph_replay(device: torch.device) -> None:
    q, k, v = inputs(device, 2, 8, 2, 1, 8192, 128, torch.bfloat16)
    run = lambda: fr.attention(q, k, v, enable_gqa=True, impl="triton")
    torch.use_deterministic_algorithms(False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run()
    for _ in range(2):
        for t in (q, k, v):
            t.normal_()
        graph.replay()
        assert torch.equal(made, run())
