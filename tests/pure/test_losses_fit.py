"""Losses inside torch.compile, in one graph, under torch.func and in exported programs."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce.errors import OptionError
from tests import chains
from tests.losses import BETA, mixed_reference
from tests.pure.test_fit import compiled, fresh, graphs  # noqa: F401


@dataclass(frozen=True)
class Call:
    """A loss as it is called, in plain PyTorch too, and its operands of some rows and columns."""

    name: str
    fn: Callable[..., Any]
    plain: Callable[..., Any]
    inputs: Callable[[int, int], tuple[torch.Tensor, ...]]


def labelled(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Logits and labels, some of them ignored."""
    target = torch.randint(0, columns, (rows,))
    target[1::3] = -100
    return 3 * torch.randn(rows, columns, dtype=torch.float64), target


def weighted(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    return *labelled(rows, columns), torch.rand(columns, dtype=torch.float64) + 0.1


def probable(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    return labelled(rows, columns)[0], torch.randn(rows, columns, dtype=torch.float64).softmax(-1)


def logs(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(rows, columns, dtype=torch.float64).log_softmax(-1) for _ in "qp")


def plain_head(x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    log_p, counted = x.log_softmax(-1), target != -100
    picked = log_p.gather(-1, torch.where(counted, target, 0)[..., None])[..., 0]
    right = (counted & (x.argmax(-1) == target)).double().sum() / counted.sum()
    return {
        "loss": F.cross_entropy(x, target),
        "log_prob": torch.where(counted, picked, 0.0),
        "entropy": torch.where(counted, -(log_p.exp() * log_p).sum(-1), 0.0),
        "accuracy": right.float(),
    }


def plain_js(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return mixed_reference(q, p, None, None, *BETA).mean()


CALLS_OF_LOSSES = (
    Call("labels", fr.ops.cross_entropy, F.cross_entropy, labelled),
    Call("labels, each", lambda x, t: fr.ops.cross_entropy(x, t, reduction="none"),
         lambda x, t: F.cross_entropy(x, t, reduction="none"), labelled),
    Call("labels smoothed, with weights",
         lambda x, t, w: fr.ops.cross_entropy(x, t, w.detach(), label_smoothing=0.1),
         lambda x, t, w: F.cross_entropy(x, t, w.detach(), label_smoothing=0.1), weighted),
    Call("probabilities", fr.ops.cross_entropy, F.cross_entropy, probable),
    Call("loss_head", fr.ops.loss_head, plain_head, labelled),
    Call("kl_div", lambda x, t: fr.ops.kl_div(x, t, reduction="batchmean", log_target=True),
         lambda x, t: F.kl_div(x, t, reduction="batchmean", log_target=True), logs),
    Call("kl_div, each", lambda x, t: fr.ops.kl_div(x, t, reduction="none", log_target=True),
         lambda x, t: F.kl_div(x, t, reduction="none", log_target=True), logs),
    Call("js_div", lambda q, p: fr.ops.js_div(q, p, 0.3), plain_js, logs),
    Call("tvd", lambda q, p: fr.ops.tvd(q.exp(), p.exp()),
         lambda q, p: 0.5 * (q.exp() - p.exp()).abs().sum(-1).mean(), logs),
)  # fmt: skip
losses = pytest.mark.parametrize("call", CALLS_OF_LOSSES, ids=lambda c: c.name)


def with_gradients(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> list[Any]:
    given = [a.detach().requires_grad_(a.is_floating_point()) for a in args]
    results = chains.flat(fn(*given))
    smooth = [r for r in results if r.requires_grad]
    wanted = [a for a in given if a.requires_grad]
    return [
        *results,
        *torch.autograd.grad(sum(r.sin().sum() for r in smooth), wanted, allow_unused=True),
    ]


def scalar(fn: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """The sum of what a loss answers: all of it that has a gradient."""
    return lambda *a: sum(r.double().sin().sum() for r in chains.flat(fn(*a)))  # type: ignore[return-value]


@pytest.mark.parametrize("dynamic", [False, True])
@losses
def test_compiles_with_its_gradients(call: Call, dynamic: bool) -> None:
    fast = compiled(call.fn, dynamic=dynamic)
    for rows, columns in ((3, 17), (5, 40)) if dynamic else ((3, 17),):
        args = call.inputs(rows, columns)
        right = with_gradients(call.plain, args)
        torch.testing.assert_close(with_gradients(fast, args), right)
    assert graphs() == 1


@losses
def test_func_grad(call: Call) -> None:
    args = call.inputs(4, 9)
    got = torch.func.grad(scalar(call.fn))(*args)
    torch.testing.assert_close(got, torch.func.grad(scalar(call.plain))(*args))


@losses
def test_vmap_over_pairs_and_their_gradients(call: Call) -> None:
    """A batch of (logits, labels) pairs; gradients a pair, not the batch's."""
    pairs = [call.inputs(4, 9) for _ in range(3)]
    args = [torch.stack(a) for a in zip(*pairs, strict=True)]
    got = chains.flat(torch.vmap(call.fn)(*args))
    each = [chains.flat(call.plain(*p)) for p in pairs]
    torch.testing.assert_close(got, [torch.stack(r) for r in zip(*each, strict=True)])
    got = torch.vmap(torch.func.grad(scalar(call.fn)))(*args)
    right = torch.stack([torch.func.grad(scalar(call.plain))(*p) for p in pairs])
    torch.testing.assert_close(got, right)


class Module(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(*args)


@losses
def test_exported_with_a_dynamic_batch_saved_and_loaded(call: Call) -> None:
    rows = torch.export.Dim("rows", min=2)
    args = call.inputs(4, 9)
    dims = tuple({0: rows} if len(a) == 4 else None for a in args)
    made = torch.export.export(Module(call.fn), args, dynamic_shapes=(dims,), strict=False)
    kept = io.BytesIO()
    torch.export.save(made, kept)
    kept.seek(0)
    loaded = torch.export.load(kept).module()
    more = call.inputs(7, 9)
    torch.testing.assert_close(chains.flat(loaded(*more)), chains.flat(call.plain(*more)))


def each(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = fr.ops.cross_entropy(x, target, reduction="none")
    return found


def test_labels_are_looked_at_only_where_there_are_values() -> None:
    """Elsewhere the row with a wrong label is NaN, loss and gradient, and no other."""
    x, wrong = torch.randn(2, 5), torch.tensor([1, 5])
    with pytest.raises(OptionError, match="a label is not a class"):
        each(x, wrong)
    for fn in (compiled(each), torch.vmap(each)):
        assert fn(x, wrong).isnan().tolist() == [False, True]
    slope = torch.func.grad(lambda x: each(x, wrong).nansum())(x)
    assert slope.isnan().all(-1).tolist() == [False, True]
    with torch._subclasses.FakeTensorMode() as mode:
        assert each(mode.from_tensor(x), mode.from_tensor(wrong)).shape == (2,)


def test_check_asks_nothing_of_tensors_without_values() -> None:
    x, wrong = torch.randn(2, 5), torch.tensor([1, 5])
    fr.check(True)
    try:
        assert each(x.to("meta"), wrong.to("meta")).shape == (2,)
        assert compiled(each)(x, wrong).isnan().tolist() == [False, True]
        with pytest.raises(OptionError, match=r"came +5"):
            each(x, wrong)
    finally:
        fr.check(False)
