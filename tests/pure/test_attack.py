"""What once gave a wrong number, a wrong dtype or a foreign error: one test a mechanism."""

from __future__ import annotations

import cProfile
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.errors import (
    DeclarationError,
    DtypeError,
    FusedReduceError,
    LawViolation,
    NotFusible,
    OperandError,
    OptionError,
    ShapeError,
)
from fusedreduce.reductions import LogSumExp, Moments, SoftmaxSum, Total

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def same(fn: Callable[..., Any], *args: Any) -> None:
    """Fused as plain: values, dtypes and shapes."""
    torch.testing.assert_close(fr.fuse(fn)(*args), fn(*args))


# ---- one tensor, two axes ----------------------------------------------------------------------

x, square, v, u = torch.randn(4, 6), torch.randn(5, 5), torch.randn(5), torch.randn(5)
TWO_AXES = {
    "both sums": (lambda x: (x.sum(0), x.sum(1)), x),
    "both sums of a square": (lambda x: x.sum(0, keepdim=True) + x.sum(1, keepdim=True), square),
    "differences of one vector": (lambda v: v[:, None] - v[None, :], v),
    "both sums of an outer product": (lambda v, u: [(v[:, None] * u).sum(k) for k in (0, 1)], v, u),
    "a sum of sums": (lambda v, u: (v[:, None] * u).sum(1).sum(0), v, u),
    "positions in two orders": (lambda x: (x.argmax(), (x * 2).T.argmax()), x),
    "both sums of an expanded vector": (lambda v: [v.expand(5, 5).sum(k) for k in (0, 1)], v),
}


@pytest.mark.parametrize("name", TWO_AXES)
def test_what_needs_two_axes_at_once_is_refused(name: str) -> None:
    fn, *args = TWO_AXES[name]
    with pytest.raises(NotFusible):
        fr.fuse(fn)(*args)


def test_one_expression_along_other_axes_is_another_stage() -> None:
    same(lambda x: (x.argmax(), x.argmax()), x)
    same(lambda v, u: (v[:, None] * u).sum(1), v, u)


# ---- dtypes of torch ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["amax", "amin", "any", "all", "sum", "prod"])
def test_reductions_of_integers_have_torchs_dtype(name: str, dtype: torch.dtype) -> None:
    same(lambda x: getattr(torch, name)(x, -1), torch.randint(0, 3, (4, 6)).to(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_narrow_integers_wrap_in_the_middle(dtype: torch.dtype) -> None:
    a, b = (torch.randint(0, 120, (4, 6)).to(dtype) for _ in "ab")
    same(lambda a, b: ((a - b - b).float(), (a * b + a).sum(-1), (~a).float(), -a > a), a, b)


def test_type_as_converts() -> None:
    same(lambda x, y: x.type_as(y).sum(-1), x * 9, torch.ones(7, dtype=torch.int32))


def test_one_and_one_point_zero_are_two_arguments_in_a_tuple_too() -> None:
    scaled = fr.fuse(lambda x, by: x * by[0])
    i = torch.arange(6)
    found = [scaled(i, (c,)).dtype for c in (2, 2.0, True)]
    assert found == [torch.int64, torch.float32, torch.int64]


# ---- signatures of torch -----------------------------------------------------------------------


def test_var_mean_takes_torchs_positions() -> None:
    same(lambda x: torch.var_mean(x, -1, False), x)
    same(lambda x: torch.var_mean(x, -1, True, True), x)
    same(lambda x: torch.var_mean(x, False), x)
    same(lambda x: torch.std_mean(x, -1, correction=2), x)


@pytest.mark.filterwarnings("ignore:var")
def test_more_correction_than_elements() -> None:
    same(lambda x: x.var(-1, correction=9), x)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "var"])
def test_no_dimension_is_every_dimension(name: str) -> None:
    same(lambda x: getattr(torch, name)(x, ()), x)


@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_softmax_asks_for_its_dimension() -> None:
    with pytest.raises(DeclarationError, match="without dim"):
        fr.fuse(lambda x: torch.nn.functional.softmax(x))(x)


@pytest.mark.filterwarnings("ignore:The use of")
def test_views() -> None:
    same(lambda x: x.T, torch.randn(3))
    same(lambda x: x.t(), torch.randn(3))
    same(lambda x: x.mT, torch.randn(2, 3, 4))
    same(lambda x: x.reshape(0, 2, 3).sum(-1), torch.randn(0, 6))
    same(lambda x: x.expand(()), torch.tensor(2.0))
    with pytest.raises(ShapeError, match="too many indices"):
        fr.fuse(lambda x: x[:, :, None, :])(x)


def test_softplus_and_logsigmoid() -> None:
    f = torch.nn.functional
    same(lambda x: f.softplus(x, beta=3, threshold=0.2), x)
    same(lambda x: f.logsigmoid(x), x)


# ---- arguments and results ---------------------------------------------------------------------


def test_an_argument_may_serve_for_its_shape_alone() -> None:
    same(lambda x, y: x.sum(-1) / y.numel(), x, torch.randn(7, 3))
    z = x.clone().requires_grad_()
    fr.fuse(lambda x, y: x.sum(-1) / y.numel())(
        z, torch.randn(7, 3, requires_grad=True)
    ).sum().backward()
    assert torch.equal(z.grad, torch.full_like(x, 1 / 21))


Pair = namedtuple("Pair", "a b")


def test_results_keep_their_structure() -> None:
    same(lambda x: Pair(x + 1, x.sum(-1)), x)
    got = fr.fuse(lambda x: {1: [x + 1, None, 3], "k": ("a", x.sum(-1))})(x)
    assert got[1][1:] == [None, 3]
    assert got["k"][0] == "a"


@pytest.mark.parametrize(
    "fn",
    [lambda x: None, lambda x: {x + 1}, lambda x: (x + 1, x.shape and v), lambda x, e=2.0: (x, e)],
    ids=["nothing", "a set", "a tensor from outside", "a float argument"],
)
def test_results_that_are_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(NotFusible):
        fr.fuse(fn)(x)


def test_arguments_that_are_refused() -> None:
    with pytest.raises(OperandError, match="of its own"):
        fr.fuse(lambda x, e: x * e[0])(x, [v[0]])
    with pytest.raises(OperandError, match="missing"):
        fr.fuse(lambda x, e: x * e)(x)
    with pytest.raises(OptionError, match="parameter"):
        fr.fuse(lambda x, /: x)
    with pytest.raises(OptionError, match="signature"):
        fr.fuse(torch.exp)
    same(lambda x, e: x * e["a"][0], x, {"a": [2]})


NAMES = ("j", "row", "column", "start", "inside", "tl", "N", "x_ptr", "range")


@pytest.mark.parametrize("name", NAMES)
def test_arguments_may_be_called_as_the_printer_calls_its_own(name: str) -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def {name}({name}, scale):\n    return torch.softmax({name} * scale, -1)", scope)
    same(scope[name], x, 0.5)
    assert fr.fuse(scope[name]).source(x, 0.5)


STRANGE: dict[str, Callable[[], Tensor]] = {
    "complex": lambda: x.to(torch.complex64),
    "float8": lambda: x.to(torch.float8_e4m3fn),
    "sparse": x.to_sparse,
    "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "negated": lambda: x.to(torch.complex64).conj().imag,
    "uint64": lambda: torch.ones(2, dtype=torch.uint64),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("impl", ["eager", "tiles"])
def test_tensors_that_are_not_served(name: str, impl: str) -> None:
    fused = fr.fuse(lambda x: x.sum())
    for call in (lambda t: fr.reduce(Total, t, impl=impl), lambda t: fused(t, impl=impl)):
        with pytest.raises((DtypeError, OperandError)):
            call(STRANGE[name]())


@pytest.mark.parametrize(
    "options",
    [
        {"dim": {1}}, {"dim": True}, {"dim": 1.0}, {"dim": [[0]]}, {"outputs": 3}, {"outputs": ()},
        {"dtype": int}, {"dtype": "float32"}, {"dtype": torch.complex64}, {"keepdim": "yes"},
        {"seed": 3}, {"seed": {"total": torch.zeros(3)}}, {"impl": "tile"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("impl", ["eager", "tiles"])
def test_options_that_are_refused(options: dict[str, Any], impl: str) -> None:
    fr.reduce(Total, x, dim=1)  # 1 is known: True and 1.0 are not
    with pytest.raises(FusedReduceError):
        fr.reduce(Total, x, **{"impl": impl, **options})


class Weighted(fr.Reduction):
    v = fr.Payload()
    o = fr.Sum(lambda x, w, v: x * w * v)

    def finish(o):
        return o


@pytest.mark.parametrize("impl", ["eager", "tiles"])
def test_payloads_take_any_dim_and_numbers(impl: str) -> None:
    values = torch.randn(4, 6, 3)
    got = fr.reduce(SoftmaxSum, x, v=values, dim=0, impl=impl)
    right = (torch.softmax(x, 0)[..., None] * values).sum(0)
    torch.testing.assert_close(got["out"], right)
    got = fr.reduce(SoftmaxSum, x, v=values, dim=None, outputs="out", impl=impl)
    torch.testing.assert_close(
        got, (torch.softmax(x.flatten(), 0)[:, None] * values.flatten(0, 1)).sum(0)
    )
    got = fr.reduce(Weighted, x, v=values, w=2.0, impl=impl)
    torch.testing.assert_close(got, (x[..., None] * 2 * values).sum(1))


@pytest.mark.parametrize("impl", ["eager", "tiles"])
def test_numbers_keep_their_digits(impl: str) -> None:
    class Scaled(fr.Reduction):
        s = fr.Sum(lambda x, w: x * w)

        def finish(s):
            return s

    ones = torch.ones(3, dtype=torch.float64)
    assert abs(fr.reduce(Scaled, ones, w=2.1, impl=impl).item() - 6.3) < 1e-14
    half = fr.reduce(Scaled, x, w=x, dtype=torch.float16, impl=impl)
    assert half.dtype == torch.float32  # dtype= converts the first operand alone


# ---- gradients ---------------------------------------------------------------------------------


def product(x, y):
    return (x * x * y).sum(-1)


@pytest.mark.parametrize("second", [lambda z: z, lambda z: z * 2, lambda z: z.view(4, 6)],
                         ids=["the same", "made from it", "a view of it"])  # fmt: skip
def test_double_backward_of_arguments_that_depend_on_each_other(second: Any) -> None:
    def gradients(fn: Any) -> tuple[Tensor, Tensor]:
        z = x.double().requires_grad_()
        (g,) = torch.autograd.grad(fn(z, second(z)).sum(), z, create_graph=True)
        return g.detach(), torch.autograd.grad(g.square().sum(), z)[0]

    for a, b in zip(gradients(product), gradients(fr.fuse(product)), strict=True):
        torch.testing.assert_close(a, b)


def test_what_stops_gradients_inside_is_refused() -> None:
    def shifted(x):
        with torch.no_grad():
            m = x.amax(-1, keepdim=True) * 2
        return (x - m).sum(-1)

    with pytest.raises(DeclarationError, match="no_grad"):
        fr.fuse(shifted)(x)
    with pytest.raises(DeclarationError, match="detach"):
        fr.fuse(lambda x: x.detach() * x)(x)


def test_relu_is_flat_at_zero() -> None:
    z = torch.tensor([-1.0, 0.0, 2.0, float("nan")], requires_grad=True)
    got = fr.fuse(lambda x: torch.relu(x) * 3)(z)
    (slope,) = torch.autograd.grad(got.sum(), z)
    assert slope[:3].tolist() == [0, 0, 3]
    assert got[3].isnan()


# ---- joins -------------------------------------------------------------------------------------


def test_a_join_is_judged_by_the_definitions_of_its_parts() -> None:
    class Halved(Total):
        def definition(x):
            return torch.sum(x) / 2

    with pytest.raises(LawViolation, match="Halved"):
        fr.reduce(fr.join(LogSumExp, Halved), torch.randn(4))


# ---- at once -----------------------------------------------------------------------------------


def test_threads_prove_and_trace_at_once() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:

            class Own(LogSumExp):
                def finish(m, s):
                    return torch.log(s) + m

            for n in (3, 4):
                y = torch.randn(n, 5)
                torch.testing.assert_close(fr.reduce(Own, y), torch.logsumexp(y, -1))
                fr.fuse(lambda y: fr.reduce(Moments, y)["var"])(y)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_a_function_is_fused_under_a_profiler() -> None:
    with cProfile.Profile():
        same(lambda x: torch.log_softmax(x, -1).amax(-1), x)


# ---- what new users met ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "word"),
    [(lambda x: x @ x, "matmul"), (lambda x: torch.ones(3, 3) @ x, "matmul"),
     (lambda x: torch.sort(x)[0], "sort"), (lambda x: x.median(), "median"),
     (lambda x: x * torch.ones(3), "from outside")],
)  # fmt: skip
def test_what_is_no_kernel_says_which_operation(fn: Callable[..., Any], word: str) -> None:
    with pytest.raises(NotFusible, match=word):
        fr.fuse(fn)(torch.ones(3, 3))


def test_methods_are_not_bound() -> None:
    class Layer:
        @fr.fuse
        def run(self, x: Any) -> Any:
            return x

    with pytest.raises(OperandError, match="method"):
        Layer().run(torch.ones(3))  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize("limits", [(-1, 0), (-1, -1), (2, -3)])
def test_windows_that_hold_nothing(limits: tuple[int, int]) -> None:
    """-1 is "no limit" elsewhere: the answer would be 0."""
    with pytest.raises(OptionError, match="None for no limit"):
        fr.masks.window(*limits)
    assert "window(-1, 5)" in repr(fr.masks.window(-1, 5))


def test_a_refused_certificate_shows_why() -> None:
    class Norm(fr.Reduction):
        m = fr.Max(lambda x: torch.abs(x))
        s = fr.Sum(lambda x, m: (x / m) ** 2)

        def finish(m, s):
            return m * torch.sqrt(s)

    text = str(fr.prove(Norm))
    assert "example   meaning: s by merging = nan, but s in two passes = " in text
    assert "where" in text
    with pytest.raises(LawViolation, match="neutral= what is read instead"):
        fr.reduce(Norm, torch.randn(5))
