"""fr.ops losses beside torch.nn.functional's: PyTorch's own samples, options, dtypes, errors."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce.errors import DtypeError, OperandError, OptionError, ShapeError
from tests import chains

each = pytest.mark.parametrize("impl", ["tiles", "eager"])
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
NAMES = ("cross_entropy", "kl_div")


def samples(name: str, dtype: torch.dtype) -> Iterator[Any]:
    """The samples that PyTorch tests its own function with."""
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = [o for o in op_db if o.name == f"nn.functional.{name}"]
    torch.manual_seed(0)
    yield from info.sample_inputs("cpu", dtype, requires_grad=True)


def close(got: torch.Tensor, fn: Any, args: Any, kwargs: Any, k: float) -> None:
    """error <= k x that of torch at this precision, plus a floor; against float64.

    In float64 torch is the reference itself: as close as its own tests ask for.
    """
    plain, right = fn(args, kwargs), fn(doubled(args), doubled(kwargs))
    assert got.dtype == plain.dtype
    assert got.shape == plain.shape
    if got.dtype == torch.float64:
        return torch.testing.assert_close(got, plain, equal_nan=True)
    both = got.isfinite() & right.isfinite()
    assert torch.equal(got.isfinite(), right.isfinite())
    if not both.any():
        return
    scale = max(1e-3, float(right[both].abs().max()))
    floor = (16 * torch.finfo(torch.float32).eps + torch.finfo(got.dtype).eps) * scale
    error, eager = (float((t.double() - right)[both].abs().max()) for t in (got, plain))
    assert error <= k * eager + floor, (error, eager, floor)


def doubled(given: Any) -> Any:
    if isinstance(given, dict):
        return {n: doubled(v) for n, v in given.items()}
    if isinstance(given, (tuple, list)):
        return tuple(map(doubled, given))
    floating = isinstance(given, torch.Tensor) and given.is_floating_point()
    return given.detach().double().requires_grad_(given.requires_grad) if floating else given


def gradients(fn: Any, up: torch.Tensor) -> Any:
    """(args, kwargs) -> the gradients of sum(fn * up) for all that wants one, as one tensor."""

    def run(args: Any, kwargs: Any) -> torch.Tensor:
        wanted = [t for t in (*args, *kwargs.values())
                  if isinstance(t, torch.Tensor) and t.requires_grad]  # fmt: skip
        out = fn(*args, **kwargs)
        found = torch.autograd.grad(out, wanted, up.to(out))
        return torch.cat([g.flatten() for g in found])

    return run


@pytest.mark.parametrize("name", NAMES)
@DTYPES
@each
def test_samples_of_pytorch(name: str, dtype: torch.dtype, impl: str) -> None:
    ours, theirs = getattr(fr.ops, name), getattr(F, name)
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs about "mean", both about size_average
        for s in samples(name, dtype):
            args, kwargs = (s.input, *s.args), s.kwargs
            got = ours(*args, **kwargs, impl=impl)
            close(got.detach(), lambda a, k: theirs(*a, **k).detach(), args, kwargs, 2.0)
            up = torch.randn(got.shape, dtype=torch.float64)
            found = gradients(lambda *a, **k: ours(*a, **k, impl=impl), up)(args, kwargs)
            close(found, gradients(theirs, up), args, kwargs, 3.0)
            count += 1
    assert count >= 10


OPTIONS = [
    dict(zip(("weighted", "label_smoothing", "reduction", "shape"), o, strict=True))
    for o in itertools.product(
        (False, True), (0.0, 0.1), ("none", "mean", "sum"), ((7,), (5, 7), (3, 7, 2, 2))
    )
]


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_cross_entropy(options: dict[str, Any], soft: bool) -> None:
    options = dict(options)
    shape, weighted = options.pop("shape"), options.pop("weighted")
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 7, shape[:1] + shape[2:] if len(shape) > 1 else ())
    if soft:
        target = torch.softmax(torch.randn(shape, dtype=torch.float64), min(len(shape) - 1, 1))
    elif len(shape) > 1:
        target.flatten()[1::3] = -100
    options["weight"] = torch.rand(7, dtype=torch.float64) if weighted else None
    got, right = (f(x, target, **options) for f in (fr.ops.cross_entropy, F.cross_entropy))
    torch.testing.assert_close(got, right)
    up = torch.randn_like(right)
    one, two = (torch.autograd.grad(t, x, up)[0] for t in (got, right))
    torch.testing.assert_close(one, two)


@each
def test_all_options_at_once_pass_gradcheck(impl: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5, 2, dtype=torch.float64, requires_grad=True)
    w = (torch.rand(5, dtype=torch.float64) + 0.1).requires_grad_()
    p = torch.softmax(torch.randn(4, 5, 2, dtype=torch.float64), 1).requires_grad_()
    labels = torch.randint(0, 5, (4, 2))
    labels[0, 0] = -100
    more = dict(label_smoothing=0.1, z_loss=0.1, return_z_loss=True, softcap=5.0, logit_scale=0.7)
    for reduction in ("none", "mean"):
        options: Any = {**more, "reduction": reduction, "impl": impl}
        check, twice = torch.autograd.gradcheck, torch.autograd.gradgradcheck
        assert check(lambda x, w: fr.ops.cross_entropy(x, labels, w, **options), (x, w))  # noqa: B023
        assert check(lambda x, p, w: fr.ops.cross_entropy(x, p, w, **options), (x, p, w))  # noqa: B023
        assert twice(lambda x: fr.ops.cross_entropy(x, labels, **options), (x,))  # noqa: B023


@each
def test_head_and_divergences_pass_gradcheck(impl: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 5, (3, 2))
    labels[0, 0] = -100
    check = torch.autograd.gradcheck
    wanted = ("loss", "log_prob", "entropy")
    options: Any = dict(z_loss=0.1, softcap=5.0, logit_scale=0.7, impl=impl)
    assert check(lambda x: tuple(fr.ops.loss_head(x, labels, wanted, **options).values()), (x,))
    q, p = (torch.log_softmax(torch.randn(3, 5, dtype=torch.float64), -1).requires_grad_()
            for _ in "qp")  # fmt: skip
    rows = labels[:, 0]
    for beta in (0.0, 0.3, 1.0):
        for reduction in ("none", "mean", "batchmean", "sum"):
            assert check(
                lambda q, p: fr.ops.js_div(q, p, beta, labels=rows, reduction=reduction, impl=impl),  # noqa: B023
                (q, p),
            )
    assert check(lambda q, p: fr.ops.tvd(q.exp(), p.exp(), labels=rows, impl=impl), (q, p))
    assert check(lambda q, p: fr.ops.kl_div(q, p, reduction="batchmean", log_target=True), (q, p))


@each
def test_the_z_loss_apart(impl: str) -> None:
    """Part of the loss, and told again; its mean is over rows, the loss's over labels' weights."""
    x, w = torch.randn(6, 7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    target = torch.tensor([0, 3, -100, 6, 2, -100])
    z_rows = 0.01 * torch.logsumexp(x, 1)[target != -100] ** 2
    for reduction, right in (("mean", z_rows.mean()), ("sum", z_rows.sum())):
        loss, z = fr.ops.cross_entropy(
            x, target, w, reduction=reduction, z_loss=0.01, return_z_loss=True, impl=impl
        )
        torch.testing.assert_close(z, right)
        plain = F.cross_entropy(x, target, w, reduction=reduction)
        torch.testing.assert_close(loss, plain + right)
    _, z = fr.ops.cross_entropy(x, target, return_z_loss=True, impl=impl)
    assert z == 0


@each
def test_a_learned_scale_and_softcap(impl: str) -> None:
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 4, -100, 2])
    scale, cap = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.7, 3.0))

    def loss(x: Any, scale: Any, cap: Any) -> Any:
        options = dict(logit_scale=scale, softcap=cap, z_loss=0.1, impl=impl)
        head = fr.ops.loss_head(x, target, ("loss", "entropy"), **options)
        return fr.ops.cross_entropy(x, target, **options), head["loss"], head["entropy"]

    assert torch.autograd.gradcheck(loss, (x, scale, cap))


@each
def test_dtypes_may_be_mixed(impl: str) -> None:
    x, weight, p = torch.randn(4, 6).bfloat16(), torch.rand(6), torch.rand(4, 6)
    target = torch.tensor([0, 5, -100, 3], dtype=torch.int32)
    options = dict(reduction="none", impl=impl)
    got = fr.ops.cross_entropy(x, target, weight, **options)
    right = F.cross_entropy(x.float(), target.long(), weight, reduction="none")
    torch.testing.assert_close(got, right.bfloat16())
    got = fr.ops.cross_entropy(x, p, weight, **options)
    torch.testing.assert_close(got, F.cross_entropy(x.float(), p, weight, reduction="none"))
    got = fr.ops.kl_div(x, p, reduction="batchmean", impl=impl)
    torch.testing.assert_close(got, F.kl_div(x.float(), p, reduction="batchmean"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@each
def test_dtypes_are_torchs(dtype: torch.dtype, impl: str) -> None:
    x, target = torch.randn(4, 6).to(dtype), torch.randint(0, 6, (4,))
    p = torch.softmax(torch.randn(4, 6), 1)
    calls = (
        lambda m: m.cross_entropy(x, target),
        lambda m: m.cross_entropy(x, p.to(dtype), reduction="none"),
        lambda m: m.kl_div(x, p.to(dtype), reduction="batchmean"),
        lambda m: m.kl_div(x, p.to(dtype), reduction="none"),
    )
    for call in calls:
        assert call(fr.ops).dtype == call(F).dtype == dtype
        with torch.autocast("cpu", torch.bfloat16):
            assert call(fr.ops).dtype == call(F).dtype == torch.float32


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, t: fr.ops.cross_entropy(torch.tanh(x), t, z_loss=0.1, reduction="none"),
        lambda x, t: fr.ops.loss_head(2 * x, t, ("log_prob", "entropy")),
        lambda x, t: fr.ops.kl_div(x, torch.softmax(x, -1), reduction="none"),
        lambda x, t: fr.ops.js_div(
            torch.log_softmax(x, -1), x - fr.ops.logsumexp(x, 1, True), reduction="none"
        ),
    ],
    ids=["cross_entropy", "loss_head", "kl_div", "js_div"],
)
def test_inside_a_fused_function(fn: Any) -> None:
    """One kernel of the loss and what stands before it."""
    x, target = torch.randn(4, 6, requires_grad=True), torch.tensor([0, 5, -100, 3])
    fused = fr.fuse(fn)
    for got, right in zip(chains.flat(fused(x, target)), chains.flat(fn(x, target)), strict=True):
        torch.testing.assert_close(got, right)
        one, two = (torch.autograd.grad(t.sum(), x, retain_graph=True)[0] for t in (got, right))
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


def test_torchs_older_names_of_reductions() -> None:
    x, target = torch.randn(4, 6), torch.randint(0, 6, (4,))
    with pytest.warns(UserWarning, match="deprecated"):
        got = fr.ops.cross_entropy(x, target, size_average=False)
    torch.testing.assert_close(got, F.cross_entropy(x, target, reduction="sum"))


X, Y = torch.randn(4, 6), torch.tensor([0, 5, 2, 3])  # Y - 1 and Y + 1 leave the classes
ERRORS = [
    (lambda: fr.ops.cross_entropy(X, Y, reduction="batchmean"), OptionError, "'batchmean'"),
    (lambda: fr.ops.cross_entropy(X, Y + 1, impl="tiles"), OptionError, "a label is not a class"),
    (lambda: fr.ops.cross_entropy(X, Y.float()), DtypeError, "labels are not signed"),
    (lambda: fr.ops.cross_entropy(X, Y.byte()), DtypeError, "came      uint8"),
    (lambda: fr.ops.cross_entropy(X, Y[:3]), ShapeError, r"shape \(4,\)"),
    (lambda: fr.ops.cross_entropy(X, Y, torch.ones(5)), ShapeError, "`weight` does not fit"),
    (lambda: fr.ops.cross_entropy(X.long(), Y), DtypeError, "`input` does not hold"),
    (lambda: fr.ops.cross_entropy(X[0, 0], Y[0]), ShapeError, "no dimension of classes"),
    (lambda: fr.ops.cross_entropy(X, Y, label_smoothing=1.5), OptionError, "label_smoothing"),
    (lambda: fr.ops.cross_entropy(X, Y, softcap=0.0), OptionError, "softcap"),
    (lambda: fr.ops.cross_entropy(X, X, ignore_index=0), OptionError, "`ignore_index` beside"),
    (lambda: fr.ops.cross_entropy(X, X.long()), DtypeError, "`target` does not hold"),
    (lambda: fr.ops.loss_head(X, Y, "perplexity"), OptionError, "loss, log_prob, entropy"),
    (lambda: fr.ops.loss_head(X, Y - 1), OptionError, "a label is not a class"),
    (lambda: fr.ops.kl_div(X, X[:, :5]), ShapeError, "do not broadcast"),
    (lambda: fr.ops.kl_div(X, Y), DtypeError, "`target`"),
    (lambda: fr.ops.js_div(X, X, 1.5), OptionError, "beta"),
    (lambda: fr.ops.js_div(X, X[:, :5]), ShapeError, "`target`"),
    (lambda: fr.ops.js_div(X, X, labels=Y[:3]), ShapeError, "`labels`"),
    (lambda: fr.ops.tvd(X, X, reduction="all"), OptionError, "'batchmean'"),
    (lambda: fr.ops.tvd(X, X[:, :5]), ShapeError, r"tvd: `q` .*\n.*that of `p`"),
    (lambda: fr.ops.kl_div(None, X), OperandError, "kl_div: `input` is not a tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), ERRORS, ids=[t for *_, t in ERRORS])
def test_errors(call: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text) as raised:
        call()
    assert re.match(r"\w+: ", str(raised.value)), "it says which operation"
