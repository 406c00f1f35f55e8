"""Operations as programs use them: changed inputs, some gradients only, hooks, threads, files."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce import ops
from fusedreduce.errors import FusedReduceError, OptionError, ShapeError

Call = Callable[..., Any]
N = 8


def rows(w: torch.Tensor) -> torch.Tensor:
    """A distribution for each row, of which torch can say that it changed."""
    return torch.log_softmax(w.expand(5, N), -1).clone()


CALLS: dict[str, Call] = {
    "softmax": lambda x, w, t: ops.softmax(x, -1),
    "softmin": lambda x, w, t: ops.softmin(x, 0),
    "log_softmax": lambda x, w, t: ops.log_softmax(x, -1),
    "logsumexp": lambda x, w, t: ops.logsumexp(x, -1),
    "layer_norm": lambda x, w, t: ops.layer_norm(x, (N,), w),
    "rms_norm": lambda x, w, t: ops.rms_norm(x, (N,), w),
    "group_norm": lambda x, w, t: ops.group_norm(x, 2, w),
    "instance_norm": lambda x, w, t: ops.instance_norm(x.T[None], weight=w),
    "var_mean": lambda x, w, t: ops.var_mean(x, -1)[0],
    "normalize": lambda x, w, t: ops.normalize(x),
    "cosine_similarity": lambda x, w, t: ops.cosine_similarity(x, w),
    "cross_entropy": lambda x, w, t: ops.cross_entropy(x, t, w),
    "probabilities": lambda x, w, t: ops.cross_entropy(x, rows(w).exp()),
    "loss_head": lambda x, w, t: ops.loss_head(x, t, "loss")["loss"],
    "kl_div": lambda x, w, t: ops.kl_div(x, w, reduction="sum", log_target=True),
    "js_div": lambda x, w, t: ops.js_div(x, rows(w)),
    "tvd": lambda x, w, t: ops.tvd(x, rows(w).exp()),
}
each = pytest.mark.parametrize("name", CALLS)


def inputs(*wanted: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(5, N), torch.rand(N) + 0.1
    for t, r in zip((x, w), wanted, strict=False):
        t.requires_grad_(r)
    return x, w, torch.arange(5)


WITH_W = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "cosine_similarity",
          "cross_entropy", "kl_div")  # fmt: skip
READ = [(n, 0) for n in CALLS] + [(n, 1) for n in WITH_W]
READ += [("cross_entropy", 2), ("loss_head", 2)]


@pytest.mark.parametrize(("name", "changed"), READ)
def test_inputs_changed_before_the_backward_are_refused(name: str, changed: int) -> None:
    """Each input that the backward reads: x, w, labels."""
    x, w, t = inputs(True, True)
    given = (x * 1.0, w * 1.0, t)
    y = CALLS[name](*given)
    with torch.no_grad():
        given[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@each
@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=["x", "w"])
def test_gradients_of_one_input_alone(name: str, wanted: tuple[bool, bool]) -> None:
    """The same bits as when both are asked for."""
    both = inputs(True, True)
    all_of_them = torch.autograd.grad(CALLS[name](*both).sum(), both[:2], allow_unused=True)
    one = inputs(*wanted)
    y = CALLS[name](*one)
    assert y.requires_grad == (all_of_them[wanted.index(True)] is not None)
    if y.requires_grad:
        (alone,) = torch.autograd.grad(y.sum(), one[wanted.index(True)])
        torch.testing.assert_close(alone, all_of_them[wanted.index(True)], rtol=0, atol=0)


@each
def test_twice_and_with_hooks(name: str) -> None:
    """A kept graph runs again; hooks on saved tensors and on results are heard."""
    x, w, t = inputs(True)
    right = torch.autograd.grad(CALLS[name](x, w, t).sum(), x)[0]
    seen = []
    keep = lambda t: (seen.append(t), t.clone())[1]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = CALLS[name](x, w, t)
    y.register_hook(lambda g: 2 * g)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 4 * right)
    assert seen
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


@each
def test_many_gradients_in_one_go(name: str) -> None:
    x, w, t = inputs(True)
    y = CALLS[name](x, w, t)
    ups = torch.randn(3, *y.shape)
    (got,) = torch.autograd.grad(y, x, ups, is_grads_batched=True, retain_graph=True)
    right = [torch.autograd.grad(y, x, up, retain_graph=True)[0] for up in ups]
    torch.testing.assert_close(got, torch.stack(right))


def test_threads_at_first_use() -> None:
    """Eight threads meet operations, at sizes that nobody prepared."""
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(201, 207):
                x = torch.randn(3, n, requires_grad=True)
                y = ops.rms_norm(x, (n,)) + ops.softmax(x, -1)
                y.sum().backward()
                right = F.rms_norm(x, (n,)) + x.softmax(-1)
                torch.testing.assert_close(y, right)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


MODULES = [
    (fr.nn.LayerNorm(N), (5, N)), (fr.nn.RMSNorm(N), (5, N)), (fr.nn.GroupNorm(2, N), (5, N)),
    (fr.nn.InstanceNorm1d(N, affine=True, track_running_stats=True), (5, N, 3)),
    (fr.nn.Softmax(-1), (5, N)), (fr.nn.CosineSimilarity(), (5, N)),
    (fr.nn.CrossEntropyLoss(torch.rand(N), z_loss=0.1), (5, N)), (fr.nn.KLDivLoss(), (5, N)),
]  # fmt: skip
modules = pytest.mark.parametrize(
    ("module", "shape"), MODULES, ids=[type(m).__name__ for m, _ in MODULES]
)


def given(module: torch.nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    x = torch.randn(shape).to(dtype)
    two = (fr.nn.CosineSimilarity, fr.nn.CrossEntropyLoss, fr.nn.KLDivLoss)
    return (x, x.softmax(-1)) if isinstance(module, two) else (x,)


@modules
def test_modules_are_copied_and_kept_in_files(module: torch.nn.Module, shape: Any) -> None:
    kept = io.BytesIO()
    torch.save(module, kept)
    kept.seek(0)
    args = given(module, shape, torch.float32)
    copies = (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(kept, weights_only=False),
    )
    right = copy.deepcopy(module)(*args)
    for again in copies:
        assert torch.equal(again(*args), right)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        module.load_state_dict({**module.state_dict(), "more": torch.ones(1)})


@modules
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_modules_change_their_dtype(module: Any, shape: Any, dtype: torch.dtype) -> None:
    made = copy.deepcopy(module).to(dtype)
    args = given(module, shape, dtype)
    y = made(*(a.requires_grad_() for a in args))
    assert y.dtype == dtype
    y.sum().backward()
    assert all(p.grad.dtype == dtype for p in made.parameters())


def test_an_ensemble_of_modules() -> None:
    norms = [fr.nn.LayerNorm(N) for _ in range(3)]
    for m in norms:
        torch.nn.init.normal_(m.weight)
    state = torch.func.stack_module_state(norms)
    loss = lambda p, b, x: torch.func.functional_call(norms[0], (p, b), (x,)).sin().sum()
    x = torch.randn(5, N)
    got = torch.vmap(torch.func.grad(loss), (0, 0, None))(*state, x)
    for k, m in enumerate(norms):
        m(x).sin().sum().backward()
        torch.testing.assert_close(got["weight"][k], m.weight.grad)


def test_integers_and_numbers_of_any_make() -> None:
    x, _, t = inputs()
    close = torch.testing.assert_close
    close(ops.softmax(x, numpy.int64(1)), x.softmax(1))
    close(ops.group_norm(x, numpy.int64(2)), F.group_norm(x, 2))
    close(ops.layer_norm(x, (N,), eps=torch.tensor(0.1)), F.layer_norm(x, (N,), eps=0.1))
    smooth = torch.tensor(0.25)
    close(
        ops.cross_entropy(x, t, label_smoothing=smooth), F.cross_entropy(x, t, label_smoothing=0.25)
    )
    close(ops.cross_entropy(x, t, logit_scale=torch.tensor([2.0])), F.cross_entropy(2 * x, t))


X, Y = inputs()[0], inputs()[2]
REFUSED: list[tuple[Call, type[FusedReduceError], str]] = [
    (lambda: ops.softmax(X, True), ShapeError, "softmax: `dim`"),
    (lambda: ops.group_norm(X, 2.0), ShapeError, "`num_groups` does not divide"),
    (lambda: ops.layer_norm(X, (N,), eps="small"), OptionError, "`eps` is not a number"),
    (lambda: ops.cross_entropy(X, Y, softcap="big"), OptionError, "`softcap` is not a number"),
    (lambda: ops.cross_entropy(X, Y, logit_scale=X[0]), ShapeError, "`logit_scale` is not one"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), REFUSED, ids=[r[2] for r in REFUSED])
def test_refusals(call: Call, kind: type[FusedReduceError], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_results_may_be_changed_and_shared() -> None:
    x = inputs(True)[0]
    y = ops.softmax(x, -1)
    y.mul_(2.0)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.zeros_like(x), atol=1e-6, rtol=0)
    assert torch.equal(torch.from_dlpack(ops.softmax(x.detach(), -1)), ops.softmax(x, -1))
