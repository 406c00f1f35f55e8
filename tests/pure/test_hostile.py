"""Inputs that nobody means to give: what went wrong with them once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce import ops

INF = float("inf")


# ---- labels in dtypes that do not hold what they are compared with -------------------------------


@pytest.mark.parametrize(
    ("dtype", "classes"), [(torch.int8, 300), (torch.int8, 128), (torch.int16, 40_000)]
)
@pytest.mark.parametrize("ignore_index", [-100, -(2**40), 259])
def test_narrow_labels_of_many_classes(dtype: torch.dtype, classes: int, ignore_index: int) -> None:
    """300 is 44 in int8, and 259 is 3: both would be other classes."""
    x = torch.randn(4, classes)
    target = torch.tensor([0, min(classes - 1, torch.iinfo(dtype).max), 100, 3], dtype=dtype)
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    loss = ops.cross_entropy(mine, target, ignore_index=ignore_index)
    right = F.cross_entropy(theirs, target.long(), ignore_index=ignore_index)
    torch.testing.assert_close(loss, right)
    gradients = torch.autograd.grad(loss, mine), torch.autograd.grad(right, theirs)
    torch.testing.assert_close(*gradients)
    head = ops.loss_head(x, target, "loss", ignore_index=ignore_index)
    torch.testing.assert_close(head["loss"], loss.detach())


def test_narrow_labels_of_a_divergence() -> None:
    p, q = (torch.randn(3, 5).softmax(-1) for _ in range(2))
    labels = torch.tensor([0, 3, 4], dtype=torch.int8)
    found = ops.tvd(p, q, labels=labels, ignore_index=259)  # 259 is 3 in int8
    torch.testing.assert_close(found, ops.tvd(p, q))
    with pytest.raises(fr.errors.DtypeError, match="not signed integers"):
        ops.tvd(p, q, labels=labels.to(torch.uint8))  # -100 is 156 in uint8


# ---- tangents ------------------------------------------------------------------------------------


def weighted(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The weighted mean by hand: torch's own has no slope along the weights."""
    log_p = x.log_softmax(-1).gather(1, target[:, None])[:, 0]
    return -(weight[target] * log_p).sum() / weight[target].sum()


def test_the_divisor_of_a_weighted_mean_has_a_tangent() -> None:
    x, target = torch.randn(3, 7).double(), torch.tensor([0, 1, 1])
    weight, along = torch.rand(2, 7).double() + 0.1
    for of in (lambda f: f, torch.func.grad):
        mine, right = (
            torch.func.jvp(lambda w, g=of(f): g(x, target, w), (weight,), (along,))
            for f in (ops.cross_entropy, weighted)
        )
        torch.testing.assert_close(mine, right)


# ---- `empty` -------------------------------------------------------------------------------------


class Counted(fr.reductions.LogSumExp):
    """Absent elements of the sum are still counted."""

    n = fr.Sum(lambda x: 1.0)
    empty = {"lse": 5.0, "n": 7.0}
    definition = None

    def finish(m, s, n):
        return {"lse": m + torch.log(s), "n": n}


@pytest.mark.parametrize("impl", ["tiles", "eager"])
def test_an_output_is_empty_whatever_else_is_asked_for(impl: str) -> None:
    rows = torch.tensor([[-INF, -INF, -INF], [0.0, 0.0, 0.0]])
    right = torch.tensor([5.0, 1.0986123])
    torch.testing.assert_close(fr.reduce(Counted, rows, outputs="lse", impl=impl), right)
    both = fr.reduce(Counted, rows, impl=impl)
    torch.testing.assert_close(both, {"lse": right, "n": torch.full((2,), 3.0)})
    joined = fr.reduce(fr.join(Counted, fr.reductions.Largest), rows, impl=impl)
    torch.testing.assert_close(joined["Counted"]["lse"], right)


@pytest.mark.parametrize("impl", ["tiles", "eager"])
def test_entropy_of_a_row_of_nothing_beside_its_largest(impl: str) -> None:
    rows, target = torch.full((1, 4), -INF), torch.tensor([1])
    assert ops.loss_head(rows, target, impl=impl)["entropy"].item() == 0.0


def test_the_state_of_a_row_of_nothing_is_finished_alike() -> None:
    rows = torch.full((2, 3), -INF)
    _, state = fr.reduce(Counted, rows, return_state=True)
    found = fr.reduce(Counted, rows, seed=state)
    assert found["lse"].tolist() == [5.0, 5.0]
    assert found["n"].tolist() == [6.0, 6.0]


# ---- torch.compile -------------------------------------------------------------------------------


def test_the_norm_may_vary_under_compile() -> None:
    x = torch.randn(3, 7)
    compiled = torch.compile(ops.normalize, backend="aot_eager", fullgraph=True)
    for p in (1.5, 2.5, 3.5):
        torch.testing.assert_close(compiled(x, p), ops.normalize(x, p))


# ---- sizes whose reciprocal is infinite ----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.5, 1.5, 2.0, 3.0, 40.0])
def test_a_row_of_subnormal_numbers_is_normalized(p: float, dtype: torch.dtype) -> None:
    """Far below eps the gradient is up / eps, not 0 * inf."""
    tiny = torch.finfo(dtype).tiny
    x = (torch.tensor([[0.25, -0.5, 0.0], [6.0, 2.0, 1.0]], dtype=dtype) * tiny).requires_grad_()
    up = torch.tensor([[1.0, 2.0, -1.0], [0.5, 1.0, 3.0]], dtype=dtype)
    y = ops.normalize(x, p, eps=1e-6)
    torch.testing.assert_close(y, x / 1e-6)
    (slope,) = torch.autograd.grad(y, x, up)
    torch.testing.assert_close(slope, up / 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_the_similarity_of_a_row_of_subnormal_numbers_has_a_slope(
    eps: float, dtype: torch.dtype
) -> None:
    """Far below eps it is x . y / (eps |y|): y / (eps |y|) along x, finite."""
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([[0.25, -0.5, 0.0], [6.0, 2.0, 1.0], [0.0] * 3], dtype=dtype) * tiny
    x, y = x.requires_grad_(), torch.tensor([[0.5, 0.5, 1.0], [1.0, 2.0, 1.0], [3.0, 0.0, -4.0]])
    y = y.to(dtype).requires_grad_()
    found = ops.cosine_similarity(x, y, eps=eps)
    slope, other = torch.autograd.grad(found.sum(), (x, y))
    assert other.isfinite().all()
    unit = F.normalize(y.detach().double())
    torch.testing.assert_close(slope, (unit / eps).to(dtype))
    torch.testing.assert_close(found, ((x.double() * unit).sum(1) / eps).to(dtype))


def test_the_similarity_of_subnormal_numbers_alone() -> None:
    x = torch.tensor([[3e-40, -4e-40]], dtype=torch.float32)
    found = ops.cosine_similarity(x, x.flip(1), eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-0.96]))
    far = torch.tensor([[3e-200, -4e-200]], dtype=torch.float64)
    found = ops.cosine_similarity(far, torch.ones(1, 2), eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-0.2 / 2**0.5], dtype=torch.float64))


# ---- products ------------------------------------------------------------------------------------

ROWS_OF_FACTORS = [
    [INF, 0.0, 1.0],
    [INF, 2.0, 1.0],
    [INF, 0.0, 0.0],
    [INF, INF, 0.0],
    [float("nan"), 0.0, 1.0],
    [float("nan"), 0.0, 0.0],
    [float("nan"), INF, 0.0],
    [0.0, 1e30, 1e30],
    [-INF, 2.0, 3.0],
]


@pytest.mark.parametrize("impl", ["tiles", "eager"])
@pytest.mark.parametrize("row", ROWS_OF_FACTORS)
def test_the_slope_of_a_product_is_torchs_where_that_is_infinite(
    row: list[float], impl: str
) -> None:
    """Of each element the product of the others: 0 * inf among them is NaN."""
    mine, theirs = (torch.tensor([row]).requires_grad_() for _ in range(2))
    found, right = fr.reduce(fr.reductions.Product, mine, impl=impl), theirs.prod(-1)
    torch.testing.assert_close(found, right, equal_nan=True)
    slopes = torch.autograd.grad(found.sum(), mine), torch.autograd.grad(right.sum(), theirs)
    torch.testing.assert_close(*slopes, equal_nan=True)


# ---- arguments of another kind -------------------------------------------------------------------

X, LABELS = torch.zeros(2, 3), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ops.cross_entropy(X, [0, 1]), fr.errors.OperandError, "`target` is not a tensor"),
        (lambda: ops.loss_head(X, [0, 1]), fr.errors.OperandError, "`target` is not a tensor"),
        (lambda: ops.tvd(X, X, labels=[0, 1]), fr.errors.OperandError, "`labels` is not a tensor"),
        (lambda: ops.cross_entropy(X, LABELS, ignore_index=1.5), fr.errors.OptionError, "integer"),
        (lambda: ops.cross_entropy(X, LABELS, label_smoothing=None), fr.errors.OptionError, "sha"),
        (lambda: ops.js_div(X, X, "a"), fr.errors.OptionError, "`beta` is no share"),
        (lambda: ops.js_div(X, X, torch.ones(2)), fr.errors.OptionError, "`beta` is no share"),
        (lambda: ops.cross_entropy(X, X, ignore_index="a"), fr.errors.OptionError, "an integer"),
        (lambda: ops.tvd(X, X, labels=LABELS, ignore_index=None), fr.errors.OptionError, "integer"),
        (lambda: ops.loss_head(X, LABELS, None), fr.errors.OptionError, "`outputs`"),
        (lambda: ops.loss_head(X, LABELS, [["loss"]]), fr.errors.OptionError, "`outputs`"),
        (
            lambda: ops.rms_norm(X, (3,), weight_offset="a"),
            fr.errors.OptionError,
            "`weight_offset`",
        ),
        (lambda: ops.var_mean(X, 1, correction="a"), fr.errors.OptionError, "`correction`"),
        (lambda: ops.logsumexp(X, 1j), fr.errors.ShapeError, "dim"),
        (
            lambda: ops.instance_norm(X[None], X[0, :2], X[0, :2], momentum="a"),
            fr.errors.OptionError,
            "`momentum`",
        ),
    ],
)
def test_arguments_of_another_kind(call, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("name", ["z_loss", "softcap", "logit_scale", "label_smoothing"])
@pytest.mark.parametrize("value", ["a", [0.5], torch.ones(3, 1), 1j])
def test_options_that_are_no_number(name: str, value: object) -> None:
    with pytest.raises((fr.errors.OptionError, fr.errors.ShapeError), match=f"`{name}` is no"):
        ops.cross_entropy(X, LABELS, **{name: value})
    if name != "label_smoothing":
        with pytest.raises((fr.errors.OptionError, fr.errors.ShapeError), match=f"`{name}` is no"):
            ops.loss_head(X, LABELS, **{name: value})


@pytest.mark.parametrize(
    ("op", "given", "name"),
    [
        ("layer_norm", ((3,),), "eps"),
        ("rms_norm", ((3,),), "eps"),
        ("group_norm", (3,), "eps"),
        ("normalize", (), "eps"),
        ("normalize", (), "p"),
        ("cosine_similarity", (X,), "eps"),
    ],
)
def test_numbers_that_are_words(op: str, given: tuple[object, ...], name: str) -> None:
    with pytest.raises(fr.errors.OptionError, match=f"{op}: `{name}` is not a number"):
        getattr(ops, op)(X, *given, **{name: "a"})


@pytest.mark.parametrize("name", ["z_loss", "softcap", "logit_scale", "label_smoothing"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_a_tensor_of_one_number_gives_the_loss_no_dimension(
    name: str, shape: tuple[int, ...]
) -> None:
    x, factor = torch.randn(2, 3), torch.full(shape, 0.5, requires_grad=True)
    right = ops.cross_entropy(x, LABELS, reduction="none", **{name: 0.5})
    found = ops.cross_entropy(x, LABELS, reduction="none", **{name: factor})
    torch.testing.assert_close(found, right)
    (slope,) = torch.autograd.grad(found.sum(), factor)
    assert slope.shape == shape
    assert slope.isfinite().all()
    if name != "label_smoothing":
        head = ops.loss_head(x, LABELS, reduction="none", **{name: factor})
        assert {n: v.shape for n, v in head.items()} == dict.fromkeys(head, (2,))


# ---- what docs/losses.md and docs/ops.md say of infinite rows and of ties ------------------------


@pytest.mark.parametrize(
    ("row", "label", "loss", "slope"),
    [
        ([INF, 0.0, 1.0], 1, INF, [float("nan"), -1.0, 0.0]),
        ([INF, 0.0, 1.0], 0, float("nan"), [float("nan"), 0.0, 0.0]),
        ([INF, 0.0, 1.0], -100, 0.0, [float("nan"), 0.0, 0.0]),
        ([-INF, -INF, -INF], 1, float("nan"), [0.0, -1.0, 0.0]),
        ([-INF, -INF, -INF], -100, 0.0, [0.0, 0.0, 0.0]),
    ],
)
def test_losses_of_infinite_rows(
    row: list[float], label: int, loss: float, slope: list[float]
) -> None:
    x = torch.tensor([row], requires_grad=True)
    found = ops.cross_entropy(x, torch.tensor([label]), reduction="sum")
    torch.testing.assert_close(found, torch.tensor(loss), equal_nan=True)
    (got,) = torch.autograd.grad(found, x)
    torch.testing.assert_close(got, torch.tensor([slope]), equal_nan=True)


def test_the_slope_of_an_extreme_goes_to_the_first_that_attains_it() -> None:
    x, up = torch.tensor([[2.0, -2.0, 1.0, 1.0]], requires_grad=True), torch.ones(1, 4)
    slopes = {
        impl: torch.autograd.grad(ops.normalize(x, INF, impl=impl), x, up)[0]
        for impl in ("tiles", "eager")
    }
    torch.testing.assert_close(slopes["tiles"], torch.tensor([[0.0, 0.5, 0.5, 0.5]]))
    torch.testing.assert_close(slopes["eager"], torch.tensor([[0.25, 0.75, 0.5, 0.5]]))
