"""Printed row kernels on the device: every fused function, every hard row, both strategies."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce.reductions import LogSumExp, Moments, Welford
from tests import cases, chains, printing

SHAPES = [
    (3, 17, torch.float32), (2, 1, torch.float32), (5, 130, torch.float64),
    (300, 1025, torch.float32), (33, 1023, torch.bfloat16), (7, 50257, torch.bfloat16),
    (16, 4096, torch.float16),
]  # fmt: skip


def moved(args: chains.Tensors, device: torch.device) -> chains.Tensors:
    return tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("case", chains.CASES, ids=lambda c: c.name)
@pytest.mark.parametrize(("rows", "columns", "dtype"), SHAPES, ids=str)
def test_fused_function(
    case: chains.Case, rows: int, columns: int, dtype: torch.dtype, strategy: str, device
) -> None:
    if columns < case.smallest:
        pytest.skip(f"{case.name} needs {case.smallest} columns")
    if strategy == "block" and (columns > 5000 or (case.name == "group_norm" and columns > 200)):
        pytest.skip("a row that does not fit on chip")
    torch.manual_seed(0)
    args = moved(case.inputs(rows, columns, dtype), device)
    chains.check(printing.run(*printing.fused(case.fn, args), strategy), case, args)


@pytest.mark.parametrize("strategy", [*printing.STRATEGIES, None])
@pytest.mark.parametrize("case", [c for c in cases.CASES if c.rows != "0"], ids=lambda c: c.name)
def test_hard_rows(case: cases.Case, strategy: str | None, device) -> None:
    operands = {n: t.to(device) for n, t in case.operands().items()}
    if strategy == "block" and operands["x"].shape[-1] > 16384:
        pytest.skip("a row that does not fit on chip")
    results = printing.run(*printing.reduced(case.R, operands), strategy)
    case.check({n: t.cpu() for n, t in results.items()})


@pytest.mark.parametrize("R", [LogSumExp, Moments, Welford], ids=lambda R: R.__name__)
def test_bits_repeat_and_do_not_depend_on_the_batch(R: type, device) -> None:
    for columns in (200, 1000, 20000):
        x = torch.randn(300, columns, device=device)
        whole = chains.flat(fr.reduce(R, x))
        for _ in range(20):
            assert all(
                torch.equal(a, b) for a, b in zip(whole, chains.flat(fr.reduce(R, x)), strict=True)
            )
        part = chains.flat(fr.reduce(R, x[7:9]))
        assert all(torch.equal(a[7:9], b) for a, b in zip(whole, part, strict=True))


def test_more_elements_than_int32(device) -> None:
    """65,536 x 36,864 = 2.4e9 elements: the last rows agree with their own computation."""
    x = torch.randn(65536, 36864, device=device, dtype=torch.bfloat16)
    got = fr.reduce(LogSumExp, x)
    torch.testing.assert_close(
        got[-8:].float(), torch.logsumexp(x[-8:].float(), -1), rtol=8e-3, atol=0
    )
    y = fr.fuse(chains.softmax)(x)
    torch.testing.assert_close(
        y[-8:].float(), torch.softmax(x[-8:].float(), -1), rtol=8e-3, atol=1e-6
    )


def test_strided_view_beyond_int32(device) -> None:
    """A column reduction whose last column lies 2.6e9 elements away."""
    x = torch.randn(70000, 37000, device=device, dtype=torch.bfloat16)
    got = fr.reduce(LogSumExp, x[:, ::4097], dim=0)
    want = torch.logsumexp(x[:, ::4097].float(), 0)
    torch.testing.assert_close(got.float(), want, rtol=8e-3, atol=0)


def test_more_rows_than_a_16_bit_grid(device) -> None:
    x = torch.randn(8388608 + 3, 3, device=device, dtype=torch.bfloat16)
    got = fr.reduce(Moments, x)["mean"]
    torch.testing.assert_close(got.float(), x.float().mean(-1), rtol=1e-2, atol=1e-2)


def test_gradients_match(device) -> None:
    case = next(c for c in chains.CASES if c.name == "layer_norm")
    x, w, b, eps = moved(case.inputs(64, 1000, torch.float32), device)
    for t in (x, w, b):
        t.requires_grad_()
    up = torch.randn(64, 1000, device=device)
    got = torch.autograd.grad(fr.fuse(case.fn)(x, w, b, eps), (x, w, b), up)
    want = torch.autograd.grad(case.reference(x, w, b, eps), (x, w, b), up)
    for g, r in zip(got, want, strict=True):
        torch.testing.assert_close(g, r, rtol=1e-4, atol=1e-4)


def test_another_stream(device) -> None:
    x = torch.randn(2000, 5000, device=device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = fr.reduce(LogSumExp, x * 2)
    side.synchronize()
    torch.testing.assert_close(y, torch.logsumexp(x * 2, -1))


def test_a_row_that_reaches_beyond_int32(device) -> None:
    """Along the first axis, 2.25e9 elements: the columns' offsets are int64."""
    x = torch.randn(45000, 50000, device=device, dtype=torch.float16)
    got = fr.reduce(fr.reductions.LogSumExp, x, dim=0)
    want = torch.logsumexp(x[:, -64:].double(), 0)
    torch.testing.assert_close(got[-64:].double(), want, rtol=1e-3, atol=0.0)
