"""States put in and taken out: streams, seeds, restarts."""

from __future__ import annotations

import io

import pytest
import torch

import fusedreduce as fr
from fusedreduce.reductions import (
    AllOf,
    AnyOf,
    Largest,
    LogSumExp,
    Mean,
    Moments,
    Product,
    Smallest,
    Total,
    Welford,
)
from tests.cases import Entropy, Spread
from tests.chains import flat

EVERY = (
    LogSumExp, Moments, Welford, Entropy, Spread, Total, Mean, Product, Largest, Smallest, AnyOf,
    AllOf,
)  # fmt: skip


def pieces(x: torch.Tensor, *sizes: int) -> tuple[torch.Tensor, ...]:
    return torch.split(x, [*sizes, x.shape[-1] - sum(sizes)], -1)


@pytest.mark.parametrize("impl", ["tiles", "eager"])
@pytest.mark.parametrize("R", EVERY, ids=lambda R: R.__name__)
def test_a_seed_stands_for_its_elements(R: type, impl: str) -> None:
    x = torch.randn(3, 100, dtype=torch.float64)
    a, b = pieces(x, 37)
    _, seed = fr.reduce(R, a, return_state=True, impl=impl)
    got = fr.reduce(R, b, seed=seed, impl=impl)
    want = fr.reduce(R, x, impl=impl)
    if R in (Largest, Smallest):
        got.pop("index"), want.pop("index")  # positions count from 0 in each call
    for g, w in zip(flat(got), flat(want), strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("R", EVERY, ids=lambda R: R.__name__)
def test_a_stream_equals_the_whole(R: type) -> None:
    x = torch.randn(4, 257, dtype=torch.float64)
    running = fr.stream(R, dim=-1)
    for piece in pieces(x, 1, 100, 31):
        running.update(piece)
    for g, w in zip(flat(running.value()), flat(fr.reduce(R, x)), strict=True):
        torch.testing.assert_close(g, w)


def test_streams_merge_in_order() -> None:
    x = torch.randn(300)
    a, b = fr.stream(Largest), fr.stream(Largest)
    a.update(x[:100])
    b.update(x[100:200]).update(x[200:])
    got = a.merge(b).value()
    assert got["index"] == x.argmax()


@pytest.mark.parametrize("first", ["-inf", "nothing"])
def test_absent_elements_then_low_ones(first: str) -> None:
    """Nothing but -inf, then a row near -1000: the old reference has no value of its own."""
    start = torch.full((50,), float("-inf")) if first == "-inf" else torch.empty(0)
    later = torch.randn(60) - 1000.0
    got = fr.stream(LogSumExp).update(start).update(later).value()
    torch.testing.assert_close(got, torch.logsumexp(later.double(), 0), rtol=1e-6, atol=0)


def test_a_restart_gives_the_same_bits() -> None:
    x = torch.randn(10, 64)
    whole, half = fr.stream(Moments), fr.stream(Moments)
    for k, row in enumerate(x):
        whole.update(row)
        half.update(row)
        if k == 4:
            file = io.BytesIO()
            torch.save(half.state_dict(), file)
            file.seek(0)
            half = fr.stream(Moments).load_state_dict(torch.load(file))
    for a, b in zip(flat(whole.value()), flat(half.value()), strict=True):
        assert torch.equal(a, b)


def test_a_count_passes_2_to_the_24() -> None:
    running = fr.stream(Mean).update(torch.ones(10))
    running.state["n"] += 2.0**24
    running.state["total"] += 2.0**24
    before = running.state["n"].clone()
    running.update(torch.ones(1))
    assert running.state["n"] == before + 1


def test_an_empty_stream_has_the_value_of_nothing() -> None:
    assert fr.stream(LogSumExp).value() == float("-inf")


def test_mistakes_are_told() -> None:
    with pytest.raises(fr.errors.OptionError, match="different declarations"):
        fr.stream(Mean).merge(fr.stream(Total))
    with pytest.raises(fr.errors.OptionError, match="does not fit"):
        fr.stream(Mean).load_state_dict(fr.stream(Total).update(torch.ones(3)).state_dict())
    with pytest.raises(fr.errors.OperandError, match="not a state"):
        fr.reduce(Mean, torch.ones(3), seed={"m": torch.ones(())})
    with pytest.raises(fr.errors.ShapeError, match="kept dimensions"):
        fr.stream(Mean, dim=0).update(torch.ones(3, 4)).update(torch.ones(3, 5))


def test_gradients_pass_through_a_seed() -> None:
    x = torch.randn(40, dtype=torch.float64, requires_grad=True)
    a, b = x[:15], x[15:]
    _, seed = fr.reduce(LogSumExp, a, return_state=True)
    (got,) = torch.autograd.grad(fr.reduce(LogSumExp, b, seed=seed), x)
    torch.testing.assert_close(got, torch.softmax(x.detach(), 0))
