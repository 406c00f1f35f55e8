"""Packed sequences without any, and calls whose positions and offsets move."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce import pair_arguments
from fusedreduce.blocks import segments
from tests.attention import plain


def heads(Sq: int, Sk: int) -> list[Tensor]:
    return [torch.randn(1, 2, s, 8, dtype=torch.float64) for s in (Sq, Sk, Sk)]


def seen(mask: fr.masks.Mask, Sq: int, Sk: int, q_offset: int = 0) -> Tensor:
    i, j = torch.arange(Sq)[:, None] + q_offset, torch.arange(Sk)
    return mask.evaluate(0, 0, i, j, Sq + q_offset, Sk)


@pytest.mark.parametrize("offsets", [torch.tensor([3]), torch.tensor([3], dtype=torch.int32)])
def test_no_segment(offsets: Tensor) -> None:
    assert segments.query_ids(offsets, 5).tolist() == [-1] * 5
    assert segments.key_ids(offsets, 5).tolist() == [-2] * 5
    for table in (segments.starts, segments.lengths):
        made = table(offsets, offsets, 5)
        assert (made.tolist(), made.dtype) == ([0] * 5, torch.int32)
    mask = fr.masks.cu_seqlens(offsets, within=fr.masks.causal_bottom_right)
    assert not fr.attention(*heads(5, 5), mask=mask).any()


def test_positions_that_move_on() -> None:
    """More of them than are remembered, each twice: by what the offsets hold then."""
    q, k, v = heads(2, 100)
    offsets = torch.tensor([0, 30, 55, 100])
    mask = fr.masks.cu_seqlens(offsets, within=fr.masks.causal)
    for step in range(2):
        offsets[1] -= 7 * step
        for at in range(pair_arguments.MOST_OFFSETS + 9):
            out = fr.attention(q, k, v, mask=mask, q_offset=at)
            assert torch.allclose(out, plain(q, k, v, seen(mask, 2, 100, at))["out"])


def test_a_packed_mask_in_a_score_beside_one_in_the_mask() -> None:
    q, k, v = heads(20, 20)
    a, b, bias = torch.tensor([0, 8, 20]), torch.tensor([0, 5, 20]), torch.randn(20).double()
    inside = fr.masks.cu_seqlens(a, within=fr.masks.causal)
    score = fr.score(lambda s, b, h, i, j: torch.where(inside(b, h, i, j), s + bias[j], s))
    mask = fr.masks.cu_seqlens(b) & fr.masks.document(torch.arange(20) % 2)
    for step in range(4):
        a[1] += step
        b[1] += step
        out = fr.attention(q, k, v, mask=mask, score_mod=score)
        right = plain(
            q, k, v, seen(mask, 20, 20), lambda s: torch.where(seen(inside, 20, 20), s + bias, s)
        )
        assert torch.allclose(out, right["out"])
