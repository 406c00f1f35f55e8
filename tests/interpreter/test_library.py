"""Every shipped reduction prints by both strategies and runs in the interpreter."""

from __future__ import annotations

import pytest
import torch

from tests import printing
from tests.cases import check
from tests.library import MEANINGS, operands

SMOKE = ("EuclideanNorm", "MaxSubarray")
CASES = [
    pytest.param(R, strategy, marks=pytest.mark.smoke if R.__name__ in SMOKE else ())
    for R in MEANINGS
    for strategy in printing.STRATEGIES
]


@pytest.mark.parametrize(("R", "strategy"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_printed(R: type, strategy: str) -> None:
    meaning = MEANINGS[R]
    rows = "positive" if "positive" in meaning.rows else "random"
    given = operands(rows, meaning.operands, torch.float32)
    given = {n: t[:2, :13].contiguous() for n, t in given.items()}
    wanted = meaning.formula(*(t.double() for t in given.values()))
    plain = meaning.formula(*given.values())
    results = printing.run(*printing.reduced(R, given), strategy)
    for output, right in wanted.items():
        check(results[output], right, plain[output], torch.float32, 2.0, f"{R.__name__} {output}")
