"""Attention: mixes of options and wrong arguments that failed once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.errors import OptionError


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in shapes]


# ---- sinks, differentiated twice -----------------------------------------------------------------


def test_sinks_differentiated_twice() -> None:
    """The state's adjoints of the second pass depend on the reference at which it is kept."""
    given = doubles((1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 2), (4,), (2,))

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        mask = lambda b, h, i, j: (i != 1) & (j <= i + 1)
        score = lambda s, b, h, i, j: s + bias[j]
        out: Tensor = fr.attention(q, k, v, mask=mask, score_mod=score, sinks=sinks)
        return out

    assert torch.autograd.gradgradcheck(function, given)


def test_sinks_in_a_hessian() -> None:
    q, k, v, sinks = (t.detach() for t in doubles((1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2), (1,)))

    def ours(q: Tensor) -> Tensor:
        total: Tensor = fr.attention(q, k, v, sinks=sinks).square().sum()
        return total

    def plain(q: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(2)
        p = torch.softmax(torch.cat([scores, sinks.expand(1, 1, 2, 1)], -1), -1)
        return (p[..., :-1] @ v).square().sum()

    twice: list[Callable[[Any], Any]] = [
        torch.func.hessian,
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
    ]
    for transform in twice:
        torch.testing.assert_close(transform(ours)(q), transform(plain)(q))


# ---- wrong arguments -----------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "prefix": (lambda: fr.masks.prefix(1.5), "n of prefix.*\n.*int.*\n.*1.5"),
    "prefix of a bool": (lambda: fr.masks.prefix(True), "n of prefix"),
    "dilated": (lambda: fr.masks.dilated("a", 2), "window of dilated.*\n.*\n.*'a'"),
    "neighbourhood": (lambda: fr.masks.neighbourhood_2d(2, None, 1), "width of neighbourhood_2d"),
    "within": (
        lambda: fr.masks.cu_seqlens(torch.tensor([0, 3]), within=lambda b, h, i, j: i >= j),
        "within=.*\n.*fr.mask\\(function\\)",
    ),
    "aux": (lambda: fr.attention(*torch.zeros(3, 1, 1, 2, 4), aux=3), "aux=.*\n.*lse.*\n.*3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    """Each says which argument, what was expected and what came."""
    act, said = WRONG[name]
    with pytest.raises(OptionError, match=said):
        act()
