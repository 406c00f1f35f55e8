"""Philox 4x32-10 against its published vectors and against numpy; what `random` makes of it."""

from __future__ import annotations

import random as python_random

import numpy as np
import pytest
import torch

from fusedreduce.ir.philox import philox, random

ONES = 0xFFFFFFFF
#: (key, counters, words) of Random123's kat_vectors.
KNOWN = (
    (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (2**64 - 1, (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        0x299F31D0A4093822,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def by_numpy(key: int, counters: tuple[int, ...]) -> tuple[int, ...]:
    """The rounds in unsigned arithmetic of numpy, written anew."""
    c = [np.uint64(x & ONES) for x in counters]
    k = [key & ONES, key >> 32 & ONES]
    low, half = np.uint64(ONES), np.uint64(32)
    for _ in range(10):
        p = np.uint64(0xD2511F53) * c[0]
        r = np.uint64(0xCD9E8D57) * c[2]
        c = [(r >> half) ^ c[1] ^ np.uint64(k[0]), r & low,
             (p >> half) ^ c[3] ^ np.uint64(k[1]), p & low]  # fmt: skip
        k = [(k[0] + 0x9E3779B9) & ONES, (k[1] + 0xBB67AE85) & ONES]
    return tuple(int(x) for x in c)


@pytest.mark.parametrize(("key", "counters", "words"), KNOWN)
def test_known_answers(key: int, counters: tuple[int, ...], words: tuple[int, ...]) -> None:
    assert philox(key, counters) == words == by_numpy(key, counters)  # type: ignore[arg-type]
    signed = torch.tensor(key - 2**64 if key >= 2**63 else key)
    made = philox(signed, tuple(map(torch.tensor, counters)))  # type: ignore[arg-type]
    assert tuple(int(w) for w in made) == words


def test_tensors_and_numbers_agree_with_numpy() -> None:
    draw = python_random.Random(0)
    for _ in range(50):
        key = draw.randrange(-(2**63), 2**63)
        at = [draw.randrange(2**32) for _ in range(4)]
        words = by_numpy(key % 2**64, (at[0] & ~8, at[1], at[2] & ~8, at[3]))
        right = words[(at[0] >> 3 & 1) + 2 * (at[2] >> 3 & 1)] >> 8
        assert random(key, *at) == right
        assert int(random(torch.tensor(key), *map(torch.tensor, at))) == right


def test_bits_are_uniform_and_independent() -> None:
    """Of neighbours in every direction, and of those that share the rounds."""
    n = 256
    i, j = torch.arange(n)[:, None], torch.arange(n)
    made = [random(torch.tensor(s), i, torch.tensor(h), j, torch.tensor(b)).double() / 2**24 - 0.5
            for s, h, b in ((5, 0, 0), (6, 0, 0), (5, 1, 0), (5, 0, 1))]  # fmt: skip
    limit = 5 / n  # five standard deviations
    for x in made:
        assert abs(x.mean()) < limit / 12**0.5
        assert abs(x.var() * 12 - 1) < limit
        counts = torch.histc(x, 64, -0.5, 0.5)
        assert ((counts - n * n / 64) ** 2 / (n * n / 64)).sum() < 63 + 5 * 126**0.5
    x = made[0]
    for other in (*made[1:], x.T, x.roll(1, 0), x.roll(1, 1), x.roll(8, 0), x.roll(8, 1),
                  x.roll((8, 8), (0, 1)), x.roll(128, 1)):  # fmt: skip
        assert abs((x * other).mean() * 12) < limit
