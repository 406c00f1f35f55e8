"""The exact engine: what it proves, what it must not, and the traps met on the way."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from fusedreduce.ir.expr import Expr, call, const, make, var, walk, where
from fusedreduce.laws.decide import equal, nonnegative, positive, soon
from fusedreduce.laws.general import grouping, known_of
from fusedreduce.laws.linear import Row, feasible
from fusedreduce.laws.merges import proved
from fusedreduce.laws.rationals import exact, primes
from fusedreduce.laws.refute import search
from fusedreduce.laws.settle import Clock
from fusedreduce.laws.tropical import equal_forms
from tests.laws import zoo

x, y, m, s, n = (var(v) for v in ("x", "y", "m", "s", "n"))


def exp(e: Expr) -> Expr:
    return call("exp", e)


def log(e: Expr) -> Expr:
    return call("log", e)


def largest(a: Expr, b: Expr) -> Expr:
    return call("maximum", a, b)


def smallest(a: Expr, b: Expr) -> Expr:
    return call("minimum", a, b)


TRUE = [
    (call("sqrt", x * x), call("abs", x)),
    (log((x**2 + 1.0) ** 2), 2.0 * log(x**2 + 1.0)),
    (largest(x, y) + smallest(x, y), x + y),
    (largest(x, y), (x + y + call("abs", x - y)) / 2.0),
    (exp(largest(x, y)), largest(exp(x), exp(y))),
    (call("tanh", x), (1.0 - exp(-2.0 * x)) / (1.0 + exp(-2.0 * x))),
    (call("cosh", x) * exp(x), (exp(2.0 * x) + 1.0) / 2.0),
    (exp(x - m) * exp(m - y), exp(x - y)),
    (call("sin", x) ** 2 + call("cos", x) ** 2, const(1.0)),
    (call("sin", x + y), call("sin", x) * call("cos", y) + call("cos", x) * call("sin", y)),
    (0.1 * x + 0.2 * x, 0.3 * x),
    ((x**2 - y**2) / (x - y), x + y),
    (where(call("gt", n, 0.0), n / n, 1.0), const(1.0)),
]


@pytest.mark.parametrize(("left", "right"), TRUE, ids=str)
def test_identities(left: Expr, right: Expr) -> None:
    assert equal([(left, right)], {}, deadline=soon(5)).proved


FALSE = [
    (largest(x, y), x + y),
    (call("sqrt", x * x), x),
    (exp(x) * exp(y), exp(x * y)),
    (x * (1.0 + 1e-9), x),
    (call("abs", x), x),
    (where(call("gt", x, 0.0), x, 0.0), x),
    (const(True), const(1.0) * 2.0),
]


@pytest.mark.parametrize(("left", "right"), FALSE, ids=str)
def test_what_is_false_is_not_proved(left: Expr, right: Expr) -> None:
    assert not equal([(left, right)], {}, deadline=soon(5)).proved


def test_a_divisor_and_a_logarithm_leave_assumptions() -> None:
    assert equal([(x / y, x / y)], {}, deadline=soon(5)).assumed == ("y != 0",)
    product = equal([(log(s * exp(m)), log(s) + m)], {}, deadline=soon(5))
    assert product.proved
    assert product.assumed == ("s > 0",)
    assert not equal([(log(s * exp(m)), log(s) + m)], {"s": "+"}, deadline=soon(5)).assumed


def test_infinities_stay_outside_the_field() -> None:
    """exp(-inf - -inf) has no value: nothing is proved of it, although nan == nan in sympy."""
    low = const(float("-inf"))
    e = const(0.0) * exp(low - low)
    assert equal([(e, e)], {}, deadline=soon(5)).status == "undefined"
    assert equal([(exp(low), const(0.0))], {}, deadline=soon(5)).proved


def test_facts_settle_comparisons() -> None:
    facts = [call("ge", m, x), call("ge", y, m)]
    assert equal([(call("abs", x - y), y - x)], {}, facts, deadline=soon(5)).proved
    assert equal([(largest(n, 0.0), n)], {}, [nonnegative(n)], deadline=soon(5)).proved
    both = call("add", n, s)
    never = equal([(x, y)], {}, [positive(n), positive(s), call("le", both, 0.0)], deadline=soon(5))
    assert never.proved
    assert never.cases == 0


def test_different_indices_split_only_once() -> None:
    facts = [call("ne", x, y)]
    smaller = where(call("lt", x, y), 1.0, 0.0) + where(call("lt", y, x), 1.0, 0.0)
    assert equal([(smaller, const(1.0))], {}, facts, deadline=soon(5)).proved


def test_the_deadline_is_kept() -> None:
    deep = x
    for i in range(40):
        deep = largest(deep + var(f"v{i}"), call("abs", deep - y))
    assert equal([(deep, deep + 1.0)], {}, deadline=soon(0.2)).status in ("timeout", "open")


def test_float_literals_mean_the_simplest_fraction() -> None:
    assert exact(1 / 3) == Fraction(1, 3)
    assert exact(0.1) == Fraction(1, 10)
    assert exact(1 + 1e-9) > 1
    assert float(exact(1 + 1e-9)) == 1 + 1e-9
    assert primes(360) == [(2, 3), (3, 2), (5, 1)]


def test_linear_programs() -> None:
    a, b = "a", "b"
    up = Row(((a, 1), (b, -1)), ">")
    down = Row(((b, 1), (a, -1)), ">=")
    assert not feasible([up, down], lambda c: "")
    assert feasible([up], lambda c: "")
    assert not feasible([Row(((a, 1), (b, 1)), "=")], lambda c: "+")
    assert feasible([Row(((a, 1), (b, 1)), "=")], lambda c: "0+")


def test_normal_forms_of_max_plus_and_lattices() -> None:
    assert equal_forms([(largest(x, y) + m, largest(x + m, y + m))])
    assert equal_forms([(smallest(x, largest(x, y)), smallest(x, x))])
    assert not equal_forms([(largest(x, y), x)])


MUTATED = (
    zoo.norm("TwoNorm", zoo.scaled),
    zoo.SignedLogSumExp,
    zoo.welford("Welford", zoo.chan),
    zoo.Affine,
    zoo.AnyAndAll,
)
SWAPS = {"add": "sub", "sub": "add", "mul": "add", "maximum": "minimum", "gt": "le", "or": "and"}


def mutants(declaration, count: int):
    """Records whose merge has one node changed: another operation, or the other side's field."""
    record = declaration.record
    source = random.Random(3)
    for _ in range(count):
        place = source.randrange(len(record.merge))
        root = record.merge[place]
        node = source.choice(list(walk(root)))
        if node.op == "var":
            side, _, field = str(node.value).partition(".")
            new = var(f"{'b' if side == 'a' else 'a'}.{field}")
        elif node.op in SWAPS:
            new = make(SWAPS[node.op], node.args)
        elif node.op == "const" and not isinstance(node.value, bool):
            new = const(float(node.value) + 1.0)
        else:
            continue
        changed = _swapped(root, node, new)
        merge = (*record.merge[:place], changed, *record.merge[place + 1 :])
        yield replace(record, merge=merge)


def _swapped(root: Expr, node: Expr, new: Expr) -> Expr:
    if root is node:
        return new
    args = tuple(_swapped(a, node, new) for a in root.args)
    return make(root.op, args, root.value) if args else root


@pytest.mark.parametrize("declaration", MUTATED, ids=lambda d: d.__name__)
def test_no_mutant_is_proved_that_numbers_refute(declaration) -> None:
    for record in mutants(declaration, 12):
        claim = grouping(record)
        refuted = search(claim.trials(record), count=60, seed=11).example is not None
        if refuted:
            clock = Clock(soon(5.0), law_s=1.0)
            known, _ = known_of(record, clock)
            assert not proved(known, claim, clock).proved, record.merge
