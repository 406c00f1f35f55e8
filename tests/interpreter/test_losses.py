"""The printed kernels of the losses in the interpreter: forward, backward, both strategies."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce.plan import rows
from tests import chains, gradients, losses, printing
from tests.interpreter.test_script import script

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
def test_all_options_pass_gradcheck(strategy: str, monkeypatch) -> None:
    plan = rows.plan
    monkeypatch.setattr(rows, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    torch.manual_seed(0)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    w = (torch.rand(5, dtype=torch.float64) + 0.1).requires_grad_()
    p = torch.softmax(torch.randn(3, 5, dtype=torch.float64), 1).requires_grad_()
    target = torch.tensor([4, -100, 0])
    options = dict(label_smoothing=0.1, z_loss=0.1, softcap=5.0, logit_scale=0.7, impl="triton")
    check = torch.autograd.gradcheck
    assert check(lambda x, w: fr.ops.cross_entropy(x, target, w, **options), (x, w))
    assert check(lambda x, p, w: fr.ops.cross_entropy(x, p, w, **options), (x, p, w))


@strategies
def test_a_wrong_label_makes_its_row_nan(strategy: str, monkeypatch) -> None:
    """Never an out-of-bounds read; other rows, and ignored ones, do not notice."""
    plan = rows.plan
    monkeypatch.setattr(rows, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    x = torch.randn(5, 33, requires_grad=True)
    target = torch.tensor([0, 33, -1, -100, 2**40])
    given = target, None, 0.1, 1e-2, None, None, -100, None
    found = fr.fuse(losses.label_rows.fn)(x, *given, impl="triton")
    loss = found["loss"] + found["z_loss"]
    assert loss.isnan().tolist() == [False, True, True, False, True]
    (grad,) = torch.autograd.grad(loss.nansum(), x)
    assert grad.isnan().all(1).tolist() == [False, True, True, False, True]
    assert grad[0].isfinite().all()
    assert (grad[3] == 0).all()
    assert loss[3] == 0


VIEWS = {
    "poisoned": lambda x: torch.nn.functional.pad(x, (3, 5), value=float("nan"))[:, 3:-5],
    "transposed": lambda x: x.t().contiguous().t(),
    "one row": lambda x: x[:1].expand(5, -1),
    "every other": lambda x: x.repeat_interleave(2, 0)[::2],
}


@strategies
@pytest.mark.parametrize("view", VIEWS)
def test_layouts(view: str, strategy: str, monkeypatch) -> None:
    """Inputs and upstream gradients of any strides, NaN around what is read."""
    plan = rows.plan
    monkeypatch.setattr(rows, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    torch.manual_seed(0)
    x = torch.randn(5, 37, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(74, dtype=torch.float64)[::2]
    target = torch.tensor([[3, 9], [36, 9], [-100, 9], [0, 9], [7, 9]])[:, 0]
    options = dict(label_smoothing=0.1, reduction="none")
    got = fr.ops.cross_entropy(VIEWS[view](x), target, weight, impl="triton", **options)
    right = torch.nn.functional.cross_entropy(VIEWS[view](x), target, weight, **options)
    torch.testing.assert_close(got, right)
    for up in (torch.ones((), dtype=torch.float64).expand(5), torch.randn(5, 3).double()[:, 1]):
        one, two = (torch.autograd.grad(t, x, up, retain_graph=True)[0] for t in (got, right))
        torch.testing.assert_close(one, two)


@strategies
def test_a_row_does_not_depend_on_its_batch(strategy: str, monkeypatch) -> None:
    plan = rows.plan
    monkeypatch.setattr(rows, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    x, target = torch.randn(9, 200), torch.randint(0, 200, (9,))
    options = dict(reduction="none", label_smoothing=0.1, z_loss=0.1, impl="triton")
    whole = fr.ops.cross_entropy(x, target, **options)
    assert torch.equal(whole, fr.ops.cross_entropy(x, target, **options))
    for k in range(9):
        assert torch.equal(fr.ops.cross_entropy(x[k], target[k], **options), whole[k])


CHECKED = ("labels smoothed", "probabilities, all options", "head, all options", "js_div")


@pytest.mark.parametrize("name", CHECKED)
def test_the_printed_file_checks_itself(name: str, tmp_path) -> None:
    (case,) = [c for c in losses.CASES if c.name == name]
    args = case.inputs(4, 70, torch.float32)
    made = printing.print_kernel(*printing.fused(case.fn, args), "loop")
    done = script(made.kernel.source, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
