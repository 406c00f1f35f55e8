"""Printed row kernels in the interpreter: every fused function, every hard row."""

from __future__ import annotations

import pytest
import torch

from tests import cases, chains, printing

SMALL = [c for c in cases.CASES if c.rows not in ("0", "50257")]
TUPLE_REDUCE = 300  # the interpreter folds general merges element by element in Python


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("case", chains.CASES, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (3, 17, torch.float32),
        (2, 1, torch.float32),
        (5, 130, torch.float64),
        (3, 70, torch.bfloat16),
    ],
    ids=str,
)
def test_fused_function(
    case: chains.Case, rows: int, columns: int, dtype: torch.dtype, strategy: str
) -> None:
    if columns < case.smallest:
        pytest.skip(f"{case.name} needs {case.smallest} columns")
    torch.manual_seed(0)
    args = case.inputs(rows, columns, dtype)
    chains.check(printing.run(*printing.fused(case.fn, args), strategy), case, args)


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_hard_rows(case: cases.Case, strategy: str) -> None:
    operands = case.operands()
    slow = case.R.record.form == "general" or case.R.__name__ == "Product"
    if slow and operands["x"].shape[-1] > TUPLE_REDUCE:
        pytest.skip("a generic reduce of a long row takes minutes here; the GPU runs it")
    case.check(printing.run(*printing.reduced(case.R, operands), strategy))


@pytest.mark.smoke
@pytest.mark.parametrize("strategy", printing.STRATEGIES)
def test_smoke(strategy: str) -> None:
    """One function a strategy, for other versions of Triton."""
    case = next(c for c in chains.CASES if c.name == "layer_norm")
    args = case.inputs(3, 1025, torch.float32)
    chains.check(printing.run(*printing.fused(case.fn, args), strategy), case, args)


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x[:, ::2],
        lambda x: x[::2],
        lambda x: x[:1].expand(5, -1),
        lambda x: x[:, :1].expand(-1, 40),
        lambda x: x[None, :, None],
        lambda x: torch.nn.functional.pad(x, (3, 5))[:, 3:-5],
    ],
    ids=["transposed", "every other column", "every other row", "one row expanded",
         "one column expanded", "more dimensions", "a window"],
)  # fmt: skip
def test_strides(view, strategy: str) -> None:
    x = view(torch.randn(6, 90))
    case = next(c for c in chains.CASES if c.name == "softmax")
    chains.check(printing.run(*printing.fused(case.fn, (x,)), strategy), case, (x,))


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("dim", [0, 1, 2, (0, 2), (1, 2), (0, 1), None, -3])
def test_any_axes(dim, strategy: str) -> None:
    import fusedreduce as fr

    x = torch.randn(4, 5, 6)
    got = printing.run(*printing.reduced(fr.reductions.Moments, {"x": x}, dim), strategy)
    axes = tuple(range(3)) if dim is None else dim
    torch.testing.assert_close(got["mean"], x.mean(axes))
    torch.testing.assert_close(got["var"], x.var(axes, unbiased=False))


def test_a_row_does_not_depend_on_its_batch() -> None:
    import fusedreduce as fr

    x = torch.randn(9, 200)
    whole = fr.reduce(fr.reductions.LogSumExp, x, impl="triton")
    alone = torch.stack([fr.reduce(fr.reductions.LogSumExp, r, impl="triton") for r in x])
    assert torch.equal(whole, alone)


def test_inputs_are_not_modified() -> None:
    case = next(c for c in chains.CASES if c.name == "cross_entropy")
    args = case.inputs(4, 50, torch.float32)
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    printing.run(*printing.fused(case.fn, args), "loop")
    for a, b in zip(args, before, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
