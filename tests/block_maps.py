"""Masks for block maps, by name, and calls with them; which of them have a printed map."""

from __future__ import annotations

from typing import Any

import torch

import fusedreduce as fr
from fusedreduce.api.explain import noted
from fusedreduce.report.pairs import Report
from fusedreduce.report.target import target_of

LENGTHS = ((300, 300), (130, 1100), (64, 64), (1, 257))


def documents(length: int, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Ascending ids with gaps, some negative."""
    steps = torch.randint(0, 40, (length,), generator=torch.Generator().manual_seed(1)) // 37
    return (steps.cumsum(0) * 3 - 10).to(device=device, dtype=dtype)


def shuffled(shape: tuple[int, ...], device: torch.device, top: int) -> torch.Tensor:
    made = torch.randint(-3, top, shape, generator=torch.Generator().manual_seed(2))
    return made.to(device)


def mask_of(name: str, Sq: int, Sk: int, device: torch.device) -> Any:
    ids = documents(max(Sq, Sk), device)
    short = documents(max(Sq, Sk), device, torch.int32)
    few, per_batch = shuffled((max(Sq, Sk),), device, 5), shuffled((2, max(Sq, Sk)), device, 40)
    kept = shuffled((2, Sk), device, 3) > -2
    limit = shuffled((2,), device, Sk)
    weight = torch.linspace(-1, 1, max(Sq, Sk), device=device)
    table = {
        "causal": fr.masks.causal,
        "documents": lambda b, h, i, j: ids[i] == ids[j],
        "int32 documents": lambda b, h, i, j: short[i] == short[j],
        "documents and causal": lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j),
        "documents in a window": lambda b, h, i, j: (ids[i] == ids[j]) & ((i - j) <= 50) & (i >= j),
        "other documents": lambda b, h, i, j: ids[i] != ids[j],
        "few kinds in any order": lambda b, h, i, j: few[i] == few[j],
        "documents of a batch": lambda b, h, i, j: per_batch[b, i] == per_batch[b, j],
        "keys that are there": lambda b, h, i, j: kept[b, j],
        "keys that are there, causal": lambda b, h, i, j: kept[b, j] & (i >= j),
        "a prefix a batch, or causal": lambda b, h, i, j: (j < limit[b]) | (i >= j),
        "a prefix a head": lambda b, h, i, j: (j < limit[h] + 1) | (ids[i] > ids[j]),
        "a second limit a batch": lambda b, h, i, j: (j < per_batch[b, 1]) | (ids[i] > ids[j]),
        "not before": lambda b, h, i, j: ~(ids[i] < ids[j] + 2),
        "no query": lambda b, h, i, j: (ids[i] > 10**6) & (i >= j),
        "every second query": lambda b, h, i, j: (i % 2 == 0) & (few[j] > 0),
        "packed sequences": fr.masks.cu_seqlens(
            torch.tensor([0, Sq // 3, Sq // 2, Sq], device=device),
            torch.tensor([0, Sk // 2, Sk // 2, Sk - 1], device=device),
        ),
        "floats": lambda b, h, i, j: weight[i] > weight[j],
        "neighbours": lambda b, h, i, j: ((i // 8 - j // 8).abs() <= 2) & (few[j] > 0),
    }  # fmt: skip
    return table[name]


MASKS = (
    "causal", "documents", "int32 documents", "documents and causal", "documents in a window",
    "other documents", "few kinds in any order", "documents of a batch", "keys that are there",
    "keys that are there, causal", "a prefix a batch, or causal", "a prefix a head",
    "a second limit a batch", "not before", "no query", "every second query", "packed sequences",
    "floats", "neighbours",
)  # fmt: skip
PRINTED = frozenset(MASKS) - {"floats", "neighbours"}


def prepared(name: str, Sq: int, Sk: int, device: torch.device, **offsets: int) -> Report:
    """A call of two batches and two heads with a mask."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, s, 16, device=device) for s in (Sq, Sk, Sk))
    (call,) = noted(fr.attention, q, k, v, mask=mask_of(name, Sq, Sk, device), **offsets)
    return Report(call, target_of(call.values, None))
