"""The floating-point grid: which selects of the edge rule a declaration needs; numpy's only door.

Given    streams over the grid {-huge, -1000, -1, 0, subnormal, 1, 1000, huge, -inf, +inf, NaN}, the
         values of every operand, payloads too, in float32 and float64
Claim    without a select that is not chosen, every output stays what the full rule gives: equal
         within rounding, the same infinity, or not a number where it was none
Use      a select costs issue slots in every kernel; only those the grid asks for are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fusedreduce.declare.record import Record
from fusedreduce.ir.evaluate import Dialect, dialect
from fusedreduce.laws.streams import Array, Runner, Streams, every_guard

STREAMS, TILES, ELEMENTS = 1536, 3, 3
TYPES = (np.float32, np.float64)
_HUGE = {np.float32: 3e38, np.float64: 1.5e308}
_TINY = {np.float32: 1e-40, np.float64: 1e-320}
_ROUNDING = {np.float32: 1e-4, np.float64: 1e-10}
_PALETTES = (1, 1, 2, 2, 3, 16)  # how many values of the grid one stream mixes


@lru_cache(maxsize=1024)
def choose_guards(record: Record) -> frozenset[str]:
    """The smallest set of selects, found by leaving them out one after another, the dearest first.

    Names: "neutral:<ref>", "old:<ref>", "present:<field>", "nan:<field>". Every sum that reads a
    reference must have its correction (see `complete`). A general form has no guards.
    """
    if record.form == "general":
        return frozenset()
    guards = every_guard(record)
    kept = frozenset(guards)
    if not kept:
        return kept
    with np.errstate(all="ignore"):
        trials = [_Trial(record, kind) for kind in TYPES]
        for guard in guards:
            fewer = kept - {guard}
            if all(t.agrees(fewer, exactly_nan=guard.startswith("nan:")) for t in trials):
                kept = fewer
    return kept


class _Trial:
    """One type: its streams and what the full rule makes of them."""

    def __init__(self, record: Record, kind: Any) -> None:
        self.record = record
        self.kind = kind
        self.streams = streams(record, kind)
        self.expected = self.run(frozenset(every_guard(record)))

    def run(self, guards: frozenset[str]) -> dict[str, Array]:
        return Runner(np, self.record, guards, NUMPY[self.kind], self.kind).run(self.streams)

    def agrees(self, guards: frozenset[str], *, exactly_nan: bool) -> bool:
        found = self.run(guards)
        return all(
            bool(np.all(_same(found[n], e, _ROUNDING[self.kind], exactly_nan)))
            for n, e in self.expected.items()
        )


def _same(found: Array, expected: Array, rounding: float, exactly_nan: bool) -> Array:
    """Equal within rounding, the same infinity, or both without a value."""
    if np.asarray(expected).dtype.kind != "f":
        return found == expected
    size = 1 + np.abs(expected)
    near = np.abs(found - expected) <= rounding * np.where(np.isfinite(size), size, 0)
    lost = np.isnan(found) if exactly_nan else ~np.isfinite(found)
    return near | (found == expected) | (np.isnan(expected) & lost)


def _numpy(kind: Any) -> Dialect:
    return dialect("numpy", {"np": np}, dtype=kind)


NUMPY: Mapping[Any, Dialect] = {kind: _numpy(kind) for kind in TYPES}


def streams(record: Record, kind: Any, count: int = STREAMS) -> Streams:
    """Random streams over the grid, with a fixed seed; many mix only one or two values."""
    source = np.random.default_rng(0)
    shape = (count, TILES, ELEMENTS)
    domain = dict(record.domain)
    operands = {
        n: _drawn(source, grid(domain.get(n, "real"), kind), shape)
        for n in (*record.operands, *record.payloads)
    }
    operands["j"] = np.broadcast_to(
        np.arange(TILES * ELEMENTS, dtype=np.int64).reshape(1, TILES, ELEMENTS), shape
    )
    lengths = source.integers(0, ELEMENTS + 1, size=(count, TILES))
    lengths[: count // 4, 1:] = 0  # a quarter are single tiles
    inside = np.arange(ELEMENTS)[None, None, :] < lengths[:, :, None]
    scattered = source.random(shape) < 0.7  # masks leave holes
    inside = np.where((np.arange(count) % 3 == 0)[:, None, None], inside & scattered, inside)
    return Streams(operands, inside)


def grid(domain: str, kind: Any) -> Array:
    """The values an operand is tried at."""
    if domain == "bool":
        return np.array([False, True])
    if domain in ("int", "index"):
        low = -2 if domain == "int" else 0
        return np.arange(low, 4, dtype=np.int64)
    huge, tiny = _HUGE[kind], _TINY[kind]
    values = [-huge, -1000.0, -1.0, 0.0, tiny, 1.0, 1000.0, huge, -np.inf, np.inf, np.nan]
    if domain != "real":
        values = [v for v in values if not v < 0 and (v != 0 or domain == "nonnegative")]
    return np.array(values, dtype=kind)


def _drawn(source: Any, values: Array, shape: tuple[int, ...]) -> Array:
    """Each stream draws from a palette of its own."""
    count = shape[0]
    palette = source.integers(0, len(values), size=(count, max(_PALETTES)))
    width = source.choice(np.array(_PALETTES), size=(count, 1, 1))
    pick = source.integers(0, max(_PALETTES), size=shape) % width
    return values[np.take_along_axis(palette, pick.reshape(count, -1), axis=1).reshape(shape)]
