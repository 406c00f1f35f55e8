"""Random bits of a seed and four counters: Philox 4x32-10, in integers of any library.

Given    a key of 64 bits and four counters of 32
Claim    ten rounds mix them into four words of 32 bits that pass every known test of randomness
Use      dropout: a pair's bits are a function of its position, so every tile makes its own.
Source   Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

Arguments are Python integers, or int64 arrays or tensors that broadcast: a product of two words
wraps around in int64, and all 64 bits of it are right.
"""

from __future__ import annotations

from typing import Any

ROUNDS = 10
WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
STEPS = 0x9E3779B9, 0xBB67AE85  # of the key, from round to round
CHOICE = 8  # the bit of the first and third counter that chooses a word
BITS = 24  # of a result: as many as float32 holds


def philox(key: Any, counters: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Four words of 32 bits.

    >>> [hex(word) for word in philox(0, (0, 0, 0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    low, high = key & WORD, key >> 32 & WORD
    a, b, c, d = (counter & WORD for counter in counters)
    for _ in range(ROUNDS):
        first, third = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = third >> 32 & WORD ^ b ^ low, third & WORD
        c, d = first >> 32 & WORD ^ d ^ high, first & WORD
        low, high = low + STEPS[0] & WORD, high + STEPS[1] & WORD
    return a, b, c, d


def random(key: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """24 random bits, an integer in [0, 2^24).

    Four positions share one run of the rounds: those whose c0 and c2 differ in bit 3 alone. On the
    tensor cores of NVIDIA one thread holds all four of them, whether c0 is a row or a column.
    """
    words = philox(key, (c0 & ~CHOICE, c1, c2 & ~CHOICE, c3))
    by_c0 = c0 >> 3 & 1
    by_c2 = c2 >> 3 & 1
    even, odd = _chosen(by_c0, *words[:2]), _chosen(by_c0, *words[2:])
    return _chosen(by_c2, even, odd) >> 32 - BITS


def _chosen(bit: Any, no: Any, yes: Any) -> Any:
    """no where the bit is 0, yes where it is 1."""
    return no ^ (no ^ yes) & -bit
