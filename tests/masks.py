"""Masks beside what they mean in plain torch, and brute force over all (b, h, i, j)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedreduce import masks
from fusedreduce.blocks.bound import Bound

B, H = 2, 3
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A mask, and seen(b, h, i, j, Sq, Sk) on index tensors; `exact`: so is its block map."""

    name: str
    mask: Callable[[], masks.Mask]
    seen: Callable[..., Any]
    exact: bool = True
    ranges: str = ""  # of "keys", "queries", "both", or none


def places(Sq: int, Sk: int) -> tuple[Tensor, ...]:
    """Every (b, h, i, j), along four dimensions."""
    b, h = torch.arange(B)[:, None, None, None], torch.arange(H)[:, None, None]
    return b, h, torch.arange(Sq)[:, None], torch.arange(Sk)


def everywhere(seen: Any, Sq: int, Sk: int) -> Tensor:
    return torch.as_tensor(seen).expand(B, H, Sq, Sk)


def blocks_of(seen: Tensor, BQ: int, BK: int) -> Tensor:
    """The true block map of a (B, H, Sq, Sk) predicate."""
    columns = [torch.stack([c.any(-1) + 0, c.all(-1) + 0], -1) for c in seen.split(BK, -1)]
    some, all_ = torch.stack(columns, -2).unbind(-1)
    rows = zip(some.split(BQ, 2), all_.split(BQ, 2), strict=True)
    return torch.stack([s.amax(2) + a.amin(2) for s, a in rows], 2).to(torch.int8)


def bound(mask: masks.Mask, Sq: int, Sk: int, **offsets: int) -> Bound:
    return mask.bind(Sq, Sk, CPU, B=B, H=H, **offsets)


LONGEST = 200
IDS = torch.arange(LONGEST) // 23
SHUFFLED = (torch.arange(LONGEST) * 7919) % 11
OF_BATCH = torch.stack([torch.arange(LONGEST) // 9, torch.arange(LONGEST) // 31])
OFFSETS = torch.tensor([3, 40, 40, 41, 90])  # a gap before, an empty segment, an unused tail
OTHERS = torch.tensor([0, 20, 41, 66, 101])
FLAGS = (torch.arange(LONGEST) * 31) % 3 != 0
TABLE = torch.rand(H, 13, 13, generator=torch.Generator().manual_seed(0)).mul(3).to(torch.int8)
COUNTS = torch.tensor([5, 70])


def segment(x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The number of the segment of each position (-1: none), its start, its length."""
    number, start, length = (torch.full_like(x, v) for v in (-1, 0, 0))
    for k in range(len(offsets) - 1):
        inside = (x >= offsets[k]) & (x < offsets[k + 1])
        number = torch.where(inside, k, number)
        start = torch.where(inside, offsets[k], start)
        length = torch.where(inside, offsets[k + 1] - offsets[k], length)
    return number, start, length


def packed(within: Callable[..., Any], q: Tensor, k: Tensor) -> Callable[..., Tensor]:
    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor, Sq: int, Sk: int) -> Tensor:
        (qn, qs, ql), (kn, ks, kl) = segment(i, q), segment(j, k)
        return (qn == kn) & (qn >= 0) & within(i - qs, j - ks, ql, kl)

    return seen


def by_blocks(b: Tensor, h: Tensor, i: Tensor, j: Tensor, Sq: int, Sk: int) -> Tensor:
    says = TABLE[h, i // 16, j // 16]
    return (says == 2) | ((says == 1) & (i >= j))


CASES = (
    Case("everything", lambda: masks.everything, lambda b, h, i, j, *_: i == i, ranges="both"),
    Case("nothing", lambda: ~masks.everything, lambda b, h, i, j, *_: i != i, ranges="both"),
    Case("causal", lambda: masks.causal, lambda b, h, i, j, *_: i >= j, ranges="both"),
    Case(
        "bottom right", lambda: masks.causal_bottom_right,
        lambda b, h, i, j, Sq, Sk: i >= j + Sq - Sk, ranges="both",
    ),
    Case(
        "window", lambda: masks.window(20, 3),
        lambda b, h, i, j, *_: (j >= i - 20) & (j <= i + 3), ranges="both",
    ),
    Case(
        "moved window", lambda: masks.window(-2, 40),
        lambda b, h, i, j, *_: (j >= i + 2) & (j <= i + 40), ranges="both",
    ),
    Case(
        "half window", lambda: masks.window(9, None), lambda b, h, i, j, *_: i - j <= 9,
        ranges="both",
    ),
    Case(
        "causal window", lambda: masks.causal & masks.window(30, None),
        lambda b, h, i, j, *_: (i >= j) & (i - j <= 30), ranges="both",
    ),
    Case("document", lambda: masks.document(IDS), lambda b, h, i, j, *_: IDS[i] == IDS[j]),
    Case(
        "shuffled", lambda: masks.document(SHUFFLED),
        lambda b, h, i, j, *_: SHUFFLED[i] == SHUFFLED[j],
    ),
    Case(
        "documents of a batch", lambda: masks.document(OF_BATCH) & masks.causal,
        lambda b, h, i, j, *_: (OF_BATCH[b, i] == OF_BATCH[b, j]) & (i >= j),
    ),
    Case(
        "two kinds of ids", lambda: masks.document(OF_BATCH, IDS),
        lambda b, h, i, j, *_: OF_BATCH[b, i] == IDS[j],
    ),
    Case(
        "prefix", lambda: masks.prefix(31), lambda b, h, i, j, *_: (j < 31) | (i >= j),
        ranges="both",
    ),
    Case(
        "prefix of a batch", lambda: masks.prefix(COUNTS),
        lambda b, h, i, j, *_: (j < COUNTS[b]) | (i >= j), ranges="both",
    ),
    Case("packed", lambda: masks.cu_seqlens(OFFSETS), packed(lambda *_: True, OFFSETS, OFFSETS)),
    Case(
        "packed causal", lambda: masks.cu_seqlens(OFFSETS, within=masks.causal),
        packed(lambda i, j, *_: i >= j, OFFSETS, OFFSETS),
    ),
    Case(
        "packed apart",
        lambda: masks.cu_seqlens(OFFSETS, OTHERS, within=masks.causal_bottom_right),
        packed(lambda i, j, nq, nk: i + nk - nq >= j, OFFSETS, OTHERS), exact=False,
    ),
    Case(
        "packed with a table",
        lambda: masks.cu_seqlens(
            OFFSETS, OTHERS, within=masks.mask(lambda b, h, i, j: FLAGS[j] | (i == j))
        ),
        packed(lambda i, j, *_: FLAGS[j] | (i == j), OFFSETS, OTHERS), exact=False,
    ),
    Case(
        "blocks", lambda: masks.blocks(TABLE, 16, 16, masks.causal), by_blocks, exact=False
    ),
    Case(
        "whole blocks", lambda: masks.blocks(TABLE[0] > 0, 16, 16),
        lambda b, h, i, j, *_: TABLE[0, i // 16, j // 16] > 0,
    ),
    Case(
        "dilated", lambda: masks.dilated(9, 3),
        lambda b, h, i, j, *_: ((i - j).abs() <= 27) & ((i - j) % 3 == 0), exact=False,
    ),
    *(
        Case(
            f"neighbourhood {height} x {width}",
            lambda height=height, width=width: masks.neighbourhood_2d(height, width, 2),
            lambda b, h, i, j, *_, width=width, n=height * width: (
                ((i // width - j // width).abs() <= 2)
                & ((i % width - j % width).abs() <= 2)
                & (i < n) & (j < n)
            ),
        )
        for height, width in ((8, 16), (11, 13), (30, 7), (4, 50))
    ),
    Case(
        "a user's", lambda: masks.mask(lambda b, h, q, kv: (q * (h + 1) >= kv) & (kv != b)),
        lambda b, h, i, j, *_: (i * (h + 1) >= j) & (j != b), exact=False,
    ),
    Case(
        "of rows and keys", lambda: masks.mask(lambda b, h, i, j: (i < 9) & (j > 3) & (i + j > 9)),
        lambda b, h, i, j, *_: (i < 9) & (j > 3) & (i + j > 9), exact=False, ranges="both",
    ),
    Case(
        "De Morgan", lambda: ~(masks.window(None, -2) | masks.mask(lambda b, h, i, j: j < 3)),
        lambda b, h, i, j, *_: (j > i - 2) & (j >= 3), exact=False, ranges="both",
    ),
    Case(
        "rows in two pieces", lambda: masks.mask(lambda b, h, i, j: (i < 4) | (i > 12)),
        lambda b, h, i, j, *_: (i < 4) | (i > 12), ranges="keys",
    ),
    Case(
        "a shifted piece", lambda: (masks.causal & masks.document(IDS)).shifted(17, 5),
        lambda b, h, i, j, *_: (i + 17 >= j + 5) & (IDS[i + 17] == IDS[j + 5]),
    ),
)  # fmt: skip
