"""Split keys: how many programs share the keys of a query, and what merges their states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.plan import pairs as plans
from fusedreduce.run import pair_splits, tiles
from fusedreduce.run.merging import finish, merge
from fusedreduce.run.pair_inputs import PairInputs
from tests import pairs
from tests.pairs import DECLARED, Case, arguments, sizes

PLAN = plans.PairPlan("forward", 64, 64, 4, 3, 0, 0)
ANY_ORDER = [c for c in DECLARED if c.name != "moments"]


@pytest.mark.parametrize(
    ("shape", "Sk", "n"),
    [((1, 8, 1), 8192, 16), ((1, 8, 1), 1000, 1), ((1, 8, 1), 2000, 4), ((1, 1, 1), 131072, 16),
     ((8, 8, 16), 8192, 16), ((8, 8, 64), 8192, 4), ((64, 8, 1), 8192, 16), ((1, 8, 65), 8192, 1)],
)  # fmt: skip
def test_how_many(shape: tuple[int, int, int], Sk: int, n: int) -> None:
    """By the lengths alone; 256 keys each at the least; explain says it."""
    B, H, Sq = shape
    q, k, v = (torch.empty(B, H, s, 64, dtype=torch.bfloat16, device="meta")
               for s in (Sq, Sk, Sk))  # fmt: skip
    assert pair_splits.number_of_splits(PairInputs(q, k, v), PLAN) == n
    text = fr.explain(fr.attention, q, k, v)
    assert (f"split over {n} programs" in text) == (n > 1)
    assert ("merge" in text) == (n > 1)


def test_heads_that_are_packed_count_once() -> None:
    """Eight heads share one of k: their queries are rows of one tile."""
    q, k = (torch.empty(1, h, s, 64, dtype=torch.bfloat16, device="meta")
            for h, s in ((64, 1), (8, 8192)))  # fmt: skip
    assert "split over 16 programs" in fr.explain(fr.attention, q, k, k, enable_gqa=True)


@pytest.mark.parametrize("case", ANY_ORDER, ids=lambda c: c.name)
def test_states_merge_as_anywhere_else(case: Case) -> None:
    """The row program beside small torch that merges streams and seeds; one split holds nothing."""
    a = arguments(case, sizes(5, 32, B=2), torch.float64)
    pair = pairs.pair_of(case, a)
    names = {r.name: str(r.expr.value) for r in pair_splits.pair_of_states(pair).results}
    states = {n: state_of(pair, n, names[n]) for n in names}
    found = pair_splits.merged_splits(pair, states, tiles.run)
    parts: list[dict[str, Tensor]] = [
        {names[n]: t[:, :, :, k] for n, t in states.items()} for k in range(4)
    ]
    one, *others = parts
    for other in others:
        one = merge(pair.record, one, other)
    right = finish(pair.record, one)
    assert [*found] == [r.name for r in pair.results]
    for n, t in found.items():
        torch.testing.assert_close(t, right[n if n in right else ""], check_dtype=False)


def state_of(pair: Any, name: str, slot: str) -> Tensor:
    """Random states of four splits, (B, H, Sq, 4) or wider; nothing in the third."""
    result = next(r for r in pair_splits.pair_of_states(pair).results if r.name == name)
    shape = (2, 2, 5, 4, *[pair.DV] * result.vector)
    t = torch.rand(shape, dtype=torch.float64) + 0.5
    if result.dtype in ("int64", "bool"):
        t = torch.randint(2, shape).to(getattr(torch, result.dtype))
    t[:, :, :, 2] = next(s.identity for s in pair.record.slots if s.name == slot)
    return t
