"""Corrections derived: the printed form, missing companions, the reasons why there is none."""

from __future__ import annotations

import re
import time

import pytest
import torch

import fusedreduce as fr
from fusedreduce import trace
from fusedreduce.errors import DeclarationError
from fusedreduce.ir.evaluate import dialect, evaluate
from fusedreduce.ir.show import show
from fusedreduce.laws import Status, complete, derive
from fusedreduce.laws.terms import term_function
from tests.laws import zoo


def e(x, m):
    return torch.exp(x - m)


def u(x, m):
    return x - m


def one(x):
    return 1.0


POSITIVE = {"x": "positive", "m": "positive"}

CLOSED = [
    (lambda x, m: torch.exp(x - m), {}, "s * exp(old.m - new.m)"),
    (lambda x, w, m: w * torch.exp(x - m), {}, "c * exp(old.m - new.m)"),
    (lambda x, m: torch.exp((x - m) / 2), {}, "s * exp((old.m - new.m) / 2.0)"),
    (lambda x, m: (x / m) ** 2, {}, "c * (old.m / new.m) ** 2"),
    (
        lambda x, m: (x - m) * torch.exp(x - m),
        {"t": e},
        "(c + old.t * (old.m - new.m)) * exp(old.m - new.m)",
    ),
    (
        lambda x, m: (x - m) ** 2,
        {"n": one, "d": u},
        "c + 2.0 * old.d * (old.m - new.m) + old.n * (old.m - new.m) ** 2",
    ),
    (lambda x, m: x - m, {"total": lambda x: x, "n": one}, "c + old.n * (old.m - new.m)"),
    (
        lambda x, m: (x - m) ** 2,
        {"n": one, "t": lambda x: x},
        "c + 2.0 * (old.t - old.n * old.m) * (old.m - new.m) + old.n * (old.m - new.m) ** 2",
    ),
    (lambda x, m: torch.log(x / m), {"n": one}, "c + old.n * log(old.m / new.m)"),
    (
        lambda x, m: torch.sin(x - m),
        {"q": lambda x, m: torch.cos(x - m)},
        "c * cos(old.m - new.m) + old.q * sin(old.m - new.m)",
    ),
    (lambda x, m: torch.where(x > 0, torch.exp(x - m), 0.0), {}, "c * exp(old.m - new.m)"),
    (lambda x, m: x * x - 2 * m * x, {"t": lambda x: x}, "c + 2.0 * old.t * (old.m - new.m)"),
]


@pytest.mark.parametrize(("term", "companions", "text"), CLOSED, ids=lambda v: str(v)[:40])
def test_corrections_are_printed_over_differences_or_ratios(term, companions, text) -> None:
    found = derive(term, reference="m", companions=companions, domain=POSITIVE)
    assert found.correction == text


AT_ZERO = [
    # term, companions, correction, companions asked for, what is taken as given
    (lambda x, c: x - c, {"q": lambda x: x}, "", ("1.0",), ()),
    (lambda x, w, c: w * (x - c), {"q": lambda x, w: w * x}, "", ("w",), ()),
    (
        lambda x, w, c: w * (x - c),
        {"q": lambda x, w: w * x, "u": lambda w: w},
        "c_ + old.u * (old.c - new.c)",
        (),
        (),
    ),
    (lambda x, c: x + c, {}, "", ("1.0",), ()),
    (lambda x, c: x * c, {}, "c_ * (new.c / old.c)", (), ("c != 0",)),
    (lambda x, c: x / c, {}, "c_ * (old.c / new.c)", (), ()),
]


@pytest.mark.parametrize(("term", "companions", "text", "missing", "given"), AT_ZERO)
def test_no_correction_divides_by_a_reference_that_may_be_0(
    term, companions, text, missing, given
) -> None:
    """Where the term has a value at r = 0, a ratio of r is no rule: the difference is asked for."""
    found = derive(term, reference="c", companions=companions)
    assert found.missing == missing
    assert found.correction == re.sub(r"^c_", found.field, text)
    assert found.assumed == given


def test_a_weighted_sum_that_needs_its_weights_is_told_so() -> None:
    """A ratio of c would be NaN in a row whose weighted sum is 0, and refuted for it."""

    class Spread(fr.Reduction):
        domain = {"w": "nonnegative"}
        q = fr.Sum(lambda x, w: torch.where(w == 0, 0.0, w * x))
        u = fr.Sum(lambda w: torch.where(w == 0, 0.0, w))
        c = fr.Reference(lambda u, q: q / (u + 1e-6))
        e = fr.Sum(lambda x, w, c: torch.where(w == 0, 0.0, w * (x - c)))

        def finish(q, c, e):
            return {"e": e, "c": c}

    done = complete(Spread.record).by_name["e"]
    assert done.correct is not None
    assert "/" not in show(done.correct)
    x = torch.tensor([[1.0, -1.0, 0.0, 4.0], [0.0, 0.0, 0.0, 2.0]])
    w = torch.tensor([1.0, 1.0, 1.0, 0.0])
    found = fr.reduce(Spread, x, w=w)
    torch.testing.assert_close(found, {"e": torch.zeros(2), "c": torch.zeros(2)})

    class Weightless(Spread):
        u = fr.Sum(lambda x: 1.0)

    with pytest.raises(DeclarationError, match="the correction of `e` needs a companion"):
        complete(Weightless.record)


MISSING = [
    (lambda x, m: (x - m) * torch.exp(x - m), ("exp(x - m)",)),
    (lambda x, m: (x - m) ** 2, ("1.0", "x - m")),
    (lambda x, w, m: w * (x - m) ** 2, ("w", "(x - m) * w")),
    (lambda x, m: torch.log(x / m), ("1.0",)),
    (lambda x, m: torch.sin(x - m), ("cos(x - m)",)),
    (lambda x, m: x * x - 2 * m * x, ("x",)),
]


@pytest.mark.parametrize(("term", "missing"), MISSING, ids=lambda v: str(v)[:40])
def test_missing_companions_are_named_at_the_reference(term, missing) -> None:
    found = derive(term, reference="m", domain=POSITIVE)
    assert not found
    assert found.missing == missing


INFINITE = [
    (lambda x, m: torch.exp(x * m), "exp(x * m)"),
    (lambda x, m: torch.exp(-((x - m) ** 2)), "exp(x * m)"),
    (lambda x, m: 1 / (x - m), "x - m = 0"),
    (lambda x, m: torch.sigmoid(x - m), "pole"),
    (lambda x, m: torch.log(1 + torch.exp(x - m)), "log"),
    (lambda x, m: torch.sqrt(x * x + m * m), "sqrt"),
    (lambda x, m: torch.abs(x - m), "choice"),
]


@pytest.mark.parametrize(("term", "reason"), INFINITE, ids=lambda v: str(v)[:40])
def test_an_infinite_span_is_the_reason(term, reason) -> None:
    found = derive(term, reference="m")
    assert not found
    assert not found.missing
    assert reason in found.reason


def test_a_parameter_is_no_operand() -> None:
    def term(x, p, m):
        return (x / m) ** p

    domain = {"x": "positive", "m": "positive", "p": "positive"}
    assert "exp(p * log(m))" in derive(term, domain=domain).reason
    assert derive(term, parameters=("p",), domain=domain).correction == ("c * (old.m / new.m) ** p")


def test_moments_are_completed_quickly() -> None:
    complete.cache_clear()
    complete(zoo.Moments.record)
    complete.cache_clear()
    start = time.perf_counter()
    record = complete(zoo.Moments.record)
    assert time.perf_counter() - start < 0.5
    derived = {f.name: show(f.correct) for f in record.fields if f.derived and f.correct}
    assert derived == {
        "d1": "d1 + old.n * (old.r - new.r)",
        "e1": "e1 + old.n * (old.mean - new.mean)",
        "e2": "e2 + 2.0 * old.e1 * (old.mean - new.mean) + old.n * (old.mean - new.mean) ** 2",
    }
    assert complete(record) == record


def test_a_facts_of_a_maximum_settles_an_absolute_value() -> None:
    class Below(fr.Reduction):
        m = fr.Max(lambda x: x)
        n = fr.Sum(lambda x: 1.0)
        d = fr.Sum(lambda x, m: torch.abs(x - m))

        def finish(n, d):
            return d / n

    correct = complete(Below.record).by_name["d"].correct
    assert correct is not None
    assert show(correct) == "d - old.n * (old.m - new.m)"


def test_the_refusal_holds_the_line_to_add() -> None:
    class NoCount(fr.Reduction):
        m = fr.Max(lambda x: x)
        d = fr.Sum(lambda x, m: (x - m) ** 2)

        def finish(d):
            return d

    with pytest.raises(DeclarationError) as refusal:
        complete(NoCount.record)
    text = str(refusal.value)
    assert "n = fr.Sum(lambda x: 1.0)" in text
    assert "d1 = fr.Sum(lambda x, m: x - m)" in text
    assert "d = fr.Sum(lambda x, m: (x - m) ** 2)" in text


def test_companions_are_found_whatever_their_names() -> None:
    class Named(fr.Reduction):
        m = fr.Max(lambda x: x)
        weights = fr.Sum(lambda x, m: 3.0 * torch.exp(x - m))
        e = fr.Sum(lambda x, m: (x - m) * torch.exp(x - m))

        def finish(e, weights):
            return e / weights

    correct = complete(Named.record).by_name["e"].correct
    assert correct is not None
    assert show(correct) == "(e + old.weights * ((old.m - new.m) / 3.0)) * exp(old.m - new.m)"


TEN_THOUSAND = [
    ("exp(x - m)", {}),
    ("exp(x - m) * y", {}),
    ("exp2(x - m)", {}),
    ("x * exp(x - m)", {}),
    ("(x - m) * exp(x - m)", {"s": "exp(x - m)"}),
    ("(x - m) ** 2 * exp(x - m)", {"s": "exp(x - m)", "t": "(x - m) * exp(x - m)"}),
    ("(x - m) ** 2", {"n": "1.0", "d": "x - m"}),
    ("(x - m) ** 4", {"n": "1.0", "d": "x - m", "e": "(x - m) ** 2", "f": "(x - m) ** 3"}),
    ("(x / m) ** p", {}),
    ("log(x / m)", {"n": "1.0"}),
    ("log2(x / m)", {"n": "1.0"}),
    ("sqrt(x / m)", {}),
    ("rsqrt(x / m)", {}),
    ("(m / x) ** 3", {}),
    ("sin(x - m)", {"q": "cos(x - m)"}),
    ("cos(x - m)", {"q": "sin(x - m)"}),
    ("cosh(x - m)", {"q": "sinh(x - m)"}),
    ("sinh(x - m)", {"q": "cosh(x - m)"}),
    ("exp(x - m) * sin(x - m)", {"q": "exp(x - m) * cos(x - m)"}),
    ("expm1(x - m)", {"n": "1.0"}),
    ("(x - m) / r", {"n": "1.0"}),
    ("((x - m) / r) ** 2", {"n": "1.0", "d": "(x - m) / r"}),
    ("exp((x - m) / p)", {}),
]


@pytest.mark.parametrize(("text", "companions"), TEN_THOUSAND, ids=lambda v: str(v))
def test_corrections_are_stable_at_large_references(text: str, companions: dict[str, str]) -> None:
    """In float64, with references near 10000, as close as the term itself is."""
    references = ("m", "r") if "r" in re.findall(r"\w+", text) else ("m",)
    term = term_function(text)
    others = {n: term_function(t) for n, t in companions.items()}
    found = derive(term, reference=references, companions=others, parameters=("p",))
    assert found.expression is not None, str(found)
    make = torch.Generator().manual_seed(0)
    for _ in range(20):
        drawn = {n: 1e4 + 3 * torch.randn((), generator=make).double() for n in "xyabcd"}
        drawn["p"] = torch.tensor(2.5, dtype=torch.float64)
        element = {"x": drawn["x"], "y": drawn["y"], "p": drawn["p"]}
        old, new = {"m": drawn["a"], "r": drawn["b"]}, {"m": drawn["c"], "r": drawn["d"]}
        env = {f"old.{n}": at(f, element | old) for n, f in others.items()}
        env |= {f"old.{n}": v for n, v in old.items()} | {f"new.{n}": v for n, v in new.items()}
        env |= {found.field: at(term, element | old), "p": drawn["p"]}
        double = dialect("torch", {"torch": torch}, dtype=torch.float64)
        moved = torch.as_tensor(evaluate(found.expression, env, double))
        largest = max(abs(v) for n, v in env.items() if n == found.field or n[4:] in others)
        wanted = torch.as_tensor(at(term, element | new))
        assert abs(moved - wanted) <= 1e-9 * (1 + abs(wanted) + largest)


def at(fn, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """A term as the language means it, in float64."""
    traced = trace.run(fn, {n: trace.scalar(n) for n in trace.signature(fn, "term").parameters})
    double = dialect("torch", {"torch": torch}, dtype=torch.float64)
    return torch.as_tensor(evaluate(trace.to_expr(traced, "term")[0], values, double))


RESPELT = {
    "exp2(x - m)": "c * exp2(old.m - new.m)",
    "sqrt(x / m)": "c * sqrt(old.m / new.m)",
    "(m / x) ** 2": "c * (new.m / old.m) ** 2",
    "(x / m) ** p": "c * (old.m / new.m) ** p",
    "x * exp(x - m)": "c * exp(old.m - new.m)",
}


@pytest.mark.parametrize(("text", "correction"), RESPELT.items(), ids=RESPELT)
def test_factors_have_their_shortest_spelling(text: str, correction: str) -> None:
    found = derive(term_function(text), reference="m", parameters=("p",))
    assert found.correction == correction


def test_a_scale_beside_a_shift_stays_in_the_correction() -> None:
    others = {"n": term_function("1.0"), "d": term_function("(x - m) / r")}
    found = derive(term_function("((x - m) / r) ** 2"), reference=("m", "r"), companions=others)
    assert found.correction == (
        "c * (old.r / new.r) ** 2 + old.d * (2.0 * (old.m - new.m) * old.r / new.r ** 2) "
        "+ old.n * ((old.m - new.m) / new.r) ** 2"
    )


def test_what_a_log_needs_is_assumed_and_said() -> None:
    found = derive(lambda x, r: torch.log(x / r), companions={"n": one})
    assert found.assumed == ("r > 0",)
    assert str(found).endswith("(assuming r > 0)")


@pytest.mark.parametrize("text", ["abs(x - m)", "floor(x - m)", "erf(x - m)", "maximum(x, m)"])
def test_a_rank_that_keeps_growing_is_checked_and_no_proof(text: str) -> None:
    found = derive(term_function(text), reference="m")
    assert found.status is Status.CHECKED
    assert "keeps growing" in found.reason
    assert "by numbers (Checked)" in str(found)


@pytest.mark.parametrize("text", ["tanh(x - m)", "x ** m", "log(1 + exp(x - m))", "1 / (x - m)"])
def test_a_proof_that_there_is_none_is_proved(text: str) -> None:
    assert derive(term_function(text), reference="m").status is Status.PROVED


def test_a_choice_by_the_element_is_no_constant() -> None:
    """where(x > 50, ...) is both branches: reading one of them proved false definitions."""
    found = derive(lambda x, m: torch.where(x > 50, torch.exp(x - m), 1.0))
    assert found.missing == ("(x > 50) * exp(x - m)",)
    assert derive(lambda x, m: torch.where(x > 50, torch.exp(x - m), 0.0))
