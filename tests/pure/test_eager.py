"""Eager is the meaning: against torch, at every edge, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fusedreduce.declare import Max, Reduction, Reference, Sum, join, state
from fusedreduce.errors import OperandError, ShapeError
from fusedreduce.reductions import (
    Largest,
    LogSumExp,
    Mean,
    Moments,
    Product,
    Smallest,
    SoftmaxSum,
    Total,
    Welford,
)
from fusedreduce.run import eager
from tests.cases import CASES, INF, Case, Entropy, Spread

NAN = float("nan")


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_table(case: Case) -> None:
    case.check(eager.reduce(case.R, case.operands(), (1,)))


class Last(Reduction):
    """The last element: a merge that is not commutative. `n` tells nothing from something."""

    n, x = state(0, 0.0)

    def lift(x):
        return 1, x

    def merge(a, b):
        return a.n + b.n, b.x

    def finish(x):
        return x


class Affine(Reduction):
    """x -> a x + b, composed in order."""

    p, q = state(1.0, 0.0)

    def lift(a, c):
        return a, c

    def merge(a, b):
        return a.p * b.p, a.q * b.p + b.q

    def finish(p, q):
        return {"p": p, "q": q}


class Weighted(Reduction):
    """A position-weighted sum."""

    s = Sum(lambda x, j, w: x * j * w)

    def finish(s):
        return s


class Scaled(Reduction):
    """The 2-norm relative to the largest absolute value: a reference that divides."""

    a = Max(lambda x: torch.abs(x), identity=0.0, neutral=1.0)
    s = Sum(lambda x, a: (x / a) ** 2, correct=lambda s, old, new: s * (old.a / new.a) ** 2)

    def finish(a, s):
        return a * torch.sqrt(s)


class Shifted(Reduction):
    """Deviation from a bound mean."""

    n = Sum(lambda x: 1.0)
    t = Sum(lambda x: x)
    mean = Reference(lambda n, t: t / n)
    e = Sum(lambda x, mean: (x - mean) ** 2)

    def finish(n, e):
        return {"n": n, "e": e}


def one(R: type[Reduction], x: torch.Tensor, dims: tuple[int, ...] = (-1,), **more: object):
    (value,) = eager.reduce(R, {"x": x}, dims, **more).values()
    return value


# ---- shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [(0,), (1,), (-1,), (0, 2), (2, 1), (0, 1, 2)])
def test_dims_and_keepdim(dims: tuple[int, ...], keepdim: bool) -> None:
    x = rows(3, 4, 5)
    torch.testing.assert_close(
        one(LogSumExp, x, dims, keepdim=keepdim), torch.logsumexp(x, dims, keepdim)
    )


def test_a_number_is_a_row_of_one() -> None:
    x = torch.tensor(3.0)
    assert one(LogSumExp, x).shape == ()
    torch.testing.assert_close(one(LogSumExp, x, keepdim=True), x)


def test_positions_are_flat_over_the_reduced_dimensions() -> None:
    x = rows(3, 4, 5)
    found = eager.reduce(Largest, {"x": x}, (0, 2))["index"]
    torch.testing.assert_close(found, x.transpose(0, 1).flatten(1).argmax(1))
    j = torch.arange(15.0, dtype=torch.float64).reshape(3, 1, 5)
    got = eager.reduce(Weighted, {"x": x, "w": 2.0}, (0, 2))[""]
    torch.testing.assert_close(got, (x * j * 2.0).sum((0, 2)))


def test_operands_broadcast_against_the_first() -> None:
    x = rows(3, 4, 5)
    for w in (rows(5), rows(4, 1), rows(3, 1, 1), rows(1, 4, 5)):
        got = eager.reduce(Weighted, {"x": x, "w": w}, (2,))[""]
        torch.testing.assert_close(got, (x * torch.arange(5) * w).sum(2))
    with pytest.raises(ShapeError, match=r"target\[:, None\]"):
        eager.reduce(Weighted, {"x": x, "w": rows(2, 3, 4, 5)}, (2,))
    with pytest.raises(ShapeError, match=r"\(3, 4, 5\)"):
        eager.reduce(Weighted, {"x": x, "w": rows(4)}, (2,))


def test_wrong_operands_are_told() -> None:
    with pytest.raises(OperandError, match="x, w"):
        eager.reduce(Weighted, {"x": rows(3)}, (0,))
    with pytest.raises(OperandError, match="came"):
        eager.reduce(Mean, {"x": rows(3), "y": rows(3)}, (0,))


def test_a_payload_gives_a_vector() -> None:
    x, v = rows(2, 7, 3), rows(2, 7, 3, 4)
    got = eager.reduce(SoftmaxSum, {"x": x, "v": v}, (1,))
    torch.testing.assert_close(got["out"], (torch.softmax(x, 1)[..., None] * v).sum(1))
    assert got["lse"].shape == (2, 3)
    assert eager.reduce(SoftmaxSum, {"x": x, "v": v[..., :1]}, (1,))["out"].shape == (2, 3, 1)


def test_a_join_runs_each_part_on_its_own() -> None:
    x = rows(2, 9)
    both = join(LogSumExp, Moments)
    got = eager.reduce(both, {"x": x}, (1,))
    assert list(got) == ["LogSumExp", "Moments.mean", "Moments.var"]
    torch.testing.assert_close(got["Moments.mean"], x.mean(1))
    assert list(eager.reduce(both, {"x": x}, (1,), outputs=("Moments.var",))) == ["Moments.var"]


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 64, 65])
def test_general_merges_keep_the_order(n: int) -> None:
    x, c = rows(2, n), rows(2, n, seed=1)
    assert torch.equal(one(Last, x), x[:, -1])
    got = eager.reduce(Affine, {"a": x, "c": c}, (1,))
    p, q = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for k in range(n):
        p, q = p * x[:, k], q * x[:, k] + c[:, k]
    torch.testing.assert_close(got["p"], p)
    torch.testing.assert_close(got["q"], q)


def test_a_reference_that_divides() -> None:
    x = torch.cat([rows(2, 9), torch.zeros(1, 9, dtype=torch.float64)])
    torch.testing.assert_close(one(Scaled, x), torch.linalg.vector_norm(x, dim=1))
    huge = torch.full((1, 4), 1e300, dtype=torch.float64)
    torch.testing.assert_close(one(Scaled, huge), huge[:, 0] * 2)


def test_nothing() -> None:
    x = torch.zeros(2, 0)
    assert torch.equal(one(LogSumExp, x), torch.full((2,), -INF))
    assert torch.equal(one(Product, x), torch.ones(2))
    got = eager.reduce(SoftmaxSum, {"x": x, "v": torch.zeros(2, 0, 3)}, (1,))
    assert torch.equal(got["out"], torch.zeros(2, 3))
    assert torch.equal(got["lse"], torch.full((2,), -INF))
    assert torch.isnan(eager.reduce(Moments, {"x": x}, (1,))["mean"]).all()
    assert one(Last, x.to(torch.int64)).dtype == torch.float32
    assert one(LogSumExp, torch.zeros(0, 3)).shape == (0,)


@pytest.mark.parametrize("R", [Largest, Smallest], ids=lambda R: R.__name__)
def test_ties_and_nan(R: type[Reduction]) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 1.0], [NAN, 1.0, NAN, 0.0], [-INF] * 4, [INF] * 4])
    got = eager.reduce(R, {"x": x}, (1,))
    value, index = (torch.max if R is Largest else torch.min)(x, 1)
    torch.testing.assert_close(got["value"], value, equal_nan=True)
    assert torch.equal(got["index"], index)


# ---- dtypes -------------------------------------------------------------------------------------


def test_dtypes_of_results() -> None:
    x = rows(3, 50257).to(torch.bfloat16)
    got = eager.reduce(Shifted, {"x": x}, (1,))
    assert got["n"].dtype == torch.float32, (
        "a count depends on no operand: it has the state's dtype"
    )
    assert torch.equal(got["n"], torch.full((3,), 50257.0))
    assert got["e"].dtype == torch.bfloat16
    assert one(Total, x).dtype == torch.bfloat16
    assert one(Total, x, dtype=torch.float64).dtype == torch.float64
    assert one(Total, x.to(torch.int8)).dtype == torch.int64
    assert one(Total, x > 0).dtype == torch.int64
    assert one(Mean, x.to(torch.int32)).dtype == torch.float32
    mixed = eager.reduce(Weighted, {"x": x, "w": torch.ones(50257)}, (1,))[""]
    assert mixed.dtype == torch.float32


def test_large_integers_stay_exact() -> None:
    x = torch.tensor([2**53 + 1, 2**53, -(2**60)])
    assert int(eager.reduce(Largest, {"x": x}, (0,))["value"]) == 2**53 + 1
    assert int(one(Total, x, (0,))) == 2**54 + 1 - 2**60


# ---- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "R",
    [LogSumExp, Moments, Welford, Largest, Total, Product, Entropy, Spread, Scaled, Last],
    ids=lambda R: R.__name__,
)
def test_gradients(R: type[Reduction]) -> None:
    def floats(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = eager.reduce(R, {"x": x}, (1,)).values()
        return tuple(v for v in found if v.is_floating_point())

    assert torch.autograd.gradcheck(floats, rows(2, 5).requires_grad_())


@pytest.mark.parametrize("R", [LogSumExp, Entropy, Spread], ids=lambda R: R.__name__)
@pytest.mark.parametrize("hard", [lambda x: -INF, lambda x: torch.where(x > 0, x, -INF)])
def test_absent_elements_have_gradient_zero_and_poison_nothing(
    R: type[Reduction], hard: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = rows(3, 8)
    x[1] = hard(x[1])
    absent = x == -INF
    x.requires_grad_()
    values = [v[torch.isfinite(v)].sum() for v in eager.reduce(R, {"x": x}, (1,)).values()]
    torch.stack(values).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert (x.grad[absent] == 0).all()


def test_a_row_of_nothing_has_gradient_zero() -> None:
    x = torch.full((2, 4), -INF, dtype=torch.float64)
    x[1, 2] = 1.0
    x.requires_grad_()
    v = rows(2, 4, 3).requires_grad_()
    got = eager.reduce(SoftmaxSum, {"x": x, "v": v}, (1,))
    (got["out"].sum() + got["lse"].sum() + one(LogSumExp, x).sum()).backward()
    assert x.grad is not None
    assert v.grad is not None
    assert torch.equal(x.grad, torch.tensor([[0.0] * 4, [0.0, 0.0, 2.0, 0.0]]).double())
    assert torch.equal(v.grad[0], torch.zeros(4, 3).double())


def test_a_maximum_sends_its_gradient_to_the_first() -> None:
    x = torch.tensor([1.0, 3.0, 3.0], requires_grad=True)
    eager.reduce(Largest, {"x": x}, (0,))["value"].backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.tensor([0.0, 1.0, 0.0]))


def test_twice_differentiable() -> None:
    x = rows(2, 5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: one(LogSumExp, t), x)
