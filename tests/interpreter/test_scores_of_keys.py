"""Scores that vary with the key alone, without reading a score or a table by key."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusedreduce as fr

MASKS: dict[str, Any] = {
    "none": None,
    "causal": fr.masks.causal,
    "listed": lambda b, h, i, j: (i % 3 == 0) | (j % 2 == 0),
}


@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("mask", MASKS)
def test_values(mask: str, length: int) -> None:
    """One block that the end cuts off, and whole blocks beside it."""
    q, k, v = torch.randn(1, 1, length, 4), torch.randn(1, 1, 70, 4), torch.randn(1, 1, 70, 4)
    near = fr.score(lambda s, b, h, i, j: torch.where(j < 2, 1.0, 0.5))
    got, right = (
        fr.attention(q, k, v, score_mod=near, mask=MASKS[mask], impl=impl)
        for impl in ("triton", "eager")
    )
    torch.testing.assert_close(got, right)


def test_heads_as_rows() -> None:
    """Where i is 0, a comparison with j is one of j alone."""
    q, k = torch.randn(1, 3, 1, 4), torch.randn(1, 1, 5, 4)
    base, seen = torch.randn(2), torch.tensor([True, False, True])
    scored = fr.score(lambda s, b, h, i, j: torch.where(i >= j, base[0], base[1]))
    mask = fr.mask(lambda b, h, i, j: seen[h] & (i >= j))
    got, right = (
        fr.attention(q, k, k, score_mod=scored, mask=mask, enable_gqa=True, impl=impl)
        for impl in ("triton", "eager")
    )
    torch.testing.assert_close(got, right)
