"""The printed helpers against mpmath: error in ulp, and the values at 0, -0, infinities, NaN."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
import torch

from tests.compile.test_functions import module_of

mp = mpmath.mp

KINDS = {"float32": (torch.float32, np.float32), "float64": (torch.float64, np.float64)}
TINY = {"float32": 1.2e-38, "float64": 2.3e-308}
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan)
STEPS = tuple(np.concatenate([np.linspace(-3, 3, 61), np.geomspace(1e-7, 90, 80)]))
GRID = (*STEPS, *(-x for x in STEPS), *SPECIAL, 1e-30, -1e-30, 1e30, -1e30, 700.0, -700.0)
PAIRS = (0.0, -0.0, 0.3, -0.3, 0.5, -0.5, 1.0, -1.0, 1.5, 2.0, -2.0, 3.0, -3.0, 7.0, -7.5, 20.0,
         math.inf, -math.inf, math.nan)  # fmt: skip


class Case(NamedTuple):
    """A helper, what it computes exactly, what it must equal at the edges, its error in ulp."""

    name: str
    exact: Callable[..., object]
    edges: Callable[..., torch.Tensor]
    ulp32: float = 4.0
    ulp64: float = 4.0


CASES = (
    Case("expm1", mp.expm1, torch.expm1),
    Case("log1p", mp.log1p, torch.log1p),
    Case("log10", mp.log10, torch.log10),
    Case("sigmoid", lambda x: 1 / (1 + mp.exp(-x)), torch.sigmoid),
    Case("softplus", lambda x: mp.log1p(mp.exp(x)), lambda x: torch.nn.functional.softplus(x)),
    Case("sinh", mp.sinh, torch.sinh),
    Case("cosh", mp.cosh, torch.cosh),
    Case("tanh", mp.tanh, torch.tanh),
    Case("asinh", mp.asinh, torch.asinh),
    Case("acosh", mp.acosh, torch.acosh),
    Case("atanh", mp.atanh, torch.atanh),
    Case("tan", mp.tan, torch.tan),
    Case("atan", mp.atan, torch.atan),
    Case("asin", mp.asin, torch.asin),
    Case("acos", mp.acos, torch.acos),
    Case("erfc", mp.erfc, torch.erfc),
    Case("trunc", lambda x: mp.floor(x) if x > 0 else mp.ceil(x), torch.trunc, 0, 0),
    Case("rint", mp.nint, torch.round, 0, 0),
    Case("sign", mp.sign, torch.sign, 0, 0),
    Case("square", lambda x: x * x, torch.square, 1, 1),
    Case("cube", lambda x: x**3, lambda x: x**3, 2, 2),
    Case("fourth", lambda x: x**4, lambda x: x**4, 2, 2),
    Case("atan2", mp.atan2, torch.atan2),
    Case("power", mp.power, torch.pow),
    Case("floor_mod", lambda a, b: a % b, lambda a, b: a % b, 1, 1),
    Case("floor_div", lambda a, b: mp.floor(a / b), lambda a, b: a // b, 0, 0),
    Case("max_propagating", max, torch.maximum, 0, 0),
    Case("min_propagating", min, torch.minimum, 0, 0),
)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return module_of(tmp_path_factory.mktemp("functions"))


def apply(printed: ModuleType, name: str, *args: torch.Tensor) -> torch.Tensor:
    """One launch of the kernel of a helper over flat tensors."""
    out = torch.empty_like(args[0])
    kernel = getattr(printed, f"kernel_{name}")
    kernel[(1,)](*args, out, len(out), BLOCK=1 << (len(out) - 1).bit_length())
    return out


def exact(case: Case, *args: float) -> float | mpmath.mpf | None:
    """The true value, None where it is not finite or mpmath has no such argument."""
    if not all(math.isfinite(x) and (x or math.copysign(1, x) > 0) for x in args):
        return None
    with mp.workdps(50):
        try:
            y = case.exact(*map(mp.mpf, args))
        except (ZeroDivisionError, ValueError):
            return None
        return y if mp.im(y) == 0 and mp.isfinite(y) else None


def ulps(got: float, true: mpmath.mpf, numpy: type) -> float:
    """|got - true| in units of the last place of the true value."""
    nearest = numpy(float(true)) if abs(true) < 1e308 else numpy(math.inf)
    if math.isinf(nearest) or math.isinf(got):
        return 0.0 if nearest == got else math.inf
    step = max(float(np.spacing(abs(nearest))), float(np.finfo(numpy).smallest_subnormal))
    return float(abs(mp.mpf(got) - true) / step)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_helper(case: Case, kind: str, printed: ModuleType) -> None:
    dtype, numpy = KINDS[kind]
    arity = 2 if case.name in ("atan2", "power") or "_" in case.name else 1
    points = list(itertools.product(PAIRS, PAIRS)) if arity == 2 else [(x,) for x in GRID]
    args = [torch.tensor(column, dtype=dtype) for column in zip(*points, strict=True)]
    got = apply(printed, case.name, *args)
    at_edges = case.edges(*args)
    limit = case.ulp32 if kind == "float32" else case.ulp64
    for i, at in enumerate(zip(*(a.tolist() for a in args), strict=True)):
        true = exact(case, *at)
        y, edge = got[i].item(), at_edges[i].item()
        if true is None or not math.isfinite(edge):
            same = math.isnan(y) if math.isnan(edge) else y == edge
            assert same, f"{case.name}{at} = {y}, torch has {edge}"
        else:
            error = ulps(y, true, numpy)
            assert error <= limit + 0.5, f"{case.name}{at} = {y}, not {true}: {error:.1f} ulp"
        if y == edge == 0 and arity == 1 and case.name != "sign":
            assert math.copysign(1, y) == math.copysign(1, edge), f"{case.name}{at}: the sign of 0"


INTEGERS = tuple(range(-7, 8))


@pytest.mark.parametrize(
    ("name", "twin"),
    [("floor_div", lambda a, b: a // b), ("floor_mod", lambda a, b: a % b), ("power", torch.pow)],
)
def test_integer_helper(name: str, twin: Callable[..., torch.Tensor], printed: ModuleType) -> None:
    pairs = [(a, b) for a in INTEGERS for b in INTEGERS if b != 0 and (a != 0 or b > 0)]
    a, b = (torch.tensor(column, dtype=torch.int32) for column in zip(*pairs, strict=True))
    assert torch.equal(apply(printed, name, a, b), twin(a, b))


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_question(name: str, printed: ModuleType) -> None:
    x = torch.tensor(GRID, dtype=torch.float32)
    assert torch.equal(apply(printed, name, x), getattr(torch, name)(x).float())
