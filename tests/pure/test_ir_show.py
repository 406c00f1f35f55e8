"""Printing: fewest parentheses, Triton text, and Python reads a shown text back unchanged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

from fusedreduce.ir.evaluate import compiled, dialect, evaluate
from fusedreduce.ir.expr import Expr, call, cast, const, make, var
from fusedreduce.ir.ops import OPS
from fusedreduce.ir.show import helpers, show, spell

TORCH = dialect("torch", {"torch": torch}, dtype=torch.float64)
x, y, z, m = var("x"), var("y"), var("z"), var("old.m")
below = call("lt", x, y)

SHOWN = (
    (x - (y - z), "x - (y - z)"),
    (x - y - z, "x - y - z"),
    (x + (y + z), "x + (y + z)"),
    (x / (y * z), "x / (y * z)"),
    (x / y * z, "x / y * z"),
    (x * (y / z), "x * (y / z)"),
    ((x + y) * z, "(x + y) * z"),
    (x + y * z, "x + y * z"),
    (x ** (y**z), "x ** y ** z"),
    ((x**y) ** z, "(x ** y) ** z"),
    ((-x) ** y, "(-x) ** y"),
    (-(x**y), "-x ** y"),
    (x**-y, "x ** -y"),
    (x - -y, "x - -y"),
    (-(x * y), "-(x * y)"),
    (-x * y, "-x * y"),
    (const(-2.0) ** x, "(-2.0) ** x"),
    (x * -2.0, "x * -2.0"),
    (call("floordiv", x, call("mod", y, z)), "x // (y % z)"),
    (call("lt", below, z), "(x < y) < z"),
    (call("and", below, call("ge", x, z)), "(x < y) & (x >= z)"),
    (call("or", call("and", below, below), below), "(x < y) & (x < y) | (x < y)"),
    (call("not", below), "~(x < y)"),
    (call("not", call("isnan", x)), "~isnan(x)"),
    (call("shl", x, y + 1), "x << y + 1"),
    (call("bitand", x, call("shr", y, 2)), "x & y >> 2"),
    (call("exp", x - m) * z, "exp(x - old.m) * z"),
    (call("where", below, x, y - 1.0), "where(x < y, x, y - 1.0)"),
    (call("maximum", x, -math.inf), "maximum(x, -inf)"),
    (cast(x + 1, "bfloat16"), "(x + 1).to(bfloat16)"),
    (make("read", (var("ids"), x + 1)), "ids[x + 1]"),
    (const(True), "True"),
)


@pytest.mark.parametrize(("expr", "text"), SHOWN, ids=[text for _, text in SHOWN])
def test_fewest_parentheses(expr: Expr, text: str) -> None:
    assert show(expr) == text


SPELLED = (
    (x**2, "x * x", ()),
    ((x - m) ** 2, "square(x - old_m)", ("square",)),
    (x ** const(2.0) * y, "x * x * y", ()),
    (y / x**2, "y / (x * x)", ()),
    (x**0.5, "tl.sqrt(x)", ()),
    (x**y, "power(x, y)", ("power",)),
    (call("tanh", x) + call("floordiv", x, y), "tanh(x) + floor_div(x, y)", ("tanh", "floor_div")),
    (call("maximum", x, -math.inf),
     'tl.maximum(x, float("-inf"), propagate_nan=tl.PropagateNan.ALL)', ()),
    (call("reciprocal", x + y) * z, "1.0 / (x + y) * z", ()),
    (cast(x, "bool"), "x.to(tl.int1)", ()),
)  # fmt: skip


@pytest.mark.parametrize(("expr", "text", "called"), SPELLED, ids=[t for _, t, _ in SPELLED])
def test_triton_text(expr: Expr, text: str, called: tuple[str, ...]) -> None:
    assert spell(expr, "triton") == text
    assert helpers(expr) == called


def test_named_nodes_print_as_their_name() -> None:
    p = call("exp", x - m)
    assert spell(p * (p + 1.0), "triton", {p: "p"}) == "p * (p + 1.0)"
    assert spell(p, "torch", {m: "m_old"}, bare=16) == "torch.exp(x - m_old)"
    assert spell(x + y, "torch", bare=12) == "(x + y)"
    assert helpers(call("tanh", x) ** 2, {call("tanh", x): "t"}) == ()


def random_expr(rng: random.Random, depth: int) -> Expr:
    """A float expression over x, y, z."""
    if depth == 0:
        return rng.choice([x, y, z, const(rng.choice([0.5, -2.0, 1.0, 3]))])
    a, b, c = (random_expr(rng, depth - 1) for _ in range(3))
    op = rng.choice(["add", "sub", "mul", "div", "neg", "pow", "exp", "mod", "maximum", "where",
                     "floordiv", "tanh", "abs", "rsqrt"])  # fmt: skip
    condition = call(rng.choice(["lt", "ge", "ne"]), a, b)
    return call(op, *([condition, b, c] if op == "where" else [a, b][: OPS[op].arity]))


@pytest.mark.parametrize("seed", range(60))
def test_text_means_the_expression(seed: int) -> None:
    """Python reads the shown text back as the same value, bit for bit."""
    expr = random_expr(random.Random(seed), 4)
    env = {
        n: torch.tensor(v, dtype=torch.float64)
        for n, v in zip("xyz", (0.7, -1.3, 2.1), strict=True)
    }
    if show(expr).count(" where "):
        pytest.skip("a long text with named parts")
    true = evaluate(expr, env, TORCH).double().nan_to_num()
    shown = eval(show(expr), {**{name: Doubles.of(f) for name, f in TORCH.ops.items()}, **env})
    spelled = eval(spell(expr, "torch"), {"torch": Doubles(), **env})
    for got in (shown, spelled, compiled(expr, ("x", "y", "z"), TORCH)(*env.values())):
        assert torch.equal(Doubles.tensor(got).double().nan_to_num(), true)


class Doubles:
    """torch, with Python floats taken as float64 tensors."""

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor]:
        return self.of(getattr(torch, name))

    @classmethod
    def of(cls, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args: function(*map(cls.tensor, args))

    @staticmethod
    def tensor(value: object) -> torch.Tensor:
        return TORCH.value(value)
