"""Scores that read learned tensors, by what their indices vary with; for every room."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fusedreduce.reductions import SoftmaxSum
from tests import pairs
from tests.pairs import MASK_TABLES, MASKS, Case, Sizes, random

Made = tuple[Callable[[Any], Any], Mapping[str, Callable[[Sizes], torch.Tensor]]]


def ids(n: Callable[[Sizes], int]) -> Callable[[Sizes], torch.Tensor]:
    """A document for each position of each batch."""
    return lambda z: torch.randint(4, (z.B, n(z)))


#: Sums over the queries: nothing varies with i.
BY_KEY: dict[str, Made] = {
    "bias of keys": (lambda t: lambda s, b, h, i, j: s + t.bias[b, h, j],
                     {"bias": lambda z: random(z.B, z.H, z.Sk)}),
    "gain of keys": (lambda t: lambda s, b, h, i, j: s * t.gain[j],
                     {"gain": lambda z: random(z.Sk)}),
    "bias of documents": (lambda t: lambda s, b, h, i, j: s + t.bias[t.of_k[b, j], h],
                          {"bias": lambda z: random(4, z.H), "of_k": ids(lambda z: z.Sk)}),
    "every third key": (lambda t: lambda s, b, h, i, j: s + t.bias[h, j // 3 % 5] * i,
                        {"bias": lambda z: 0.1 * random(z.H, 5)}),
}  # fmt: skip
#: Sums over the keys: nothing varies with j.
BY_QUERY: dict[str, Made] = {
    "slopes": (lambda t: lambda s, b, h, i, j: s - t.slopes[h] * torch.abs(i - j),
               {"slopes": lambda z: 0.1 * random(z.H)}),
    "temperature": (lambda t: lambda s, b, h, i, j: s * t.gain[0],
                    {"gain": lambda z: random(1)}),
    "soft caps": (lambda t: lambda s, b, h, i, j: t.cap[b, h] * torch.tanh(s / t.cap[b, h]),
                  {"cap": lambda z: pairs.positive(z.B, z.H)}),
    "gain of rows": (lambda t: lambda s, b, h, i, j: s * t.gain[b, h, i],
                     {"gain": lambda z: random(z.B, z.H, z.Sq)}),
    "from the end": (lambda t: lambda s, b, h, i, j: s * t.gain[i // 2 - 3],
                     {"gain": lambda z: random(z.Sq + 3)}),
}  # fmt: skip
#: Several at a time: two reads of one table, and tables of both kinds.
BOTH: dict[str, Made] = {
    "keys and queries": (lambda t: lambda s, b, h, i, j: s + t.of[h, i] * t.of[h, j],
                         {"of": lambda z: random(z.H, max(z.Sq, z.Sk))}),
    "three": (lambda t: lambda s, b, h, i, j: s * t.gain[b, j] + t.slopes[h] * (j - i) + t.row[i],
              {"gain": lambda z: random(z.B, z.Sk), "slopes": lambda z: 0.1 * random(z.H),
               "row": lambda z: random(z.Sq)}),
}  # fmt: skip
#: Sums over batch and heads: i and j are read apart.
BY_PAIR: dict[str, Made] = {
    "bias": (lambda t: lambda s, b, h, i, j: s + t.bias[i, j],
             {"bias": lambda z: random(z.Sq, z.Sk)}),
    "bias of heads": (lambda t: lambda s, b, h, i, j: s + t.bias[0, h, i, j],
                      {"bias": lambda z: random(1, z.H, z.Sq, z.Sk)}),
    "bias of batches": (lambda t: lambda s, b, h, i, j: s + t.bias[j, b, i],
                        {"bias": lambda z: random(z.Sk, z.B, z.Sq)}),
    "bias of all": (lambda t: lambda s, b, h, i, j: s * t.bias[b, h, i, j],
                    {"bias": lambda z: random(z.B, z.H, z.Sq, z.Sk)}),
    "part of a bias": (lambda t: lambda s, b, h, i, j: s + t.bias[1, i, j],
                       {"bias": lambda z: random(2, z.Sq + 3, z.Sk + 1)}),
    "two biases": (lambda t: lambda s, b, h, i, j: s + t.bias[h, i, j] * t.of[b, i, j],
                   {"bias": lambda z: random(z.H, z.Sq, z.Sk),
                    "of": lambda z: random(z.B, z.Sq, z.Sk)}),
    "both ways": (lambda t: lambda s, b, h, i, j: s + t.bias[i, j] - t.bias[j, i],
                  {"bias": lambda z: random(max(z.Sq, z.Sk), max(z.Sq, z.Sk))}),
    "buckets of pairs": (lambda t: lambda s, b, h, i, j: s + t.bias[t.bucket[i, j], h],
                         {"bias": lambda z: random(9, z.H),
                          "bucket": lambda z: torch.randint(9, (z.Sq, z.Sk))}),
}  # fmt: skip
#: Sums along diagonals: i and j are read as i - j.
BY_DISTANCE: dict[str, Made] = {
    "relative": (lambda t: lambda s, b, h, i, j: s + t.bias[h, i - j],
                 {"bias": lambda z: random(z.H, z.Sq + z.Sk)}),
    "far is far": (lambda t: lambda s, b, h, i, j: s + t.bias[torch.clamp(j - i, -5, 4) + 5],
                   {"bias": lambda z: random(10)}),
    "gain by distance": (
        lambda t: lambda s, b, h, i, j: s * t.gain[torch.where(i < j, 0, (i - j) // 4), b, h],
        {"gain": lambda z: random(z.Sq, z.B, z.H)},
    ),
}  # fmt: skip
SCORES = BY_KEY | BY_QUERY | BOTH | BY_PAIR | BY_DISTANCE


def case_of(score: str, mask: str | None, R: Any = SoftmaxSum, outputs: Any = ("out",)) -> Case:
    fn, tables = SCORES[score]
    more = MASK_TABLES.get(mask or "", {})
    made = Case(f"{R.__name__}, {score}, {mask}", R, outputs, fn, None, {**tables, **more})
    return made if mask is None else replace(made, mask=MASKS[mask])
