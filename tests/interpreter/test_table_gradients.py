"""Gradients of captured tensors and operands by printed kernels, beside their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.plan import pairs as plans
from fusedreduce.reductions import LogSumExp, SoftmaxEntropy
from fusedreduce.run import (
    pair_gradients,
    pair_printed,
    pair_table_gradients,
    pair_table_kernels,
)
from tests import attention, pairs, printing, tables
from tests.pair_checks import PRINTED, check, gradients
from tests.pairs import DECLARED, Case, arguments, masked, sizes

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN")  # of rows that do not exist
NOISE = 2.0**-15  # some hundred roundings of numbers near 1
SMALL = (16, 16, 4, 1)
WEIGHTED = next(c for c in DECLARED if c.name == "weighted")


@pytest.fixture(autouse=True)
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever asks the tiles fails; what nobody writes is NaN; launches take small tiles.

    Few programs count as enough, so that a tile of sums has many visits, in one part or two.
    """

    def refused(*args: Any) -> Any:
        raise AssertionError("a gradient was left to the tiles")

    def plan_of(pair: Any, direction: str, device: Any, tile: Any = None) -> Any:
        return plans.plan(pair, direction, device, tile or SMALL)

    monkeypatch.setattr(pair_gradients, "backward", refused)
    for module in (pair_printed, pair_table_kernels):
        monkeypatch.setattr(module, "plan_of", plan_of)
    monkeypatch.setattr(pair_table_kernels, "PROGRAMS", 24)
    with printing.poisoned():
        yield


# ---- scores, masks, declarations -----------------------------------------------------------------


def check_score(score: str, mask: str | None) -> None:
    """Odd lengths, two batches, three heads that share keys."""
    case = tables.case_of(score, mask)
    a = arguments(case, sizes(19, 37, H=3, group=3), torch.float32)
    check(case, a, SMALL, by=PRINTED, noise=NOISE)


@pytest.mark.parametrize("mask", [None, "causal", "by head"])
@pytest.mark.parametrize("score", tables.SCORES)
def test_scores(score: str, mask: str | None) -> None:
    check_score(score, mask)


@pytest.mark.parametrize("mask", ["window", "documents", "some rows", "none"])
@pytest.mark.parametrize("score", ["bias of keys", "slopes", "bias of heads", "relative"])
def test_masks(score: str, mask: str) -> None:
    """Ranges, lists of every batch, queries and keys that nobody sees, nothing at all."""
    check_score(score, mask)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["window", "documents", "some rows", "some keys"])
@pytest.mark.parametrize("score", tables.SCORES)
def test_every_mask(score: str, mask: str) -> None:
    check_score(score, mask)


@pytest.mark.parametrize(("Sq", "Sk"), [(1, 1), (1, 40), (33, 2), (16, 16), (32, 48), (50, 17)])
@pytest.mark.parametrize("score", ["relative", "bias"])
def test_lengths(score: str, Sq: int, Sk: int) -> None:
    """One block and many, wide and tall, cut off and not."""
    for mask in (None, "window"):
        case = tables.case_of(score, mask, outputs=("lse",))
        a = arguments(case, sizes(Sq, Sk, H=2, group=2, D=4), torch.float32)
        check(case, a, SMALL, by=PRINTED, noise=NOISE)


@pytest.mark.parametrize("programs", [1, 1000])
@pytest.mark.parametrize("score", ["bias", "relative", "gain by distance"])
def test_parts(score: str, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All visits by one program, and each by one of its own."""
    monkeypatch.setattr(pair_table_kernels, "PROGRAMS", programs)
    check_score(score, "by head")
    check_score(score, None)


@pytest.mark.parametrize("score", ["bias of keys", "slopes", "three", "bias of heads", "relative"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(dtype: torch.dtype, score: str) -> None:
    case = tables.case_of(score, "causal", outputs=("out", "lse"))
    a = arguments(case, sizes(33, 21, B=1, group=2), dtype)
    check(case, replace(a, q=a.q / 8), SMALL, by=PRINTED)


@pytest.mark.parametrize("score", ["bias of documents", "soft caps", "two biases", "far is far"])
@pytest.mark.parametrize("R", [LogSumExp, SoftmaxEntropy], ids=lambda R: R.__name__)
def test_without_a_payload(R: Any, score: str) -> None:
    outputs = ("",) if R is LogSumExp else ("entropy", "lse")
    case = tables.case_of(score, "by head", R, outputs)
    check(case, arguments(case, sizes(21, 18, group=2), torch.float32), SMALL, by=PRINTED)


@pytest.mark.parametrize("mask", [None, "causal", "documents"])
def test_operands(mask: str | None) -> None:
    """A temperature a row and a weight a key."""
    case = WEIGHTED if mask is None else masked(WEIGHTED, mask)
    check(case, arguments(case, sizes(20, 35, H=3, group=3), torch.float32), SMALL, by=PRINTED)


class Averaged(fr.Reduction):
    """The mean of the values by weights of their own: no result reads a score."""

    v = fr.Payload()
    empty = {"": 0.0}
    n = fr.Sum(lambda x, w: w)
    o = fr.Sum(lambda w, v: w * v)

    def finish(n, o):
        return o / n


class Weight(fr.Reduction):
    """The weight that a query sees: neither scores nor values are read."""

    n = fr.Sum(lambda x, w: w * w)

    def finish(n):
        return n


@pytest.mark.parametrize("mask", [None, "causal", "by head"])
@pytest.mark.parametrize("R", [Averaged, Weight], ids=lambda R: R.__name__)
def test_operands_alone(R: Any, mask: str | None) -> None:
    """The gradient of w is all that the kernels are for."""
    weights = {"w": lambda z: pairs.positive(z.B, z.H, z.Sk)}
    case = Case(R.__name__, R, ("",), None, pairs.MASKS.get(mask or ""), {}, weights)
    check(case, arguments(case, sizes(19, 21, group=2), torch.float32), SMALL, by=PRINTED)


# ---- through the front door ----------------------------------------------------------------------


def causal(score: Any) -> Any:
    return lambda q, k, v, *t: attention.plain(
        q, k, v, attention.causal(q.shape[2], k.shape[2]), lambda x: score(x, *t)
    )["out"]


def test_alibi() -> None:
    q, k, v = attention.inputs(2, 6, 2, 21, 35, dtype=torch.float32)
    slopes = torch.rand(6, requires_grad=True)
    apart = (torch.arange(21)[:, None] - torch.arange(35)).abs()
    out = fr.attention(
        q, k, v, score_mod=lambda s, b, h, i, j: s - slopes[h] * torch.abs(i - j),
        is_causal=True, enable_gqa=True, impl="triton",
    )  # fmt: skip
    function = causal(lambda x, t: x - t[:, None, None] * apart)
    attention.check(out, function, (q, k, v, slopes))


def test_a_bias_a_key() -> None:
    """As a mask that is added, and captured; strided."""
    q, k, v = attention.inputs(2, 3, 3, 21, 35, dtype=torch.float32)
    bias = torch.randn(35, 2).requires_grad_()
    added = bias.t()[:, None, None]
    function = causal(lambda x, t: x + t.t()[:, None, None].to(x))
    out = fr.attention(q, k, v, mask=added, is_causal=True, impl="triton")
    attention.check(out, function, (q, k, v, bias))
    of_key = bias.t()
    out = fr.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + of_key[b, j],
                       is_causal=True, impl="triton")  # fmt: skip
    attention.check(out, function, (q, k, v, bias))


@pytest.mark.parametrize(
    "shape", [(21, 35), (6, 21, 35), (2, 1, 21, 35), (2, 6, 21, 35), (6, 1, 35)]
)
def test_a_float_mask(shape: tuple[int, ...]) -> None:
    q, k, v = attention.inputs(2, 6, 2, 21, 35, dtype=torch.float32)
    bias = torch.randn(shape, requires_grad=True)
    out = fr.ops.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True, impl="triton")

    def function(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        return attention.plain(q, k, v, score=lambda x: x + t)["out"]

    attention.check(out, function, (q, k, v, bias))


def test_buckets_of_distances() -> None:
    """Near ones apart, far ones by their logarithm, both directions apart, as T5 has them."""
    q, k, v = attention.inputs(2, 2, 2, 40, 50, dtype=torch.float32)
    table = torch.randn(16, 2, requires_grad=True)

    def bucket(i: Any, j: Any) -> Any:
        far = torch.abs(i - j)
        log = 4 + (torch.log(torch.clamp(far, 1).float() / 4.0) * 1.5).to(torch.int64)
        near = torch.where(far < 4, far, torch.clamp(log, 4, 7))
        return near + torch.where(j > i, 8, 0)

    places = bucket(torch.arange(40)[:, None], torch.arange(50))
    out = fr.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[bucket(i, j), h],
                       is_causal=True, impl="triton")  # fmt: skip
    attention.check(out, causal(lambda x, t: x + t[places].permute(2, 0, 1)), (q, k, v, table))


def windows() -> tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor]:
    """Windows of 3 x 4 positions: q, k, v, a table of 5 x 7 distances, its index of each pair."""
    tensors = attention.inputs(8, 2, 2, 12, 12, dtype=torch.float32)
    y, x = torch.arange(12) // 4, torch.arange(12) % 4
    index = (y[:, None] - y + 2) * 7 + x[:, None] - x + 3
    table = torch.randn(35, 2, requires_grad=True)
    out = fr.attention(*tensors, score_mod=lambda s, b, h, i, j: s + table[index[i, j], h],
                       impl="triton")  # fmt: skip
    return tensors, table, index, out


def test_an_index_of_pairs() -> None:
    """Sums by pair are dealt out by the index."""
    tensors, table, index, out = windows()

    def function(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        return attention.plain(q, k, v, score=lambda x: x + t[index].permute(2, 0, 1))["out"]

    attention.check(out, function, (*tensors, table))


def test_too_many_sums_are_left_to_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    _, table, _, out = windows()
    monkeypatch.setattr(pair_table_gradients, "LARGEST", 2 * 12 * 12 - 1)
    with pytest.raises(AssertionError, match="left to the tiles"):
        torch.autograd.grad(out.sum(), table)


def test_what_nobody_sees_may_hold_anything() -> None:
    """NaN in keys, values and their biases; a gradient there is 0."""
    q, k, v = (t.detach() for t in attention.inputs(1, 2, 2, 20, 40, 8, dtype=torch.float32))
    bias = torch.randn(2, 40)
    for t in (k, v):
        t[:, :, 23:] = float("nan")
    bias[:, 23:] = float("nan")
    tensors = [t.requires_grad_() for t in (q, k, v, bias)]
    out = fr.attention(*tensors[:3], score_mod=lambda s, b, h, i, j: s + bias[h, j],
                       mask=lambda b, h, i, j: j < 23, impl="triton")  # fmt: skip
    grads = torch.autograd.grad(out, tensors, torch.randn_like(out))
    assert all(torch.isfinite(g).all() for g in grads)
    assert not grads[3][:, 23:].any()
    assert grads[3][:, :23].all()


def test_indices_beyond_a_table_where_nobody_looks() -> None:
    """A mask keeps queries off: kernels read 0 there, and nothing is added."""
    q, k, v = attention.inputs(1, 2, 2, 18, 20, 8, dtype=torch.float32)
    table = torch.randn(9, requires_grad=True)
    lengths = torch.tensor([9])

    def call(score: Any) -> Tensor:
        return fr.attention(q, k, v, score_mod=score, mask=lambda b, h, i, j: j < lengths[b],
                            impl="triton")  # fmt: skip

    first = call(lambda s, b, h, i, j: s + table[j * 1])
    second = call(lambda s, b, h, i, j: s + table[torch.clamp(j, 0, 8)])
    up = torch.randn_like(first)
    found, right = (torch.autograd.grad(o, table, up)[0] for o in (first, second))
    torch.testing.assert_close(found, right)
    assert right.all()


def test_tensors_alone() -> None:
    """q, k and v ask for nothing; two tables do."""
    q, k, v = (t.detach() for t in attention.inputs(2, 4, 2, 19, 33, dtype=torch.float32))
    slopes, bias = torch.rand(4, requires_grad=True), torch.randn(2, 33, requires_grad=True)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + slopes[h] * (j - i) + bias[b, j]

    def right(slopes: Tensor, bias: Tensor) -> Tensor:
        apart = torch.arange(33) - torch.arange(19)[:, None]
        x = lambda x: x + slopes.to(x)[:, None, None] * apart + bias.to(x)[:, None, None]
        wide = (t.to(slopes.dtype) for t in (q, k, v))
        return attention.plain(*wide, score=x)["out"]

    out = fr.attention(q, k, v, score_mod=score, enable_gqa=True, impl="triton")
    attention.check(out, right, (slopes, bias))


def test_bits_repeat() -> None:
    case = tables.case_of("three", "documents")
    a = arguments(case, sizes(37, 50, H=3, group=3), torch.float32)
    ups = {"out": torch.randn(2, 3, 37, 8)}
    first, again = (gradients(case, a, ups, SMALL, by=PRINTED) for _ in range(2))
    assert first.keys() == {"q", "k", "v", "gain", "slopes", "row"}
    assert all(torch.equal(first[n], again[n]) for n in first)
