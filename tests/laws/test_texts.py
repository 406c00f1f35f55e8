"""What a certificate and a refusal say, word for word."""

from __future__ import annotations

import pytest

from fusedreduce.errors import LawViolation
from fusedreduce.laws import prove
from tests.laws import zoo


def test_a_certificate_is_about_five_lines() -> None:
    lines = str(prove(zoo.SoftmaxSum)).splitlines()
    assert lines[:-1] == [
        "SoftmaxSum: proved over the reals, checked at the floating-point edges",
        "  Proved    identity, associativity, faithfulness (s, o), additivity (s, o), unit (s, o), "
        "composition (s, o), absence (s, o), meaning, definition, gradient, empty",
        "  facts     commutative, bounded, gauge-free: out, lse",
        "  guards    neutral:m, old:m, present:o",
    ]
    assert lines[-1].startswith("  hash      ")
    assert len(lines[-1].split()[-1]) == 6


def test_a_refusal_teaches() -> None:
    inverted = next(b.declaration for b in zoo.BROKEN if b.declaration.__name__ == "Inverted")
    with pytest.raises(LawViolation) as refusal:
        prove(inverted).raise_if_refuted()
    lines = str(refusal.value).splitlines()
    assert lines[0] == (
        "Inverted: faithfulness of `s` does not hold: a term moved to a new reference is the term "
        "at the new reference: correct(exp(x - m) at old) = exp(x - m) at new"
    )
    assert lines[1] == "  expected  exp(x - m) at new = 0.0566989"
    assert lines[2] == "  came      exp(x - m) at old, corrected to new = 17.637"
    assert lines[3].startswith("  where     ")
    assert "zoo.py" in lines[3]
    assert lines[4] == (
        "  do        leave `correct` out, or write correct=lambda s, old, new: "
        "s * torch.exp(old.m - new.m)"
    )
    assert lines[5] == "  at        x = 0.03, old.m = 0.03, new.m = 2.9"
    assert lines[6] == "  also      meaning"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Unguarded", ("merge(identity, identity)", "nan", "torch.where(n > 0")),
        ("ProductZero", ("identity does not hold", "fr.state(1.0)")),
        ("KadaneZero", ('fr.state(0.0, float("-inf"), float("-inf"), float("-inf"))',)),
        ("Subtraction", ("change the merge",)),
        ("MinReference", ("absence of `s`", "fr.Max")),
        ("Tiny", ("0.05669892658", "0.05669892642")),
        ("Forgets", ("definition does not hold", "by merging", "by definition", "finish")),
        ("NoCompanion", ("n = fr.Sum(lambda x: 1.0)",)),
        ("NoForm", ("no incremental form", "pole")),
    ],
)
def test_the_parts_of_other_refusals(name: str, parts: tuple[str, ...]) -> None:
    broken = next(b.declaration for b in zoo.BROKEN if b.declaration.__name__ == name)
    with pytest.raises(LawViolation) as refusal:
        prove(broken).raise_if_refuted()
    for part in parts:
        assert part in str(refusal.value)


def test_the_long_form_explains_every_law() -> None:
    text = prove(zoo.welford("Welford", zoo.chan)).explain()
    assert "the merge is addition of n, mean * n, m2 + n * mean ** 2.0; 80 trials agree" in text
    assert "exact for every n, by power sums" in text


def test_the_summary_is_one_line() -> None:
    summary = prove(zoo.LogSumExp).summary
    assert "\n" not in summary
    assert prove(zoo.LogSumExp).hash in summary
