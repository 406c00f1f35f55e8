"""What nobody has shown the engine: verdicts, time, and what a refusal says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusedreduce.errors import LawViolation
from fusedreduce.laws import prove
from fusedreduce.laws.certificate import Certificate
from tests.laws.unseen import FALSE, LAWFUL, OPEN, PROVED, TRUE, Unseen

ROOT = Path(__file__).resolve().parents[2]
GENEROUS_S = 15.0


def name(case: Unseen) -> str:
    return case.name


def verdict(certificate: Certificate) -> str:
    if certificate.proved:
        return PROVED if certificate.meaning_stated else LAWFUL
    return OPEN


@pytest.mark.parametrize("case", TRUE, ids=name)
def test_what_holds(case: Unseen) -> None:
    start = time.perf_counter()
    certificate = prove(case.declaration)
    assert time.perf_counter() - start < GENEROUS_S
    assert not certificate.refuted, certificate.explain()
    assert verdict(certificate) == case.verdict, certificate.explain()


@pytest.mark.parametrize("case", FALSE, ids=name)
def test_what_does_not(case: Unseen) -> None:
    start = time.perf_counter()
    certificate = prove(case.declaration)
    assert time.perf_counter() - start < GENEROUS_S
    assert set(case.verdict) <= {law.name for law in certificate.refuted}, certificate.explain()
    for law in certificate.refuted:
        example = law.counterexample
        if example is not None:
            assert example.left[1] != example.right[1]
            assert example.at or "identity" in example.left[0]


@pytest.mark.parametrize("case", FALSE, ids=name)
def test_the_refusal_teaches(case: Unseen) -> None:
    """The law in words, both sides or what is missing, the user's line, what to change."""
    with pytest.raises(LawViolation) as refusal:
        prove(case.declaration).raise_if_refuted()
    fact, *parts = str(refusal.value).splitlines()
    told = {line.split()[0]: line.split(None, 1)[1] for line in parts}
    assert "does not hold: " in fact
    assert len(fact.partition("does not hold: ")[2]) > 20
    assert re.search(r"(unseen|zoo)\.py:\d+", told["where"])
    assert len(told["do"]) > 15
    if "came" in told:
        assert told["came"].partition(" = ")[2] != told["expected"].partition(" = ")[2]


def test_certificates_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from tests.laws.unseen import TRUE, FALSE; from fusedreduce.laws import prove\n"
        "for u in (*TRUE[::9], *FALSE[::9]): print(prove(u.declaration).explain())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1
