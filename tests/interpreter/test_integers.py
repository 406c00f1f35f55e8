"""Integers in printed kernels: as the meaning has them, however large they become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

import fusedreduce as fr
from fusedreduce import masks
from tests.pure.test_integers import I32, SERVED, U8, S, both, by_pairs, places

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN")  # of rows that do not exist


@pytest.mark.parametrize("name", SERVED)
def test_pairs(name: str) -> None:
    fn = SERVED[name]
    expected = torch.as_tensor(fn(*places())).double().expand(1, 1, S, S)[0, 0]
    assert torch.equal(by_pairs(fn, "triton"), expected)


LENGTH = 150
TIMES = 2**60 + torch.arange(LENGTH)
IDS = 2**60 + torch.arange(LENGTH) // 40
#: Masks whose integers leave 32 bits, or the 53 of a float64.
LARGE: dict[str, Callable[..., Any]] = {
    "hash": lambda b, h, i, j: ((i * 2654435761 + j * 40503) % 7 < 3) | (i == j),
    "small hash": lambda b, h, i, j: ((i * 1103515245 + j * 12345) % 7 < 3) | (i == j),
    "product": lambda b, h, i, j: (i * j % 7 < 3) | (i == j),
    "shift": lambda b, h, i, j: ((1 << (i % 40)) % 7 < 3) | (i == j),
    "any shift": lambda b, h, i, j: ((j << i) % 7 < 3) | ((i - j) >> i == 0),
    "power": lambda b, h, i, j: (i**5 % 7 < 3) | (2**j % 5 > 0),
    "large power": lambda b, h, i, j: (3 ** (i % 100) % 7 < 3) | (i == j),
    "far number": lambda b, h, i, j: (i < 2**40) & (i + 2**31 > j) & (i >= j),
    "times": lambda b, h, i, j: TIMES[i] >= TIMES[j],
    "documents": lambda b, h, i, j: IDS[i] == IDS[j],
    "difference": lambda b, h, i, j: IDS[i] - IDS[j] < 1,
}


def require_same(mask: Any, **options: Any) -> None:
    q, k = torch.randn(1, 1, LENGTH, 8), torch.randn(1, 1, LENGTH, 8)
    right, came = (
        fr.pairwise(fr.reductions.LogSumExp, q, k, mask=mask, impl=impl, **options)
        for impl in ("eager", "triton")
    )
    torch.testing.assert_close(came, right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("offset", [0, 100_000])
@pytest.mark.parametrize("name", LARGE)
def test_masks(name: str, offset: int) -> None:
    if offset and name in ("times", "documents", "difference"):
        return  # their tables end before
    require_same(LARGE[name], q_offset=offset, k_offset=offset)


@pytest.mark.parametrize(
    ("left", "right"), [(2**31 - 1, 0), (2**40, 3), (2, 2**31), (-(2**40), None), (None, -(2**31))]
)
def test_windows_without_end(left: int | None, right: int | None) -> None:
    require_same(masks.window(left, right))
    require_same(masks.window(left, right) & masks.causal, q_offset=3, k_offset=1)


@pytest.mark.parametrize("name", ["hash", "shift", "documents"])
def test_gradients(name: str) -> None:
    tensors = [torch.randn(1, 1, LENGTH, 8, requires_grad=True) for _ in range(3)]
    near = fr.mask(LARGE[name]) & masks.window(2**40, 20)
    found = []
    for impl in ("eager", "triton"):
        out = fr.attention(*tensors, mask=near, impl=impl)
        found.append(torch.autograd.grad(out.square().sum(), tensors))
    for right, came in zip(*found, strict=True):
        torch.testing.assert_close(came, right, atol=1e-4, rtol=1e-4)


def test_floats_of_a_float64_call_in_block_maps() -> None:
    """A float32 tenth is more than 0.1 in float64: blocks are told so too."""
    tenths = torch.full((LENGTH,), 0.1)
    q, k = torch.randn(1, 1, LENGTH, 8).double(), torch.randn(1, 1, LENGTH, 8).double()
    mask = fr.mask(lambda b, h, i, j: (tenths[i] > 0.1) & (tenths[j] > 0.1))
    for impl in ("eager", "tiles", "triton"):
        came = fr.pairwise(fr.reductions.LogSumExp, q, k, mask=mask, impl=impl)
        torch.testing.assert_close(came, (q @ k.mT).logsumexp(-1))


def test_a_declaration_of_positions() -> None:
    class Weighted(fr.Reduction):
        t = fr.Sum(lambda x, i, j: x * (i * j * 65537 % 7) + (i * i * i > j))

        def finish(t):
            return t

    q, k = torch.randn(1, 1, 70, 4), torch.randn(1, 1, 1300, 4)
    right, came = (fr.pairwise(Weighted, q, k, impl=impl) for impl in ("eager", "triton"))
    torch.testing.assert_close(came, right, atol=1e-2, rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "fn"),
    [
        (U8.to(torch.uint16), lambda x: (x == 7) | (x == 255)),
        (U8.to(torch.uint32), lambda x: x == 200),
        (I32.long(), lambda x: (x << (x % 90)) + (x >> (x % 90))),
        (I32.long(), lambda x: x ** (x % 90)),
        (tensor([2, 3, -1, 0, 1, -2]), lambda x: x ** (x + 70)),
        (U8, lambda x: (x << 9) + (x >> 9) + 2**x),
        (U8, lambda x: -x + x * 300),
    ],
)
def test_rows(x: Tensor, fn: Callable[[Tensor], Tensor]) -> None:
    came, total = both(fn).run(x[None], impl="triton")
    assert came.dtype == fn(x).dtype
    assert torch.equal(came[0], fn(x))
    assert total.item() == fn(x).sum().item()


def test_results_of_unsigned_integers() -> None:
    """torch computes nothing in uint16 on a CPU; kernels wrap it as they do uint8."""
    came, total = both(lambda x: x + 65530).run(U8.to(torch.uint16)[None], impl="triton")
    assert came.dtype == torch.uint16
    assert came[0].tolist() == [(v + 65530) % 65536 for v in U8.tolist()]
    assert total.item() == sum(came[0].tolist())
