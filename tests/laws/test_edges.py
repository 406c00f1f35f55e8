"""The float grid chooses the smallest set of selects."""

from __future__ import annotations

import time

import pytest
import torch

import fusedreduce as fr
from fusedreduce.laws import choose_guards, complete
from tests.laws import zoo


class Largest(fr.Reduction):
    m = fr.Max(lambda x: x)

    def finish(m):
        return m


GUARDS = [
    (zoo.LogSumExp, {"neutral:m", "old:m"}),
    (zoo.SoftMin, {"neutral:m", "old:m"}),
    (zoo.SoftmaxSum, {"neutral:m", "old:m", "present:o"}),
    (zoo.SoftmaxEntropy, {"nan:m", "neutral:m", "old:m", "present:e"}),
    (zoo.Moments, {"neutral:mean", "old:mean"}),
    (Largest, {"nan:m"}),
    (zoo.ScaledNorm, {"neutral:k", "old:k"}),
    (fr.join(Largest, zoo.LogSumExp), {"nan:m", "neutral:m", "old:m"}),
    (zoo.welford("Welford", zoo.chan), set()),
]


@pytest.mark.parametrize(("declaration", "guards"), GUARDS, ids=lambda v: str(v)[:40])
def test_guards(declaration: type[fr.Reduction], guards: set[str]) -> None:
    assert choose_guards(complete(declaration.record)) == guards


def test_guards_are_chosen_in_time() -> None:
    record = complete(zoo.SoftmaxSum.record)
    choose_guards.cache_clear()
    start = time.perf_counter()
    choose_guards(record)
    assert time.perf_counter() - start < 3.0


def test_the_guarded_rule_is_right_on_ordinary_rows() -> None:
    """The tile-by-tile and the merged value are both the two-pass one."""
    import numpy as np

    from fusedreduce.laws.edges import NUMPY
    from fusedreduce.laws.streams import Runner, Streams

    record = complete(zoo.Moments.record)
    x = np.random.default_rng(1).normal(size=(64, 3, 3))
    j = np.broadcast_to(np.arange(9).reshape(1, 3, 3), x.shape)
    streams = Streams({"x": x, "j": j}, np.ones(x.shape, bool))
    guards = choose_guards(record)
    with np.errstate(all="ignore"):
        found = Runner(np, record, guards, NUMPY[np.float64], np.float64).run(streams)
    for way in ("tiles", "merge"):
        assert np.allclose(found[f"{way}:mean"], x.mean((1, 2)))
        assert np.allclose(found[f"{way}:var"], x.var((1, 2)))


def test_a_payload_at_an_absent_element_does_not_matter() -> None:
    class Weighted(zoo.LogSumExp):
        v = fr.Payload()
        o = fr.Sum(lambda x, m, v: torch.exp(x - m) * v)

        def finish(s, o):
            return o / s

        definition = None

    assert "present:o" in choose_guards(complete(Weighted.record))
