"""The printed kernels of the losses in the interpreter: forward, backward, both strategies."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce.plan import rows
from tests import chains, gradients, losses, printing

each = pytest.mark.parametrize("case", losses.CASES, ids=lambda c: c.name)
strategies = pytest.mark.parametrize("strategy", printing.STRATEGIES)


@each
@strategies
@pytest.mark.parametrize(
    ("count", "columns", "dtype"),
    [(2, 1, torch.float32), (5, 130, torch.float64), (3, 70, torch.bfloat16)],
    ids=str,
)
def test_value(
    case: chains.Case, count: int, columns: int, dtype: torch.dtype, strategy: str
) -> None:
    torch.manual_seed(0)
    args = case.inputs(count, columns, dtype)
    chains.check(printing.run(*printing.fused(case.fn, args), strategy), case, args)


@each
@strategies
@pytest.mark.parametrize(("count", "columns"), [(3, 17), (4, 70)])
def test_gradients(case: chains.Case, count: int, columns: int, strategy: str, monkeypatch) -> None:
    plan = rows.plan
    monkeypatch.setattr(rows, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    torch.manual_seed(0)
    gradients.check(case, case.inputs(count, columns, torch.float32), impl="triton")


@strategies
def test_a_wrong_label_makes_its_row_nan(strategy: str, monkeypatch) -> None:
    """Never an out-of-bounds read; other rows, and ignored ones, do not notice."""
    plan = rows.plan
    monkeypatch.setattr(rows, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    x = torch.randn(5, 33, requires_grad=True)
    target = torch.tensor([0, 33, -1, -100, 2**40])
    given = target, None, 0.1, 1e-2, None, None, -100
    found = fr.fuse(losses.label_rows.fn)(x, *given, impl="triton")
    loss = found["loss"] + found["z_loss"]
    assert loss.isnan().tolist() == [False, True, True, False, True]
    (grad,) = torch.autograd.grad(loss.nansum(), x)
    assert grad.isnan().all(1).tolist() == [False, True, True, False, True]
    assert grad[0].isfinite().all()
    assert (grad[3] == 0).all()
    assert loss[3] == 0
