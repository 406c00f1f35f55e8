"""Operations at the edges: shapes, dtypes, layouts, options, and what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce import ops
from fusedreduce.errors import (
    DeviceError,
    DtypeError,
    FusedReduceError,
    OperandError,
    OptionError,
    ShapeError,
)
from tests import chains
from tests.accuracy import require_near

X = torch.randn(2, 6, 4)
INF = float("inf")


# ---- signatures --------------------------------------------------------------------------------

OURS = {"impl", "residual", "weight_offset", "casting"}


@pytest.mark.parametrize("name", ["group_norm", "instance_norm", "layer_norm", "normalize"])
def test_signatures_are_those_of_functional(name: str) -> None:
    theirs = inspect.signature(getattr(F, name)).parameters
    ours = inspect.signature(getattr(ops, name)).parameters
    assert [(p.name, p.default, p.kind) for p in theirs.values()] == [
        (p.name, p.default, p.kind) for p in ours.values() if p.name not in OURS
    ]


@pytest.mark.parametrize("name", ops.__all__)
def test_what_torch_lacks_is_given_by_name(name: str) -> None:
    parameters = inspect.signature(getattr(ops, name)).parameters
    assert all(parameters[p].kind is inspect.Parameter.KEYWORD_ONLY for p in OURS & {*parameters})
    assert "impl" in parameters
    assert ">>>" in getattr(ops, name).__doc__


# ---- shapes ------------------------------------------------------------------------------------

CALLS = {
    "softmax": (lambda n, x: n.softmax(x, dim=-1), torch),
    "log_softmax": (lambda n, x: n.log_softmax(x, dim=0), torch),
    "softmin": (lambda n, x: n.softmin(x, dim=0), F),
    "logsumexp": (lambda n, x: n.logsumexp(x, -1), torch),
    "var_mean": (lambda n, x: n.var_mean(x, -1, correction=0), torch),
    "var_mean of all": (lambda n, x: n.var_mean(x, None, keepdim=True), torch),
    "normalize": (lambda n, x: n.normalize(x, dim=-1), F),
    "cosine_similarity": (lambda n, x: n.cosine_similarity(x, x + 1, dim=-1), F),
}
LASTS = {
    "layer_norm": (lambda n, x: n.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1:])), F),
    "rms_norm": (lambda n, x: n.rms_norm(x, x.shape[-1:], x.new_ones(x.shape[-1:])), torch),
}


@pytest.mark.parametrize("name", [*CALLS, *LASTS])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (2, 0, 3), (2, 1, 3)], ids=str)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
def test_shapes_with_nothing_or_one_in_them(name: str, shape: tuple[int, ...]) -> None:
    if name in LASTS and shape == ():
        pytest.skip("torch refuses, and so do we: test_refusals")
    call, theirs = (CALLS | LASTS)[name]
    x, y = (torch.full(shape, 2.0).requires_grad_() for _ in "xy")
    got, wanted = chains.flat(call(ops, x)), chains.flat(call(theirs, y))
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, equal_nan=True)
    up = [torch.ones_like(t) for t in wanted]
    (gx,), (gy,) = torch.autograd.grad(got, x, up), torch.autograd.grad(wanted, y, up)
    torch.testing.assert_close(gx, gy, equal_nan=True)


def test_empty_images() -> None:
    for shape in ((0, 4, 3), (2, 4, 0)):
        x = torch.empty(shape)
        assert ops.group_norm(x, 2, torch.ones(4)).shape == shape
        assert ops.instance_norm(x, weight=torch.ones(4)).shape == shape
    running = torch.zeros(4), torch.ones(4)
    ops.instance_norm(torch.empty(0, 4, 3), *running)
    assert torch.equal(running[0], torch.zeros(4))


@pytest.mark.parametrize("dims", [0, 1, -1, (0, 2), (1, 2), (0, 1, 2), [0, -1]], ids=str)
def test_any_dimensions(dims: Any) -> None:
    torch.testing.assert_close(ops.logsumexp(X, dims), torch.logsumexp(X, dims))
    for keepdim in (False, True):
        torch.testing.assert_close(
            ops.var_mean(X, dims, True, keepdim), torch.var_mean(X, dims, True, keepdim)
        )
    torch.testing.assert_close(ops.normalize(X, 2.0, dims), F.normalize(X, 2.0, dims))


def test_ways_to_say_the_correction() -> None:
    torch.testing.assert_close(ops.var_mean(X, False), torch.var_mean(X, False))
    torch.testing.assert_close(ops.var_mean(X, 1, False), torch.var_mean(X, 1, False))
    for c in (0, 1, 0.5, 2, -1):
        torch.testing.assert_close(
            ops.var_mean(X, 1, correction=c), torch.var_mean(X, 1, correction=c)
        )


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
def test_no_degree_of_freedom_left() -> None:
    x = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    for c in (2, 5):
        got, wanted = ops.var_mean(x, 1, correction=c)[0], torch.var_mean(x, 1, correction=c)[0]
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("a", "b", "dim"),
    [((5, 1, 4), (1, 6, 4), -1), ((4,), (3, 4), 1), ((3, 4), (3, 1), 1), ((2, 3, 4), (3, 4), 1)],
    ids=str,
)
def test_similarity_broadcasts(a: tuple, b: tuple, dim: int) -> None:
    x, y = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in (a, b))
    got, wanted = ops.cosine_similarity(x, y, dim), F.cosine_similarity(x, y, dim)
    torch.testing.assert_close(got, wanted)
    up = torch.randn_like(wanted)
    for g, w in zip(
        torch.autograd.grad(got, (x, y), up), torch.autograd.grad(wanted, (x, y), up), strict=True
    ):
        torch.testing.assert_close(g, w)


# ---- rows of zeros, and norms of every p ---------------------------------------------------


@pytest.mark.parametrize("p", [2.0, 1.0, 3, 0.5, 0, INF, -INF, -1.0, -2.5], ids=str)
def test_normalize_by_every_norm(p: float) -> None:
    x = torch.randn(4, 5, dtype=torch.float64)
    x[1], x[2, 3] = 0.0, 0.0
    x[3] *= 1e-14  # below eps
    x.requires_grad_()
    got, wanted = ops.normalize(x, p), F.normalize(x, p)
    torch.testing.assert_close(got, wanted)
    up = torch.randn_like(x)
    (g,), (w,) = torch.autograd.grad(got, x, up), torch.autograd.grad(wanted, x, up)
    torch.testing.assert_close(g, w)


@pytest.mark.parametrize("p", [2.0, 3.0, 0.5], ids=str)
def test_norms_that_torch_overflows(p: float) -> None:
    x = 1e30 * torch.randn(3, 7)
    torch.testing.assert_close(ops.normalize(x, p), F.normalize(x.double(), p).float())
    got = ops.cosine_similarity(x, x + 1e29)
    right = F.cosine_similarity(x.double(), (x + 1e29).double())
    torch.testing.assert_close(got, right.float())


def test_similarity_with_a_vector_of_zeros() -> None:
    x, y = torch.zeros(2, 3), torch.randn(2, 3)
    x[1] = 1e-16  # torch's slope keeps |x| where its value has eps
    given = [t.requires_grad_() for t in (x, y)]
    got, wanted = ops.cosine_similarity(x, y), F.cosine_similarity(x, y)
    torch.testing.assert_close(got, wanted)
    for g, w in zip(
        torch.autograd.grad(got.sum(), given), torch.autograd.grad(wanted.sum(), given), strict=True
    ):
        torch.testing.assert_close(g, w)


# ---- dtypes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_converted_first(name: str, dtype: torch.dtype) -> None:
    theirs = F if name == "softmin" else torch
    for x in (X, (3 * X).long(), X > 0):
        if name == "softmin" and x.dtype == torch.bool:
            continue  # torch has no -x of it
        got = getattr(ops, name)(x, -1, dtype=dtype)
        wanted = getattr(theirs, name)(x, -1, dtype=dtype)
        right = getattr(theirs, name)(x.to(dtype).double(), -1)
        require_near(got, right, wanted, 2.0)


def test_logsumexp_of_integers() -> None:
    for x in ((3 * X).long(), X > 0, (3 * X).to(torch.int8)):
        torch.testing.assert_close(ops.logsumexp(x, 1), torch.logsumexp(x, 1))


# ---- layouts -----------------------------------------------------------------------------------

VIEWS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every other column": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand(2, -1, -1),
    "a window": lambda x: F.pad(x, (3, 5), value=float("nan"))[..., 3:-5],
    "permuted": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("up", ["random", "expanded", "transposed"])
def test_strides_in_and_strides_back(view: str, up: str) -> None:
    x = VIEWS[view](X)
    w = torch.randn(4, 2)[:, 1]
    ups = {
        "random": torch.randn(2, 6, 4),
        "expanded": torch.ones(()).expand(2, 6, 4),
        "transposed": torch.randn(2, 4, 6).mT,
    }
    calls = [
        lambda n, x, w: n.layer_norm(x, (4,), w),
        lambda n, x, w: n.group_norm(x.mT, 2, w),
        lambda n, x, w: n.instance_norm(x.mT, weight=w, bias=w),
        lambda n, x, w: n.softmin(x * w, -2),
    ]
    for call in calls:
        args = [t.detach().requires_grad_() for t in (x, w)]
        got, wanted = call(ops, *args), call(F, *args)
        torch.testing.assert_close(got, wanted)
        back = ups[up] if got.shape == ups[up].shape else ups[up].mT
        for g, r in zip(
            torch.autograd.grad(got, args, back),
            torch.autograd.grad(wanted, args, back),
            strict=True,
        ):
            torch.testing.assert_close(g, r, rtol=1e-5, atol=1e-5)


def test_nothing_given_is_modified() -> None:
    x, w, h = X.clone(), torch.randn(4), torch.randn(2, 6, 4)
    before = [t.clone() for t in (x, w, h)]
    ops.rms_norm(x, (4,), w, residual=h)
    ops.layer_norm(x, (4,), w, w)
    ops.instance_norm(x)
    assert all(map(torch.equal, before, (x, w, h)))


# ---- options -----------------------------------------------------------------------------------


def test_out_of_normalize() -> None:
    out = torch.empty(0)
    assert ops.normalize(X, out=out) is out
    torch.testing.assert_close(out, F.normalize(X))
    with pytest.raises(OptionError, match="differentiable"):
        ops.normalize(X.clone().requires_grad_(), out=out)
    with pytest.raises(OptionError, match="another dtype"):
        ops.normalize(X, out=out.double())


def test_running_statistics_over_steps() -> None:
    ours, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    for momentum in (0.1, 0.3, 0.0, 1.0):
        x = torch.randn(2, 6, 4).requires_grad_()
        got = ops.instance_norm(x, *ours, momentum=momentum)
        wanted = F.instance_norm(x, *theirs, momentum=momentum)
        torch.testing.assert_close(got, wanted)
        (g,), (w,) = (torch.autograd.grad(y.square().sum(), x) for y in (got, wanted))
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
            assert not a.requires_grad
    torch.testing.assert_close(
        ops.instance_norm(X, *ours, use_input_stats=False),
        F.instance_norm(X, *theirs, use_input_stats=False),
    )


def test_residual_of_another_dtype() -> None:
    x, h = X.bfloat16(), X.flip(0)
    y, out = ops.rms_norm(x, (4,), residual=h)
    assert (y.dtype, out.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(out, x.float() + h)
    torch.testing.assert_close(y, torch.rms_norm(out, (4,)).bfloat16())


def test_inside_a_fused_function() -> None:
    """One kernel of two operations and what stands between them."""

    @fr.fuse
    def gated(x, w):
        return ops.softmax(ops.layer_norm(x, (4,), w) * 2.0, -1)

    x, w = X.clone().requires_grad_(), torch.randn(4).requires_grad_()
    wanted = torch.softmax(F.layer_norm(x, (4,), w) * 2.0, -1)
    torch.testing.assert_close(gated(x, w), wanted)
    assert gated.source(x, w).count("tl.store(") == 1
    up = torch.randn_like(wanted)
    for g, r in zip(
        torch.autograd.grad(gated(x, w), (x, w), up),
        torch.autograd.grad(wanted, (x, w), up),
        strict=True,
    ):
        torch.testing.assert_close(g, r, rtol=1e-4, atol=1e-5)


# ---- refusals ----------------------------------------------------------------------------------

W5 = torch.randn(5)
REFUSED = {
    "no tensor": (lambda: ops.softmax([1.0], 0), OperandError, "`input` is not a tensor"),
    "integers": (lambda: ops.softmax(X.long(), 0), DtypeError, "floating-point"),
    "an integer dtype": (lambda: ops.softmax(X, 0, torch.int64), DtypeError, "`dtype`"),
    "no dim": (lambda: ops.softmax(X, None), ShapeError, "`dim`"),
    "a dim too many": (lambda: ops.log_softmax(X, 3), ShapeError, "from -3 to 2"),
    "several dims": (lambda: ops.softmin(X, (0, 1)), ShapeError, "`dim`"),
    "logsumexp of no dim": (lambda: ops.logsumexp(X, ()), ShapeError, "names no dimension"),
    "a dim twice": (lambda: ops.logsumexp(X, (0, -3)), ShapeError, "twice"),
    "a number as shape": (lambda: ops.layer_norm(X, 4), OperandError, "not a sequence"),
    "an empty shape": (lambda: ops.layer_norm(X, ()), ShapeError, "`normalized_shape`"),
    "another shape": (lambda: ops.layer_norm(X, (5,)), ShapeError, "`normalized_shape`"),
    "too long a shape": (lambda: ops.rms_norm(X[0, 0], (6, 4)), ShapeError, "`normalized_shape`"),
    "a long weight": (lambda: ops.layer_norm(X, (4,), W5), ShapeError, "`weight`"),
    "a long bias": (lambda: ops.layer_norm(X, (4,), None, W5), ShapeError, "`bias`"),
    "integer input": (lambda: ops.rms_norm(X.long(), (4,)), DtypeError, "`input`"),
    "integer weight": (lambda: ops.rms_norm(X, (4,), W5[:4].long()), DtypeError, "`weight`"),
    "a short residual": (lambda: ops.rms_norm(X, (4,), residual=X[0]), ShapeError, "`residual`"),
    "an unknown casting": (lambda: ops.rms_norm(X, (4,), casting="none"), OptionError, "`casting`"),
    "channels of nothing": (lambda: ops.group_norm(W5, 1), ShapeError, "no channels"),
    "groups that do not divide": (lambda: ops.group_norm(X, 4), ShapeError, "divisor of 6"),
    "no groups": (lambda: ops.group_norm(X, 0), ShapeError, "divisor of 6"),
    "one value a group": (lambda: ops.group_norm(X[:1, :, 0], 6), ShapeError, "no spread"),
    "one position": (lambda: ops.instance_norm(X[:, :, :1]), ShapeError, "no spread"),
    "no running ones": (
        lambda: ops.instance_norm(X, use_input_stats=False), OptionError, "missing"),
    "half of running": (lambda: ops.instance_norm(X, W5.new_zeros(6)), OptionError, "running_var"),
    "variance of integers": (lambda: ops.var_mean(X.long()), DtypeError, "`input`"),
    "two corrections": (
        lambda: ops.var_mean(X, 1, True, correction=1), OptionError, "say the same"),
    "a p that is none": (lambda: ops.normalize(X, "fro"), OptionError, "`p`"),
    "NaN as p": (lambda: ops.normalize(X, float("nan")), OptionError, "`p`"),
    "no broadcast": (lambda: ops.cosine_similarity(X, W5), ShapeError, "broadcast"),
    "an unknown impl": (lambda: ops.softmax(X, 0, impl="cuda"), OptionError, "impl"),
    "Triton without a GPU": (lambda: ops.softmax(X, 0, impl="triton"), DeviceError, "GPU"),
    "complex": (lambda: ops.logsumexp(X * 1j, 0), FusedReduceError, "complex"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    call, error, part = REFUSED[what]
    with pytest.raises(error, match=part):
        call()
