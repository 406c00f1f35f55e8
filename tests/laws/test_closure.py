"""Corrections derived: the printed form, missing companions, the reasons why there is none."""

from __future__ import annotations

import time

import pytest
import torch

import fusedreduce as fr
from fusedreduce.errors import DeclarationError
from fusedreduce.ir.show import show
from fusedreduce.laws import complete, derive
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
