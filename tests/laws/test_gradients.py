"""The law of the gradient: derived backwards and stated `grad`s, proved, checked or refuted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fusedreduce as fr
from fusedreduce import reductions as r
from fusedreduce.errors import DeclarationError, LawViolation
from fusedreduce.laws import certified, prove
from fusedreduce.laws.certificate import Certificate, Law, Status
from fusedreduce.laws.decide import soon
from fusedreduce.laws.gradients import gradient
from fusedreduce.laws.settle import Clock
from tests import references

WITHOUT = {r.AllOf, r.AnyOf, r.Argmax, r.Argmin}  # their results are no floats
RUN_AGAIN = {r.AffineComposition, r.LossStatistics, r.MaxSubarray, r.TopTwo}
DERIVED = [R for n in r.__all__ if (R := getattr(r, n)) not in WITHOUT | RUN_AGAIN]


def law_of(certificate: Certificate) -> Law:
    (law,) = (law for law in certificate.laws if law.name == "gradient")
    return law


@pytest.mark.parametrize("R", DERIVED, ids=lambda R: R.__name__)
def test_the_derived_backward_of_what_is_shipped_is_proved(R: type) -> None:
    certificate = prove(R)
    law = law_of(certificate)
    assert law.status is Status.PROVED, law.how
    assert "trials agree" in law.how
    assert certificate.facts.gradient == "derived"


@pytest.mark.parametrize("R", WITHOUT | RUN_AGAIN, ids=lambda R: R.__name__)
def test_where_no_backward_is_made_there_is_no_law(R: type) -> None:
    certificate = prove(R)
    assert not [law for law in certificate.laws if law.name == "gradient"]
    assert certificate.facts.gradient == ("" if R in WITHOUT else "run again")
    assert ("gradient by the unfused run" in str(certificate)) == (R in RUN_AGAIN)


@pytest.mark.parametrize(
    ("R", "words"),
    [
        (r.LogSumExp, "term by term: the references are gauge"),
        (r.Total, "term by term"),
        (r.MaxAndSum, "term by term, and along the references of m, s"),
        (references.Bound, "term by term, and along the references of mean, cube"),
        (r.Welford, "the state is a function of sums over the elements"),
    ],
)
def test_the_reason(R: type, words: str) -> None:
    assert law_of(prove(R)).how.partition(";")[0] == words


def test_a_wrong_fact_would_be_refuted() -> None:
    """Were s of MaxAndSum taken for gauge, nothing would flow through the maximum."""
    record, _ = certified(r.MaxAndSum.record)
    (law,), _ = gradient(replace(record, gauge=("m", "s")), [], None, Clock(soon(5)))
    assert law.status is Status.REFUTED
    assert law.counterexample is not None
    assert law.counterexample.left[0] == "d loss / d x[1] by the derived backward"
    assert law.counterexample.right[0] == "d loss / d x[1] by differentiation"


def test_a_wrong_slope_would_be_refuted() -> None:
    record, _ = certified(r.Welford.record)
    halved = tuple((f, by, e * 0.5) for f, by, e in record.slopes)
    (law,), _ = gradient(replace(record, slopes=halved), [], None, Clock(soon(5)))
    assert law.status is Status.REFUTED


# ---- stated --------------------------------------------------------------------------------------


class ComplexProduct(fr.Reduction):
    """prod_j (re_j + i im_j): it can be undone by dividing, which no derived backward does."""

    re, im = fr.state(1.0, 0.0)

    def lift(x, y):
        return x, y

    def merge(a, b):
        return a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re

    def finish(re, im):
        return {"re": re, "im": im}

    def grad(x, y, re, im, d_re, d_im):
        size = x * x + y * y
        u, v = (re * x + im * y) / size, (im * x - re * y) / size
        return {"x": d_re * u + d_im * v, "y": d_im * u - d_re * v}


class WelfordStated(r.Welford):
    def grad(x, n, mean, d_mean, d_var):
        return (d_mean + 2 * d_var * (x - mean)) / n


class LogSumExpStated(r.LogSumExp):
    def grad(x, m, s, d_value):
        return d_value * torch.exp(x - m) / s


class SecondStated(r.TopTwo):
    """Right where nothing is tied, which is more than elementwise gradients can say."""

    def grad(x, first, second, d_first, d_second):
        return torch.where(x == first, d_first, torch.where(x == second, d_second, 0.0))


@pytest.mark.parametrize("R", [ComplexProduct, WelfordStated, LogSumExpStated])
def test_a_right_gradient_is_proved_for_every_n(R: type) -> None:
    certificate = prove(R)
    law = law_of(certificate)
    assert law.status is Status.PROVED, law.how
    assert law.how.startswith("exact for every n")
    assert certificate.facts.gradient == "stated"
    assert "gradient stated" in str(certificate)


def test_what_a_stated_gradient_divides_by_is_assumed() -> None:
    (assumed,) = prove(ComplexProduct).assumptions
    assert assumed.endswith("!= 0")
    assert "x" in assumed


class Doubled(r.Welford):
    def grad(x, n, mean, d_mean, d_var):
        return (d_mean + 4 * d_var * (x - mean)) / n


class Forgotten(r.LogSumExp):
    def grad(x, m, d_value):
        return d_value * torch.exp(x - m)


class Conjugated(ComplexProduct):
    def grad(x, y, re, im, d_re, d_im):
        size = x * x + y * y
        u, v = (re * x + im * y) / size, (im * x - re * y) / size
        return {"x": d_re * u + d_im * v, "y": d_im * u + d_re * v}


@pytest.mark.parametrize("R", [Doubled, Forgotten, Conjugated, SecondStated])
def test_a_wrong_gradient_is_refuted_in_numbers(R: type) -> None:
    law = law_of(prove(R))
    assert law.status is Status.REFUTED
    example = law.counterexample
    assert example is not None
    assert example.left[0].endswith("by grad")
    assert example.right[0].endswith("by differentiation")
    assert float(example.left[1]) != float(example.right[1])
    with pytest.raises(LawViolation, match=r"gradient does not hold.*\n.*expected.*\n.*came"):
        fr.reduce(R, torch.ones(3), **({"y": torch.ones(3)} if R is Conjugated else {}))


def test_a_stated_gradient_is_what_runs() -> None:
    x, y = (torch.randn(3, 8, dtype=torch.float64, requires_grad=True) for _ in "xy")
    found = fr.reduce(ComplexProduct, x, y=y)
    right = torch.complex(x, y).prod(-1)
    for output, part in (("re", right.real), ("im", right.imag)):
        for loss in (
            found[output].square().sum(),
            fr.reduce(ComplexProduct, x, y=y, outputs=output).square().sum(),
        ):
            got = torch.autograd.grad(loss, (x, y), retain_graph=True)
            want = torch.autograd.grad(part.square().sum(), (x, y), retain_graph=True)
            torch.testing.assert_close(got, want)


def test_a_gradient_for_every_operand() -> None:
    with pytest.raises(DeclarationError, match=r"expected +a dict of x, y.*\n +came +x\n"):

        class OnlyOne(ComplexProduct):
            def grad(x, re, im, d_re, d_im):
                return {"x": d_re}


def test_a_parameter_that_is_nothing() -> None:
    with pytest.raises(DeclarationError, match="grad takes `d_out`"):

        class Misnamed(r.LogSumExp):
            def grad(x, m, s, d_out):
                return d_out
