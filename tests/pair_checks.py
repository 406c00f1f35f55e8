"""Pair reductions by a backend, beside their meaning: results and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fusedreduce.api.pairwise import runner_for, runner_of
from fusedreduce.gradient import NoBackward
from fusedreduce.gradient.pairs import PairBackward, backward
from fusedreduce.pair import Pair
from fusedreduce.plan import pairs as plans
from fusedreduce.run import pair_gradients, pair_printed, pair_tiles, tiles
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_rows import RowValues
from tests import pairs, printing
from tests.accuracy import require_near
from tests.pairs import Arguments, Case, Tensors

WIDE = (torch.float64, torch.float32)
Ups = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class Backend:
    """Who runs pairs: forward(pair, inputs, tile), the gradients, row programs."""

    forward: Callable[..., Tensors]
    backward: Callable[..., Tensors]
    rows: Callable[..., Sequence[Tensor]]


def in_tiles(
    b: PairBackward, inputs: PairInputs, vectors: Ups, rows: Tensors, wanted: Sequence[str],
    tile: Any,
) -> Tensors:  # fmt: skip
    return pair_gradients.backward(b, inputs, vectors, rows, wanted, tile)


def printed_forward(pair: Pair, inputs: PairInputs, tile: Any) -> Tensors:
    with printing.poisoned():
        return pair_printed.Forward(pair, tile)(inputs)


def printed_backward(
    b: PairBackward, inputs: PairInputs, vectors: Ups, rows: Tensors, wanted: Sequence[str],
    tile: Any,
) -> Tensors:  # fmt: skip
    every = None if tile is None else dict.fromkeys(("keys", "queries", "tables"), tile)
    with printing.poisoned():
        return pair_printed.Backward(b, wanted, every)(inputs, vectors, rows)


@contextmanager
def split_keys(n: int) -> Iterator[None]:
    """Printed forwards split their keys in n; what was prepared otherwise is forgotten."""
    with patch.object(plans, "splits", lambda *given: n):
        forget()
        try:
            yield
        finally:
            forget()


def forget() -> None:
    runner_for.cache_clear()
    runner_of.cache_clear()


TILES = Backend(pair_tiles.forward, in_tiles, tiles.run)
PRINTED = Backend(printed_forward, printed_backward, pair_printed.rows_by_kernel)


def results(case: Case, a: Arguments, tile: Any = None, by: Backend = TILES) -> Tensors:
    pair = pairs.pair_of(case, a)
    return by.forward(pair, pairs.inputs_of(case, a, pair), tile)


def gradients(
    case: Case, a: Arguments, ups: Ups, tile: Any = None, gauged: bool | None = None,
    by: Backend = TILES,
) -> Tensors:  # fmt: skip
    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    wanted = tuple(n for n in a.floats(bool(pair.DV)) if n in "qkv" or n in inputs.tables)
    return run_backward(backward(pair, wanted, gauged), inputs, ups, wanted, tile, by)


def run_backward(
    b: PairBackward, inputs: PairInputs, ups: Ups, wanted: tuple[str, ...], tile: Any,
    by: Backend = TILES,
) -> Tensors:  # fmt: skip
    made = by.forward(b.forward, inputs, tile)
    adjoints = {f"d_{n}": u for n, u in ups.items()}
    vectors = {b.vector: made.get(b.vector), f"d_{b.vector}": adjoints.pop(f"d_{b.vector}", None)}
    saved = {n: made[n] for n in b.saved}
    rows = RowValues(b, by.rows)(inputs, saved, vectors, adjoints)
    return by.backward(b, inputs, vectors, rows, wanted, tile)


def check(
    case: Case,
    a: Arguments,
    tile: Any = None,
    right_of: Arguments | None = None,
    ups: Tensors | None = None,
    gauged: bool | None = None,
    by: Backend = TILES,
    noise: float = 0.0,
) -> None:
    """Results and all gradients by the accuracy rule; `right_of` replaces what poisons torch.

    `noise` is granted to gradients of tables: one number may be a sum of thousands, of both signs.
    In 16 bits, same-precision torch rounds its scores too.
    """
    clean = right_of or a
    doubled = clean.mapped(lambda t: t.double())
    unfused = case if a.q.dtype in WIDE else replace(case, score=rounded(case, a.q.dtype))
    right, plain = pairs.meaning(case, doubled), pairs.meaning(unfused, clean)
    got = results(case, a, tile, by)
    assert got.keys() == right.keys()
    for n, r in right.items():
        if r.is_floating_point():
            require_near(got[n], r, plain[n], 2.0, (case.name, n))
        else:
            assert torch.equal(got[n], r), (case.name, n)
    if not derived(case, a):
        return
    ups = pairs.ups_of(right) if ups is None else ups
    ups = {n: u.to(plain[n].dtype) if u.stride() == () else u.to(plain[n]) for n, u in ups.items()}
    exact = pairs.meant_gradients(case, doubled, {n: u.double() for n, u in ups.items()})
    same = pairs.meant_gradients(unfused, clean, ups)
    found = gradients(case, a, ups, tile, gauged, by)
    assert {"q", "k"} <= found.keys()
    for n, g in found.items():
        granted = noise if n in a.tables else 0.0
        require_near(g, exact[n], same[n], 3.0, (case.name, f"d {n}"), granted)
    for n in exact.keys() - found.keys():
        assert not exact[n].any(), (case.name, f"d {n} is missing")


def derived(case: Case, a: Arguments) -> bool:
    """Does the declaration have a derived backward? Some general merges have none."""
    try:
        backward(pairs.pair_of(case, a), ())
    except NoBackward:
        return False
    return True


def rounded(case: Case, dtype: torch.dtype) -> Callable[[Any], Any]:
    """The scores as a tensor of this dtype holds them."""

    def score(t: Any) -> Any:
        inner = case.score(t) if case.score else lambda s, b, h, i, j: s
        return lambda s, *at: inner(s.to(dtype).to(s.dtype), *at)

    return score


def strided(t: Tensor, before: int = 1) -> Tensor:
    """The same values lying (B, S, H, D), with gaps of NaN; `before` numbers off the alignment."""
    B, H, S, D = t.shape
    memory = t.new_full((B, S, H, D + before + 2), float("nan"))
    memory[..., before : D + before] = t.transpose(1, 2)
    return memory[..., before : D + before].transpose(1, 2)
