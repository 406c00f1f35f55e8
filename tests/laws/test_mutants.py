"""Every mutant is refused, or is the same declaration: the survivors, each with the reason.

`make test` judges one mutant of each declaration, `make test-all` up to MOST of each; they are
spread evenly over its parts. Survivors must agree with the original at 40 digits and stand in the
table below. One that is proved and differs would be a hole in the proofs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fusedreduce as fr
from fusedreduce import reductions
from fusedreduce.laws.certificate import Status
from tests.laws import library, zoo
from tests.laws.mutants import Mutant, agrees, lonely, mutants, verdict

MOST = 16

ROUNDING = "over the reals this holds 0, what rounding left: factors and signs do not matter"
REFERENCE = "the sums are exact at every reference, so this one may be another"
SQUARED = "squared afterwards: the sign does not matter"
CANCELS = "a common factor of all counts cancels"
WHOLE = "n is a whole number, and at least 2 where two states meet"
SHIFT = "log(exp(a - s) + exp(b - s)) + s is the same for every s"
FINITE = "over the reals no element is infinite or NaN"
GUARD = "this value stands only where the other factor is 0"
UNSTATED = "a lawful merge: nobody stated what it computes"

SURVIVORS = {
    ("CompensatedSum", "merge lost"): ROUNDING,
    ("CompensatedSum", "finish"): ROUNDING,
    **dict.fromkeys(
        [("LossStatistics", f"{part} {f}")
         for part, names in (("lift", ("nonfinite", "total", "largest", "n")),
                             ("merge", ("nonfinite",)), ("finish", ("mean",)))
         for f in names], FINITE),
    ("WeightedLogSumExp", "term m"): REFERENCE,
    ("CrossEntropy", "term c"): REFERENCE,
    ("CrossEntropy", "term q"): GUARD,
    ("CrossEntropy", "term e"): GUARD,
    ("WeightedWelford", "lift m2"): ROUNDING,
    ("WeightedWelford", "merge m2"): SQUARED,
    ("WeightedWelford", "merge mean"): GUARD,
    ("TwoNorm", "merge q"): GUARD,
    ("ThreeNorm", "merge q"): GUARD,
    ("MaxAndSum", "finish s"): ROUNDING,
    **dict.fromkeys(
        [(n, f"{part} {f}") for n in ("Moments", "Summary", "WeightedMoments", "HigherMoments")
         for part in ("correct", "term") for f in ("e1", "e2", "e3", "e4")], ROUNDING),
    **dict.fromkeys(
        [(n, f"{part} {f}") for n in ("Covariance", "Correlation")
         for part in ("correct", "term") for f in ("ex", "ey", "exy", "exx", "eyy")], ROUNDING),
    **dict.fromkeys(
        [(n, f"finish {f}".rstrip())
         for n in ("Moments", "Summary", "WeightedMoments", "HigherMoments", "Covariance",
                   "Correlation", "SoftmaxVariance")
         for f in ("", "mean", "var", "skewness", "kurtosis")], ROUNDING),
    **dict.fromkeys(
        [(n, f"term {f}") for n in ("Moments", "Summary", "WeightedMoments", "HigherMoments",
                                    "Covariance", "Correlation")
         for f in ("mean", "mx", "my")], REFERENCE),
    **dict.fromkeys(
        [(n, f"{part} {f}")
         for n, f in (("CosineSimilarity", "qx"), ("CosineSimilarity", "qy"),
                      ("EuclideanNorm", "q"), ("ScaledNorm", "q"), ("LongWelford", "m2"),
                      ("ShortWelford", "m2"),
                      ("Joined", "m2"), ("PNorm", "q"))
         for part in ("correct", "term")], SQUARED),
    **dict.fromkeys([("Pebay", f"merge m{k}") for k in (2, 4)], SQUARED),
    ("Pebay", "merge mean"): WHOLE,
    ("Pebay", "merge m3"): WHOLE,
    ("Welford", "lift n"): CANCELS,
    ("WeightedWelford", "lift n"): CANCELS,
    ("Welford", "merge mean"): WHOLE,
    ("Welford", "merge m2"): WHOLE,
    ("LogAddExp", "merge l"): SHIFT,
    **dict.fromkeys([("ArgMaxByPlace", f"merge {f}") for f in ("v", "at")], UNSTATED),
    **dict.fromkeys([("ComplexProduct", f"merge {f}") for f in ("re", "im")], UNSTATED),
}  # fmt: skip


def declarations() -> Iterator[type[fr.Reduction]]:
    """What is shipped, with its definitions, and what holds in the zoo; each name once."""
    shipped = [library.stated(getattr(reductions, n)) for n in reductions.__all__]
    known = {R.__name__ for R in shipped}
    yield from shipped
    yield from (
        case.declaration
        for case in zoo.HOLD
        if case.declaration.__name__ not in known and not case.declaration.parts
    )


def sample(R: type[fr.Reduction], most: int) -> list[Mutant]:
    """Evenly spread, the same every time."""
    every = list(mutants(R.record))
    step = max(1, len(every) // most)
    return every[len(every) // (2 * most) :: step][:most]


def judge(some: list[Mutant]) -> None:
    for mutant in some:
        found = verdict(mutant)
        if found is Status.REFUTED:
            continue
        assert (mutant.original.name, mutant.part) in SURVIVORS, f"{mutant.name} is {found}"
        proved_of_nothing = found is Status.PROVED and lonely(mutant)
        assert agrees(mutant) or proved_of_nothing, f"{mutant.name} is {found}, and differs"


EVERY = list(declarations())


@pytest.mark.parametrize("R", EVERY, ids=lambda R: R.__name__)
def test_one_mutant_of_each(R: type[fr.Reduction]) -> None:
    judge(sample(R, 1))


@pytest.mark.slow
@pytest.mark.parametrize("R", EVERY, ids=lambda R: R.__name__)
def test_mutants(R: type[fr.Reduction]) -> None:
    judge(sample(R, MOST))


def test_there_are_enough_of_them() -> None:
    assert sum(len(sample(R, MOST)) for R in EVERY) >= 500
