"""Kinds, simplification, differentiation, dependence, interning, deep shared graphs."""

from __future__ import annotations

import pickle
import random
import time

import mpmath
import pytest
import torch

from fusedreduce.errors import DeclarationError
from fusedreduce.ir.check import all_kinds, check, kind_of, promote
from fusedreduce.ir.dependence import depends
from fusedreduce.ir.differentiate import derivative, gradient
from fusedreduce.ir.evaluate import compiled, compiled_all, dialect, evaluate
from fusedreduce.ir.expr import Expr, call, cast, const, make, names, substitute, var
from fusedreduce.ir.interval import Interval, bounds
from fusedreduce.ir.show import helpers, listing, shared, show, spell, underline
from fusedreduce.ir.simplify import simplify
from tests.pure.test_ir_show import random_expr

TORCH = dialect("torch", {"torch": torch}, dtype=torch.float64)
MPMATH = dialect("mpmath", {"mp": mpmath.mp})
x, y, z, m = var("x"), var("y"), var("z"), var("old.m")
below = call("lt", x, y)


def test_interning() -> None:
    assert len({const(True), const(1), const(1.0), const(0.0), const(-0.0)}) == 5
    assert x + y is var("x") + var("y")
    assert pickle.loads(pickle.dumps(x + y)) is x + y
    assert call("exp", x) is not call("exp", y)


REFUSED = (
    (call("and", x, below), "argument of and", "^"),
    (call("where", x, y, z), "argument of where", "^"),
    (call("bitand", var("i"), x * 2.0), "argument of bitand", "^" * 7),
    (call("add", below, below), "argument of add", "^" * 5),
    (make("exp", (x, y)), "wrong number of arguments", "^" * 9),
    (make("exq", (x,)), "not part of the language", "^" * 6),
    (call("exp", var("w")), "unknown name w", "^"),
)


@pytest.mark.parametrize(("expr", "fact", "carets"), REFUSED, ids=[f for _, f, _ in REFUSED])
def test_refusals_underline_the_place(expr: Expr, fact: str, carets: str) -> None:
    kinds = {"x": "float", "y": "float", "z": "float", "i": "int"}
    root = expr if expr.op in ("and", "bitand") else cast(expr, "float") * 2.0
    with pytest.raises(DeclarationError, match=fact) as caught:
        check(root, kinds)
    lines = str(caught.value).splitlines()
    under = next(line for line in lines if set(line.strip()) == {"^"})
    assert under.strip() == carets
    assert "expected" in str(caught.value)


KINDS = (
    (call("div", var("i"), 2), "float"),
    (call("floordiv", var("i"), 2), "int"),
    (call("add", var("i"), 1.0), "float"),
    (call("add", var("i"), below), "int"),
    (call("where", below, var("i"), 2), "int"),
    (call("exp", var("i")), "float"),
    (call("eq", var("i"), 2), "bool"),
    (call("floor", x), "float"),
    (cast(x, "int32"), "int"),
    (cast(below, "float"), "float"),
    (make("read", (var("i"), var("i"))), "int"),
)


@pytest.mark.parametrize(("expr", "kind"), KINDS, ids=[show(e) for e, _ in KINDS])
def test_kinds(expr: Expr, kind: str) -> None:
    assert kind_of(expr, {"i": "int", "x": "float", "y": "float"}) == kind


def test_promote_writes_conversions_out() -> None:
    kinds = {"i": "int", "x": "float"}
    exp = call("exp", var("i"))
    assert show(promote(exp * call("log", 2), kinds)) == "exp(i.to(float)) * log(2.0)"
    assert promote(call("round", var("i")), kinds) is var("i")
    assert evaluate(promote(exp, kinds), {"i": torch.tensor(1)}, TORCH).dtype == torch.float64


SIMPLER = (
    (x * 1.0, "x"), (1 * x, "x"), (x * 0.0, "0.0"), (0.0 + x, "x"), (x - 0.0, "x"), (0.0 - x, "-x"),
    (call("neg", -x), "x"), (x / 1.0, "x"), (0.0 / x, "0.0"), (x * -1.0, "-x"), (x + -y, "x - y"),
    (x - -y, "x + y"), (x ** const(1.0), "x"), (const(0.5) + 0.25, "0.75"), (const(3) * 4, "12"),
    (const(0.1) + 0.2, "0.1 + 0.2"), (const(3.0) - 1, "2.0"), (call("where", below, x, x), "x"),
    (call("where", below, x, 0.0) + call("where", below, 0.0, y), "where(x < y, x, y)"),
    (x + (y + 1.0) + 2.0, "x + (y + 1.0) + 2.0"),
    (call("where", call("eq", const(1.0), const(0)), const(0.0), x), "x"),
)  # fmt: skip


@pytest.mark.parametrize(("expr", "text"), SIMPLER, ids=[show(e) for e, _ in SIMPLER])
def test_simplify(expr: Expr, text: str) -> None:
    assert show(simplify(expr)) == text


def test_simplify_leaves_the_users_nodes() -> None:
    user = x * 1.0
    assert simplify(user + 0.0, keep={user}) is user
    assert show(derivative(call("exp", user), "x")) == "exp(x * 1.0)"


@pytest.mark.parametrize(
    ("expr", "slope"),
    [
        (call("exp", x - m), "exp(x - old.m)"),
        ((x - y) ** 2, "2 * (x - y)"),
        (x / y, "1.0 / y"),
        (call("log", x), "1.0 / x"),
        (call("where", below, x * y, 0.0), "where(x < y, y, 0.0)"),
        (call("maximum", x, y), "where(x >= y, 1.0, 0.0)"),
        (cast(x, "bfloat16"), "1.0"),
        (y * z, "0.0"),
        (call("floor", x) * x, "floor(x)"),
    ],
)
def test_slopes_read_well(expr: Expr, slope: str) -> None:
    assert show(derivative(expr, "x")) == slope


@pytest.mark.parametrize("seed", range(30))
def test_gradient_is_the_derivative(seed: int) -> None:
    expr = random_expr(random.Random(1000 + seed), 3)
    env = {"x": 0.71, "y": -1.33, "z": 2.17}
    both = gradient(expr, "xyz", var("g"))
    for name in "xyz":
        forward = evaluate(derivative(expr, name), env, TORCH)
        backward = evaluate(both[name], {**env, "g": 2.0}, TORCH)
        if forward.isfinite() and backward.isfinite():
            assert torch.allclose(2 * forward.double(), backward.double(), rtol=1e-9)


def test_a_branch_not_taken_sends_no_nan() -> None:
    safe = call("where", call("gt", x, 0.0), call("log", x), 0.0)
    for slope in (derivative(safe, "x"), gradient(safe, ["x"])["x"]):
        assert evaluate(slope, {"x": 2.0}, TORCH).item() == 0.5


def test_dependence() -> None:
    index = {n: frozenset(n) for n in "ij"}
    mask = call("ge", var("i") * 2, make("read", (var("ids"), var("j"))))
    needs = depends(mask, on=index)
    assert needs[mask] == {"i", "j"}
    assert needs[mask.args[0]] == {"i"}
    assert needs[mask.args[1]] == {"j"}
    assert needs[const(2)] == frozenset()


def test_shared_and_listing_and_underline() -> None:
    p = call("exp", x)
    assert shared(p * (p + 1.0), p) == (p,)
    assert listing([("a", x), ("long", y)]) == "a    = x\nlong = y"
    assert underline(x + (y + z), y + z) == "x + (y + z)\n     ^^^^^"


def test_compiled_shares_between_results() -> None:
    calls = []
    count = dialect("mpmath", {"mp": mpmath.mp}, cast=lambda v, to: calls.append(to) or v)
    p = cast(x, "float")
    assert compiled_all((p + 1, p * 2), ("x",), count)(3) == (4, 6)
    assert len(calls) == 1


def test_constants_alone_are_tensors() -> None:
    for expr in (const(1.5), call("exp", 0.0), call("where", call("lt", 1, 2), 1.0, 2.0)):
        value = evaluate(expr, {}, TORCH)
        assert isinstance(value, torch.Tensor)
        assert value.dtype == torch.float64


DEEP = {
    "show": show,
    "kinds": lambda e: all_kinds(e, {"x": "float"}),
    "promote": lambda e: promote(e, {"x": "float"}),
    "simplify": simplify,
    "derivative": lambda e: derivative(e, "x"),
    "gradient": lambda e: gradient(e, ["x"]),
    "bounds": lambda e: bounds(e, {"x": Interval(0.0, 1.0)}),
    "depends": lambda e: depends(e, on={}),
    "evaluate": lambda e: evaluate(e, {"x": 1e-9}, TORCH),
    "compiled": lambda e: compiled(e, ("x",), MPMATH)(1e-9),
    "shared": shared,
    "helpers": helpers,
    "names": names,
    "substitute": lambda e: substitute(e, {"x": y}),
    "underline": lambda e: underline(e, x),
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_shared_graph(name: str) -> None:
    """2^40 paths, and 3000 levels: a pass walks the nodes, not the paths, and never recurses."""
    node = x
    for _ in range(40):
        node = call("sin", node) * node
    tall = x
    for _ in range(3000):
        tall = tall + 1.0
    start = time.perf_counter()
    DEEP[name](node)
    DEEP[name](tall)
    assert time.perf_counter() - start < 2.0


def test_text_of_a_deep_graph_asks_for_names() -> None:
    node = x
    for _ in range(40):
        node = node * node
    with pytest.raises(ValueError, match="name the shared subexpressions"):
        spell(node, "triton")
