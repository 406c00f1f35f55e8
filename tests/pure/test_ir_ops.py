"""Walk the table: every row has every column, and its spellings, derivative and bounds agree."""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
import sympy
import torch

from fusedreduce.ir.check import kind_of, promote
from fusedreduce.ir.differentiate import derivative
from fusedreduce.ir.evaluate import compiled, dialect, evaluate
from fusedreduce.ir.expr import Expr, call, cast, make, var
from fusedreduce.ir.interval import Interval, bounds, integers
from fusedreduce.ir.ops import DIALECTS, KINDS, OPS, Op
from fusedreduce.ir.show import helpers, shape
from fusedreduce.kernels.functions import FUNCTIONS

mp = mpmath.mp
TORCH = dialect("torch", {"torch": torch}, dtype=torch.float64)
NUMPY = dialect("numpy", {"np": np}, dtype=np.float64)
MPMATH = dialect("mpmath", {"mp": mp})
SYMPY = dialect("sympy", {"sp": sympy})

FORMS = ("const", "var", "cast", "read")
ROWS = tuple(op for op in OPS.values() if op.name not in FORMS)
NAMES = ("x", "y", "z", "u", "v")
REALS = (-2.5, -1.0, -0.75, -0.5, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.0, 7.0)
INTEGERS = (-7, -3, -2, -1, 1, 2, 3, 5, 8)
SMALL = (0, 1, 2, 5)
BOOLEANS = (False, True)
COUNTERS = (-9, 0, 5, 8, 2**40 + 13)
SEARCHED = ("shl", "shr")


class Sample(NamedTuple):
    """A row applied to variables, the kinds of these, and the values each may take."""

    expr: Expr
    kinds: dict[str, str]
    values: tuple[tuple[float, ...], ...]


def samples(op: Op) -> list[Sample]:
    """One sample for every combination of kinds that the row takes (all arguments alike)."""
    number = ["float", "int"]
    choices = {"bool": ["bool"], "int": ["int"], "float": number, "number": number,
               "any": [*number, "bool"]}  # fmt: skip
    found = []
    for kind in choices[op.takes[-1]]:
        if kind == "bool" and op.result == "float":
            continue
        kinds = ["bool" if takes == "bool" else kind for takes in op.takes]
        table = {"bool": BOOLEANS, "int": INTEGERS, "float": REALS}
        values = [table[k] for k in kinds]
        if op.name == "random":
            values = [COUNTERS] * op.arity
        if op.name in SEARCHED or (op.name == "pow" and kind == "int"):
            values[1] = SMALL
        names = NAMES[: op.arity]
        expr = call(op.name, *(var(n) for n in names))
        found.append(Sample(expr, dict(zip(names, kinds, strict=True)), tuple(values)))
    return found


ALL = [(op, sample) for op in ROWS for sample in samples(op)]
IDS = [f"{op.name}-{'-'.join(s.kinds.values())}" for op, s in ALL]


def points(sample: Sample) -> list[dict[str, float]]:
    return [dict(zip(sample.kinds, p, strict=True)) for p in itertools.product(*sample.values)]


def close(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=1e-13)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_row_is_complete(op: Op) -> None:
    assert all(op.spelling(d) for d in (*DIALECTS, "show"))
    assert len(op.derivative) == len(op.takes) == op.arity
    assert op.result in (*KINDS, "join", *FORMS)
    assert callable(op.interval)
    assert set(op.takes) <= {"any", "number", "float", "int", "bool"}


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_helpers_are_printed(op: Op) -> None:
    args = [var(n) for n in NAMES[: op.arity]]
    found = [*helpers(call(op.name, *args))]
    for constant, _ in op.variants:
        found += helpers(call(op.name, call("exp", args[0]), constant))
    assert set(found) <= set(FUNCTIONS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("op", "sample"), ALL, ids=IDS)
def test_spellings_agree(op: Op, sample: Sample) -> None:
    kind = kind_of(sample.expr, sample.kinds)
    expr = promote(sample.expr, sample.kinds)
    fast = compiled(expr, tuple(sample.kinds), TORCH)
    for env in points(sample):
        true = evaluate(expr, env, TORCH)
        assert {torch.bool: "bool", torch.int64: "int"}.get(true.dtype, "float") == kind
        assert close(float(fast(*env.values())), float(true))
        floats = {n: np.float64(v) if sample.kinds[n] == "float" else v for n, v in env.items()}
        assert close(float(evaluate(expr, floats, NUMPY)), float(true)), env
        assert close(float(evaluate(expr, env, MPMATH)), float(true)), env


@pytest.mark.parametrize(("op", "sample"), ALL, ids=IDS)
def test_sympy_agrees(op: Op, sample: Sample) -> None:
    if "Function" in op.sympy:
        pytest.skip("uninterpreted in proofs")
    if "bool" in sample.kinds.values() and "bool" not in op.takes:
        pytest.skip("sympy has no order or arithmetic of truth values")
    for env in points(sample)[::7]:
        exact = {n: sympy.nsimplify(v) if not isinstance(v, bool) else sympy.sympify(v)
                 for n, v in env.items()}  # fmt: skip
        true = float(evaluate(promote(sample.expr, sample.kinds), env, TORCH))
        got = evaluate(sample.expr, exact, SYMPY)
        value = complex(bool(got) if isinstance(got, sympy.logic.boolalg.Boolean) else got)
        if math.isfinite(true):
            assert value.imag == 0
            assert close(value.real, true), env


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_derivative(op: Op) -> None:
    sample = samples(op)[0]
    for name, rule in zip(sample.kinds, op.derivative, strict=True):
        if rule is None:
            assert derivative(sample.expr, name) is call("add", 0.0, 0.0).args[0]
            continue
        slope = derivative(sample.expr, name)
        kind_of(slope, sample.kinds)
        for env in points(sample):
            near = {n: v + 1e-3 * (i + 1) if sample.kinds[n] == "float" else v
                    for i, (n, v) in enumerate(env.items())}  # fmt: skip
            true = evaluate(sample.expr, near, TORCH)
            if not math.isfinite(float(true)):
                continue
            with mp.workdps(40):
                h = mp.mpf("1e-12")
                high = evaluate(sample.expr, {**near, name: mp.mpf(near[name]) + h}, MPMATH)
                low = evaluate(sample.expr, {**near, name: mp.mpf(near[name]) - h}, MPMATH)
                numeric = float((high - low) / (2 * h))
            got = float(evaluate(slope, near, TORCH))
            assert math.isclose(got, numeric, rel_tol=1e-9, abs_tol=1e-9), (name, near)


@pytest.mark.parametrize(("op", "sample"), ALL, ids=IDS)
def test_bounds_contain(op: Op, sample: Sample) -> None:
    """Random boxes of arguments: every value at a point of the box lies in the bounds."""
    rng = random.Random(op.name)
    whole = {n: kind != "float" for n, kind in sample.kinds.items()}
    for _ in range(40):
        box = {}
        for (name, exact), values in zip(whole.items(), sample.values, strict=True):
            lo, hi = sorted(rng.choices(sorted(values), k=2))
            box[name] = Interval(int(lo) if exact else lo, int(hi) if exact else hi, exact)
        answer = bounds(sample.expr, box)
        for env in points(sample):
            if all(v in box[n] for n, v in env.items()):
                value = float(evaluate(promote(sample.expr, sample.kinds), env, TORCH))
                slack = 1e-12 * max(1.0, abs(value)) if math.isfinite(value) else 0.0
                inside = answer.lo - slack <= value <= answer.hi + slack
                assert math.isnan(value) or inside, (box, env, answer)
                assert not answer.whole or math.isnan(value) or value == int(value)


SHARP = (  # (expression, i, j, bounds)
    (call("mod", var("i"), 4), (8, 11), (0, 0), integers(0, 3)),
    (call("mod", var("i"), 4), (9, 10), (0, 0), integers(1, 2)),
    (call("mod", var("i"), 4), (0, 100), (0, 0), integers(0, 3)),
    (call("floordiv", var("i"), 128), (128, 255), (0, 0), integers(1, 1)),
    (call("ge", var("i"), var("j")), (128, 255), (0, 128), integers(1, 1)),
    (call("ge", var("i"), var("j")), (0, 127), (128, 255), integers(0, 0)),
    (call("lt", call("sub", var("i"), var("j")), 64), (0, 127), (0, 127), integers(0, 1)),
    (call("pow", call("sub", var("i"), 3), 2), (0, 5), (0, 0), integers(0, 9)),
    (call("pow", var("i"), 3), (-2, 3), (0, 0), integers(-8, 27)),
    (call("lt", call("mod", var("i"), 4), 4), (0, 100), (0, 0), integers(1, 1)),
    (cast(call("lt", var("i"), 4), "int32"), (0, 3), (0, 0), integers(1, 1)),
    (call("where", call("lt", var("i"), 4), 1, 2), (0, 3), (0, 0), integers(1, 1)),
    (cast(var("i"), "int8"), (0, 300), (0, 0), integers(-128, 127)),
)


@pytest.mark.parametrize(("expr", "i", "j", "answer"), SHARP)
def test_bounds_are_sharp(
    expr: Expr, i: tuple[int, int], j: tuple[int, int], answer: Interval
) -> None:
    assert bounds(expr, {"i": integers(*i), "j": integers(*j)}) == answer


def test_known_nodes_and_tables_have_given_bounds() -> None:
    ids = make("read", (var("ids"), var("j")))
    assert bounds(ids + 1, {"ids": integers(2, 3)}) == integers(3, 4)
    assert bounds(ids + 1, {}, {ids: integers(5, 5)}) == integers(6, 6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rounding_stays_in_bounds(dtype: str) -> None:
    rng = random.Random(dtype)
    for _ in range(200):
        lo, hi = sorted(rng.uniform(-7e4, 7e4) * 10 ** rng.uniform(-9, 0) for _ in range(2))
        answer = bounds(cast(var("x"), dtype), {"x": Interval(lo, hi)})
        for x in (lo, hi):
            rounded = torch.tensor(x, dtype=torch.float64).to(getattr(torch, dtype)).item()
            assert rounded in answer


@pytest.mark.parametrize(
    ("spelling", "arity", "answer"),
    [
        ("{0} + {1}", 2, (11, (11, 12))),
        ("{0} ** {1}", 2, (14, (15, 13))),
        ("-{0}", 1, (13, (13,))),
        ("{0} < {1}", 2, (6, (7, 7))),
        ("f({0}, {1})", 2, (16, (0, 0))),
        ("{0}.to(t)", 1, (16, (16,))),
        ("1 / (1 + f(-{0}))", 1, (12, (13,))),
    ],
)
def test_shape(spelling: str, arity: int, answer: tuple[int, tuple[int, ...]]) -> None:
    assert shape(spelling, arity) == answer
