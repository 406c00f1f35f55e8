"""Facts about sizes: bounded from above, and sums that may underflow although elements count."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce import reductions
from fusedreduce.errors import ProofWarning
from fusedreduce.laws import prove


class Weightless(fr.Reduction):
    """An element of weight 0 may be the maximum: what counts may then lie far below it."""

    domain = {"w": "nonnegative"}
    m = fr.Max(lambda x: x)
    s = fr.Sum(lambda x, w, m: w * torch.exp(x - m))

    def finish(m, s):
        return m + torch.log(s)


class Positive(Weightless):
    domain = {"w": "positive"}


class Without(Weightless):
    """Weightless elements are absent, as in what is shipped."""

    m = fr.Max(lambda x, w: torch.where(w == 0, float("-inf"), x))


class Plain(Weightless):
    """The sum itself may be 0: nothing is lost that the result would show."""

    def finish(m, s):
        return {"m": m, "s": s}


def test_a_weightless_reference_is_bounded_and_underflows() -> None:
    facts = prove(Weightless).facts
    assert (facts.bounded, facts.underflows) == (True, ("s",))
    assert "bounded, may underflow: s" in ", ".join(facts.lines())
    x, w = torch.tensor([1000.0, 0.0]), torch.tensor([0.0, 1.0])
    with pytest.warns(ProofWarning, match="s may underflow"):
        got = fr.reduce(Weightless, x, w=w)
    assert got == float("-inf")  # log 1 = 0 is what it should be
    assert fr.reduce(Without, x, w=w) == 0.0


@pytest.mark.parametrize("R", [Positive, Without, Plain])
def test_where_nothing_underflows(R: type) -> None:
    facts = prove(R).facts
    assert facts.bounded is not False
    assert facts.underflows == ()


@pytest.mark.parametrize("name", reductions.__all__)
def test_what_is_shipped_does_not_underflow(name: str) -> None:
    assert prove(getattr(reductions, name)).facts.underflows == ()
