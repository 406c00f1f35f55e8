"""What is shipped is proved; spoilt, it is refused by the law that the table names."""

from __future__ import annotations

import ast
import inspect
from collections import Counter

import pytest
import torch

import fusedreduce as fr
from fusedreduce import reductions
from fusedreduce.laws import prove
from fusedreduce.laws.certificate import Status
from tests.laws.library import BROKEN, BY_HAND, STATED, Broken, stated

SHIPPED = [getattr(reductions, name) for name in reductions.__all__]
LINES = 15  # a declaration is read at a glance; definition and docstring are not counted


@pytest.mark.parametrize("R", SHIPPED, ids=lambda R: R.__name__)
def test_it_is_proved(R: type) -> None:
    certificate = prove(R)
    assert certificate.proved, certificate.explain()
    assert certificate.meaning_stated == (R not in STATED)


@pytest.mark.parametrize("R", STATED, ids=lambda R: R.__name__)
def test_a_definition_by_order_or_rank_is_only_checked(R: type) -> None:
    """Powers and extremes of one term do not tell which element came last, or second."""
    certificate = prove(stated(R))
    (law,) = certificate.open
    assert (law.name, law.status) == ("definition", Status.CHECKED)
    assert law.how.startswith("exact for up to 3 elements")
    assert not certificate.refuted


@pytest.mark.parametrize("R", SHIPPED, ids=lambda R: R.__name__)
def test_terms_and_corrections_stay_bounded(R: type) -> None:
    assert prove(R).facts.bounded is not False


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: f"{c.R.__name__}: {c.how}")
def test_spoilt_it_is_refused(case: Broken) -> None:
    certificate = prove(case.declaration)
    assert case.law in {law.name for law in certificate.refuted}, certificate.explain()


def test_every_reduction_is_spoilt_in_two_ways() -> None:
    spoilt = Counter(case.R for case in BROKEN)
    assert not [R.__name__ for R in SHIPPED if spoilt[BY_HAND.get(R, R)] < 2]


@pytest.mark.parametrize("hand", BY_HAND.values(), ids=lambda R: R.__name__)
def test_what_is_spoilt_by_hand_holds_as_it_is(hand: type) -> None:
    assert prove(hand).proved


def test_a_definition_without_a_value_proves_nothing() -> None:
    class Nowhere(fr.Reduction):
        q = fr.Sum(lambda x: x * x)

        def finish(q):
            return torch.log(-1 - q)

        def definition(x):
            return torch.log(-1 - torch.sum(x * x))

    (law,) = prove(Nowhere).open
    assert (law.name, law.status) == ("definition", Status.UNKNOWN)


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
def test_a_p_norm_is_proved_for_whole_p(p: float) -> None:
    assert prove(reductions.p_norm(p)).proved


def test_a_p_norm_is_checked_for_other_p() -> None:
    """A root of the reference and of the element do not separate where the reference may be 0."""
    certificate = prove(reductions.p_norm(2.5))
    assert [(law.name, law.status) for law in certificate.open] == [("definition", Status.CHECKED)]
    assert not certificate.refuted


@pytest.mark.parametrize("R", SHIPPED, ids=lambda R: R.__name__)
def test_a_declaration_is_short(R: type) -> None:
    tree = ast.parse(inspect.getsource(inspect.getmodule(R)))
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == R.__name__)
    apart = [found.body[0], *(n for n in found.body if getattr(n, "name", "") == "definition")]
    written = sum(n.end_lineno - n.lineno + 1 for n in found.body if n not in apart)
    assert written <= LINES, f"{R.__name__}: {written} lines"
