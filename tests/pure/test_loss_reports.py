"""Public reports about losses, restated for fr.ops; ids as in the reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce.ops.cross_entropy_rows import label_rows

INF = float("inf")
each = pytest.mark.parametrize("impl", ["tiles", "eager"])
LOWEST = torch.finfo(torch.float32).min


def ids(*names: str) -> object:
    """The reports that a test restates, in its id."""
    return pytest.mark.parametrize("report", ["+".join(names)])


# ---- infinities --------------------------------------------------------------------------------


@ids("S01")
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@each
def test_impossible_classes(report: str, beta: float, impl: str) -> None:
    """Classes whose probability underflows, or is 0, on one side or both: no part, gradient 0."""
    q = torch.tensor([[0.0, -150.0, -300.0, -INF, -INF]], requires_grad=True)
    p = torch.tensor([[0.0, -160.0, -INF, -300.0, -INF]], requires_grad=True)
    loss = fr.ops.js_div(q, p, beta, impl=impl)
    torch.testing.assert_close(loss.detach(), torch.tensor(0.0), atol=1e-6, rtol=0)
    for g in torch.autograd.grad(loss, (q, p)):
        torch.testing.assert_close(g, torch.zeros(1, 5), atol=1e-6, rtol=0)


@ids("S01")
@pytest.mark.parametrize("log_target", [False, True])
@each
def test_impossible_classes_of_kl_div(report: str, log_target: bool, impl: str) -> None:
    log_q = torch.tensor([[math.log(0.5), math.log(0.5), -INF]], requires_grad=True)
    p = torch.tensor([[1.0, 0.0, 0.0]])
    target = p.log() if log_target else p
    loss = fr.ops.kl_div(log_q, target, reduction="sum", log_target=log_target, impl=impl)
    assert loss.item() == pytest.approx(math.log(2.0))
    (g,) = torch.autograd.grad(loss, log_q)
    assert torch.equal(g, -p)


@ids("S04")
@each
def test_a_class_without_probability_may_be_impossible(report: str, impl: str) -> None:
    logits = torch.tensor([[0.0, -INF], [1.0, LOWEST]], requires_grad=True)
    target = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    loss = fr.ops.cross_entropy(logits, target, reduction="none", impl=impl)
    assert loss.tolist() == [0.0, 0.0]
    (g,) = torch.autograd.grad(loss.sum(), logits)
    assert (g == 0).all()
    one = fr.ops.cross_entropy(logits[:1].detach(), target[:1].flip(1), impl=impl)
    assert one == INF


@pytest.mark.parametrize(
    ("row", "soft"),
    [("offset", False), ("outlier first", False),
     ("offset", True), ("outlier first", True), ("masked first", True)],
)  # fmt: skip
@each
def test_rows_far_from_0_keep_their_digits(row: str, soft: bool, impl: str) -> None:
    """No worse than twice torch, which subtracts the log-sum-exp from every score."""
    torch.manual_seed(0)
    x, target = torch.randn(4, 1000), torch.randint(1, 1000, (4,))
    p = torch.softmax(torch.randn(4, 1000), 1)
    if row == "offset":
        x += 1e4
    else:
        x[:, 0] = -1e4 if row == "outlier first" else LOWEST
        p[:, 0] = 0.0
    target, options = (p, {}) if soft else (target, {"label_smoothing": 0.1})
    right, plain = (
        F.cross_entropy(t, target.to(t.dtype) if soft else target, reduction="none", **options)
        for t in (x.double(), x)
    )
    got = fr.ops.cross_entropy(x, target, reduction="none", impl=impl, **options)
    floor = 16 * torch.finfo(torch.float32).eps * float(right.abs().max())
    assert (got - right).abs().max() <= 2 * (plain - right).abs().max() + floor


# ---- labels ------------------------------------------------------------------------------------


@ids("S18")
@pytest.mark.parametrize("ignored", [slice(0, None, 2), slice(None)], ids=["half", "all"])
@pytest.mark.parametrize("name", ["js_div", "tvd"])
@each
def test_ignored_rows_of_a_distillation(report: str, ignored: slice, name: str, impl: str) -> None:
    torch.manual_seed(0)
    q, p = (torch.softmax(torch.randn(6, 9, dtype=torch.float64), -1) for _ in "qp")
    if name == "js_div":
        q, p = q.log(), p.log()
    q.requires_grad_()
    labels = torch.arange(6)
    labels[ignored] = -100
    kept = labels != -100
    fn = getattr(fr.ops, name)
    got = fn(q, p, labels=labels, impl=impl)
    (g,) = torch.autograd.grad(got, q)
    assert (g[~kept] == 0).all()
    if not kept.any():
        assert got == 0
        return
    torch.testing.assert_close(got, fn(q[kept], p[kept], impl=impl))
    assert (g[kept] != 0).any(1).all()


@ids("S19")
@each
def test_every_label_ignored(report: str, impl: str) -> None:
    """The mean of nothing is NaN, as torch's; the sum 0; the gradient 0 either way."""
    x, target = torch.randn(4, 10, requires_grad=True), torch.full((4,), -100)
    for reduction in ("mean", "sum", "none"):
        loss = fr.ops.cross_entropy(x, target, reduction=reduction, z_loss=0.1, impl=impl)
        assert loss.isnan().all() if reduction == "mean" else (loss == 0).all()
        (g,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
        if reduction != "mean":
            assert (g == 0).all()
    (g,) = torch.autograd.grad(fr.ops.cross_entropy(x, target, impl=impl).nan_to_num(0.0), x)
    assert (g == 0).all()


@ids("S20")
@each
def test_a_label_of_another_shard_is_marked_by_ignore_index(report: str, impl: str) -> None:
    x, target = torch.randn(3, 10), torch.tensor([15, 4, 15])
    loss = fr.ops.cross_entropy(x, target, ignore_index=15, reduction="none", impl=impl)
    torch.testing.assert_close(loss, F.cross_entropy(x, target, ignore_index=15, reduction="none"))
    wide = F.pad(x, (0, 8), value=float("nan"))[:, :10]  # what lies behind a shard is not read
    again = fr.ops.cross_entropy(wide, target, ignore_index=15, reduction="none", impl=impl)
    assert torch.equal(again, loss)


def test_a_wrong_label_makes_its_row_nan() -> None:
    """What a GPU does, where values are not looked at: here in tiles."""
    x = torch.randn(4, 9, requires_grad=True)
    target = torch.tensor([9, 3, -1, -100])
    for weight in (None, torch.rand(9)):
        found = label_rows(x, target, weight, 0.1, 0.1, None, None, -100, None)
        for rows in (found["loss"], found["z_loss"]):
            assert rows.isnan().tolist() == [True, False, True, False]
        (g,) = torch.autograd.grad(found["loss"].nansum(), x)
        assert g.isnan().all(1).tolist() == [True, False, True, False]
        assert (g[3] == 0).all()


# ---- layouts -----------------------------------------------------------------------------------


@ids("S38")
@each
def test_transposed_logits(report: str, impl: str) -> None:
    logits = torch.randn(2, 4, 8).transpose(0, 1)
    target = torch.randint(0, 8, (4, 2))
    right = F.cross_entropy(logits.reshape(-1, 8), target.reshape(-1), reduction="none")
    got = fr.ops.loss_head(logits, target, "loss", reduction="none", impl=impl)["loss"]
    torch.testing.assert_close(got, right.reshape(4, 2))
    by_classes = fr.ops.cross_entropy(logits.movedim(-1, 1), target, reduction="none", impl=impl)
    torch.testing.assert_close(by_classes, right.reshape(4, 2))


@ids("S46")
@each
def test_labels_that_are_not_aligned(report: str, impl: str) -> None:
    logits, labels = torch.randn(7, 9), torch.randint(0, 9, (8,))[1:]
    got = fr.ops.cross_entropy(logits, labels, impl=impl)
    torch.testing.assert_close(got, F.cross_entropy(logits, labels))


@ids("S14")
def test_offsets_of_a_strided_input(report: str) -> None:
    """Rows far apart in memory: a small stand-in for 65,536 x 50,257 (tests/gpu has that)."""
    x = torch.randn(8192, 70)[:, 3:68:2][::1000]
    target = torch.randint(0, x.shape[1], (x.shape[0],))
    torch.testing.assert_close(fr.ops.cross_entropy(x, target), F.cross_entropy(x, target))


# ---- gradients that come in --------------------------------------------------------------------


@ids("S21", "S22", "S25")
@pytest.mark.parametrize("upstream", ["rows", "expanded", "strided", "weighted sum"])
@each
def test_upstream_gradients_of_any_make(report: str, upstream: str, impl: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 6, (4,))
    loss = fr.ops.cross_entropy(x, target, reduction="none", impl=impl)
    up = {
        "rows": torch.randn(4, dtype=torch.float64),
        "expanded": torch.ones((), dtype=torch.float64).expand(4),
        "strided": torch.randn(4, 3, dtype=torch.float64)[:, 1],
        "weighted sum": torch.rand(4, dtype=torch.float64),
    }[upstream]
    outputs, given = ((loss * up).sum(), None) if upstream == "weighted sum" else (loss, up)
    (got,) = torch.autograd.grad(outputs, x, given)
    y = F.one_hot(target, 6)
    torch.testing.assert_close(got, up[:, None] * (torch.softmax(x.detach(), -1) - y))


@ids("S24")
@each
def test_every_term_scales_with_the_upstream_gradient(report: str, impl: str) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 6, (4,))
    options: Any = dict(z_loss=0.1, label_smoothing=0.1, softcap=3.0, impl=impl)
    (one,) = torch.autograd.grad(fr.ops.cross_entropy(x, target, **options), x)
    (scaled,) = torch.autograd.grad(65536.0 * fr.ops.cross_entropy(x, target, **options), x)
    torch.testing.assert_close(scaled, 65536.0 * one)


# ---- habits ------------------------------------------------------------------------------------


@ids("S26", "S27", "S57")
@each
def test_inputs_stay_and_no_gradient_is_kept(report: str, impl: str) -> None:
    x, target = torch.randn(4, 10, requires_grad=True), torch.randint(0, 10, (4,))
    before, version = x.detach().clone(), x._version
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not fr.ops.cross_entropy(x, target, impl=impl).requires_grad
            assert not fr.ops.loss_head(x, target, impl=impl)["loss"].requires_grad
    loss = fr.ops.cross_entropy(x, target, impl=impl)
    again = loss + torch.softmax(x, -1)[:, 0].sum()  # the logits are used once more
    again.backward()
    assert torch.equal(x.detach(), before)
    assert x._version == version


@ids("S28")
@pytest.mark.parametrize("probability", [0.99, 0.999])
@each
def test_the_true_class_keeps_its_gradient(report: str, probability: float, impl: str) -> None:
    """p - 1 formed in float32 and rounded once."""
    x = torch.zeros(2, 32000)
    x[:, 5] = math.log(probability / (1 - probability) * 31999)
    x = x.bfloat16().requires_grad_()
    loss = fr.ops.cross_entropy(x, torch.tensor([5, 5]), reduction="sum", impl=impl)
    (g,) = torch.autograd.grad(loss, x)
    p = torch.softmax(x.detach().double(), -1)
    torch.testing.assert_close(g[:, 5].double(), p[:, 5] - 1, rtol=4e-3, atol=0)


@ids("S58")
@each
def test_soft_targets_need_not_sum_to_one(report: str, impl: str) -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    t = torch.rand(3, 5, dtype=torch.float64)
    (got,) = torch.autograd.grad(fr.ops.cross_entropy(x, t, reduction="sum", impl=impl), x)
    right = torch.softmax(x.detach(), -1) * t.sum(-1, keepdim=True) - t
    torch.testing.assert_close(got, right)


@each
def test_nothing_to_reduce(impl: str) -> None:
    x, target = torch.randn(0, 5), torch.randint(0, 5, (0,))
    for reduction in ("none", "mean", "sum"):
        got = fr.ops.cross_entropy(x, target, reduction=reduction, impl=impl)
        right = F.cross_entropy(x, target, reduction=reduction)
        torch.testing.assert_close(got, right, equal_nan=True)
    nothing = torch.randn(3, 0)  # rows without a class have no loss
    assert fr.ops.cross_entropy(nothing, nothing, label_smoothing=0.1, impl=impl).isnan()
