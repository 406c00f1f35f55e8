"""The losses on the device: the table, wrong labels, long vocabularies, more than 2^31 logits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce.errors import OptionError
from tests import chains, gradients, losses, printing
from tests.gpu.test_rows import moved

each = pytest.mark.parametrize("case", losses.CASES, ids=lambda c: c.name)


@each
@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (2, 1, torch.float32), (5, 130, torch.float64), (300, 1025, torch.float32),
        (33, 1023, torch.bfloat16), (16, 4096, torch.float16), (7, 50257, torch.bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_value(
    case: chains.Case, rows: int, columns: int, dtype: torch.dtype, strategy: str, device
) -> None:
    if strategy == "block" and columns > 5000:
        pytest.skip("a row that does not fit on chip")
    if columns == 1 and case.name == "head, all options":
        pytest.skip("x - m is one instruction there, and keeps what rounding x lost: torch has 0")
    torch.manual_seed(0)
    args = moved(case.inputs(rows, columns, dtype), device)
    chains.check(printing.run(*printing.fused(case.fn, args), strategy), case, args)


@each
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (5, 130, torch.float64), (300, 1025, torch.float32), (129, 1023, torch.bfloat16),
        (64, 20000, torch.float32), (16, 151936, torch.bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_gradients(case: chains.Case, rows: int, columns: int, dtype: torch.dtype, device) -> None:
    torch.manual_seed(0)
    gradients.check(case, moved(case.inputs(rows, columns, dtype), device))


@each
def test_bits_repeat_and_do_not_depend_on_the_batch(case: chains.Case, device) -> None:
    if "mean" in case.name:
        pytest.skip("a mean divides by how many rows there are")
    for columns in (200, 20000):
        args = moved(case.inputs(65, columns, torch.float32), device)
        fused = fr.fuse(case.fn)
        whole = chains.flat(fused(*args))
        for _ in range(20):
            again = chains.flat(fused(*args))
            assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
        part = tuple(
            a[7:9] if isinstance(a, torch.Tensor) and a.shape[0] == 65 else a for a in args
        )
        for a, b in zip(whole, chains.flat(fused(*part)), strict=True):
            assert torch.equal(a[7:9], b)


def test_a_wrong_label_raises_when_values_are_looked_at(device) -> None:
    x, wrong = torch.randn(2, 5, device=device), torch.tensor([1, 5], device=device)
    calls = (fr.ops.cross_entropy, fr.ops.loss_head)
    fr.check(True)
    try:
        for call in calls:
            with pytest.raises(OptionError, match="a label is not a class"):
                call(x, wrong)
    finally:
        fr.check(False)
    assert calls[0](x, wrong).isnan()


@pytest.mark.parametrize("columns", [33, 50257])
def test_a_wrong_label_makes_its_row_nan(columns: int, device) -> None:
    x = torch.randn(5, columns, device=device, requires_grad=True)
    target = torch.tensor([0, columns, -1, -100, 2**40], device=device)
    loss = fr.ops.cross_entropy(x, target, reduction="none", z_loss=0.1, label_smoothing=0.1)
    assert loss.isnan().tolist() == [False, True, True, False, True]
    (grad,) = torch.autograd.grad(loss.nansum(), x)
    assert grad.isnan().all(1).tolist() == [False, True, True, False, True]
    assert (grad[3] == 0).all()
    assert fr.ops.cross_entropy(x, target).isnan()


@pytest.mark.parametrize("probability", [0.99, 0.999])
def test_the_true_class_keeps_its_gradient(probability: float, device) -> None:
    x = torch.zeros(2, 32000, device=device)
    x[:, 5] = math.log(probability / (1 - probability) * 31999)
    x = x.bfloat16().requires_grad_()
    target = torch.tensor([5, 5], device=device)
    (g,) = torch.autograd.grad(fr.ops.cross_entropy(x, target, reduction="sum"), x)
    p = torch.softmax(x.detach().double(), -1)
    torch.testing.assert_close(g[:, 5].double(), p[:, 5] - 1, rtol=4e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype, device) -> None:
    x, target = torch.randn(4, 60, device=device).to(dtype), torch.arange(4, device=device)
    p = torch.softmax(x.float(), 1).to(dtype)
    calls = (
        lambda m: m.cross_entropy(x, target),
        lambda m: m.kl_div(x, p, reduction="batchmean"),
    )
    for call in calls:
        assert call(fr.ops).dtype == call(F).dtype == dtype
        with torch.autocast("cuda", dtype):
            assert call(fr.ops).dtype == call(F).dtype == torch.float32


def test_labels_that_are_not_aligned(device) -> None:
    x, target = torch.randn(7, 900, device=device), torch.randint(0, 900, (8,), device=device)[1:]
    torch.testing.assert_close(fr.ops.cross_entropy(x, target), F.cross_entropy(x, target))


def test_more_logits_than_int32(device) -> None:
    """65,536 x 50,257 = 3.3e9 logits: the last rows agree with their own computation."""
    x = torch.randn(65536, 50257, device=device, dtype=torch.bfloat16).requires_grad_()
    target = torch.randint(0, 50257, (65536,), device=device)
    loss = fr.ops.cross_entropy(x, target, reduction="sum")
    (grad,) = torch.autograd.grad(loss, x)
    for rows in (slice(0, 8), slice(-8, None)):
        part = x.detach()[rows].float().requires_grad_()
        right = F.cross_entropy(part, target[rows], reduction="none")
        alone = fr.ops.cross_entropy(x.detach()[rows], target[rows], reduction="none")
        torch.testing.assert_close(alone.float(), right.detach(), rtol=8e-3, atol=1e-3)
        (wanted,) = torch.autograd.grad(right.sum(), part)
        torch.testing.assert_close(grad[rows].float(), wanted, rtol=8e-3, atol=1e-6)
    each_row = fr.ops.loss_head(x.detach(), target, "loss", reduction="none")["loss"]
    torch.testing.assert_close(loss.float(), each_row.float().sum(), rtol=1e-2, atol=0)
