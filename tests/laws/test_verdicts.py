"""Every declaration that holds is proved; every broken one is refused with the law's name."""

from __future__ import annotations

import time

import pytest

from fusedreduce.errors import LawViolation
from fusedreduce.laws import prove
from fusedreduce.laws.certificate import LAWS, Status
from tests.laws import zoo
from tests.laws.zoo import Broken, Case

GENEROUS_S = 15.0


def name(case: Case | Broken) -> str:
    return case.declaration.__name__


@pytest.mark.parametrize("case", zoo.HOLD, ids=name)
def test_what_holds_is_proved(case: Case) -> None:
    start = time.perf_counter()
    certificate = prove(case.declaration)
    assert time.perf_counter() - start < GENEROUS_S
    lacking = {law.name: law.how for law in certificate.laws if law.status is not Status.PROVED}
    assert tuple(lacking) == case.open, lacking
    assert certificate.proved == (not case.open)
    assert certificate.facts.commutative == case.commutative
    certificate.raise_if_refuted()


@pytest.mark.parametrize("case", zoo.HOLD, ids=name)
def test_meaning_is_stated_or_said_not_to_be(case: Case) -> None:
    record, certificate = case.declaration.record, prove(case.declaration)
    stated = record.form == "corrected" or record.functions.definition is not None
    assert certificate.meaning_stated == stated
    if not stated:
        assert "a lawful merge; what it computes was not stated" in str(certificate)
    assert {law.name for law in certificate.laws} <= set(LAWS)


@pytest.mark.parametrize("case", zoo.BROKEN, ids=name)
def test_what_is_broken_is_refused(case: Broken) -> None:
    certificate = prove(case.declaration)
    refuted = {law.name for law in certificate.refuted}
    assert set(case.laws) <= refuted, certificate.explain()
    assert not certificate.proved
    with pytest.raises(LawViolation) as refusal:
        certificate.raise_if_refuted()
    assert any(f"{law} " in str(refusal.value) for law in refuted)
    assert "where" in str(refusal.value)
    assert "  do " in str(refusal.value)


@pytest.mark.parametrize("case", zoo.BROKEN, ids=name)
def test_both_sides_of_a_counterexample_differ_as_printed(case: Broken) -> None:
    for law in prove(case.declaration).refuted:
        if law.counterexample is not None:
            assert law.counterexample.left[1] != law.counterexample.right[1], law.title


def test_associativity_alone_is_not_enough() -> None:
    """Many broken declarations are associative; none of them may pass for proved."""
    associative = [
        name(case)
        for case in zoo.BROKEN
        if any(
            law.name == "associativity" and law.status is Status.PROVED
            for law in prove(case.declaration).laws
        )
    ]
    assert len(associative) >= 8
    assert not any(prove(c.declaration).proved for c in zoo.BROKEN)


@pytest.mark.parametrize(
    ("declaration", "bounded", "gauge"),
    [
        (zoo.LogSumExp, True, {"": "free"}),
        (zoo.SoftmaxSum, True, {"out": "free", "lse": "free"}),
        (zoo.SoftmaxEntropy, True, {"entropy": "free", "lse": "free", "max": "no"}),
        (zoo.ShortWelford, None, {"mean": "no", "var": "first order"}),
        (zoo.Moments, None, {"mean": "free", "var": "free"}),
        (zoo.ScaledNorm, True, {"": "free"}),
        (zoo.lse("MinReference", m=zoo.fr.Min(lambda x: x)), False, {"": "free"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_facts(declaration: type, bounded: bool | None, gauge: dict[str, str]) -> None:
    facts = prove(declaration).facts
    assert facts.bounded is bounded
    assert dict(facts.gauge) == gauge


def test_assumptions_are_listed_once_and_readable() -> None:
    assert prove(zoo.ScaledNorm).assumptions == ("k != 0",)
    assert prove(zoo.LogSumExp).assumptions == ()


def test_certificates_are_remembered_and_stable() -> None:
    assert prove(zoo.LogSumExp) is prove(zoo.LogSumExp)
    twin = zoo.lse("LogSumExp", definition=zoo.lse_definition)
    assert prove(twin).hash == prove(zoo.LogSumExp).hash
    assert prove(zoo.lse("LogSumExp")).hash != prove(zoo.LogSumExp).hash
