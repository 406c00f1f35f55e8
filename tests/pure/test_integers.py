"""Integers in masks, scores and chains: as torch computes them, or refused before any launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

import fusedreduce as fr
from fusedreduce import errors, masks
from fusedreduce.ir.expr import walk
from fusedreduce.kernels.positions import widened
from fusedreduce.pair import LONGEST
from fusedreduce.run.blocks import classify
from tests.masks import CPU, blocks_of

Function = Callable[[Any, Any, Any, Any], Any]
S = 6
I8 = tensor([-128, -127, -3, 5, 127, 100], dtype=torch.int8)
U8 = tensor([0, 1, 3, 200, 255, 7], dtype=torch.uint8)
I16 = tensor([-32768, -7, 0, 300, 32767, 12345], dtype=torch.int16)
I32 = tensor([-(2**31), -7, 0, 70000, 2**31 - 1, 12345], dtype=torch.int32)
I64 = tensor([-(2**31), -7, 0, 70000, 2**62 + 1, 12345])
U16, U64 = U8.to(torch.uint16), U8.to(torch.uint64)
FLAG = tensor([0, 1, 1, 0, 1, 0]).bool()
SMALL, LARGE = tensor(100, dtype=torch.int8), tensor(1000)

#: Functions of one (b, h, i, j) whose answer torch and kernels agree on.
SERVED: dict[str, Function] = {
    "narrow and index": lambda b, h, i, j: U8[i] + j,
    "narrow times index": lambda b, h, i, j: I8[i] * i - U8[j] * j,
    "halved": lambda b, h, i, j: U8[i] // 2 + I8[j] // 3 * i,
    "rest": lambda b, h, i, j: I8[i] % 3 + U8[j] % 5,
    "bits": lambda b, h, i, j: (U8[i] & 3) | (U8[j] ^ 128) & ~I8[i],
    "low bit set": lambda b, h, i, j: I8[i] | 1,
    "shifted down": lambda b, h, i, j: (U8[i] >> 1) + (I8[j] >> 9) * i,
    "digits joined": lambda b, h, i, j: (U8[i] % 16) * 16 + U8[j] % 16,
    "converted": lambda b, h, i, j: U8[i].int() - U8[j].int() * 300,
    "one converted": lambda b, h, i, j: I16[i].int() * U8[j] - I8[i],
    "as floats": lambda b, h, i, j: 0.5 * U8[i] - 0.5 * U8[j].float() + I16[i] / 4,
    "compared": lambda b, h, i, j: (U8[i] > 200) | (I8[i] < U8[j]) | (I16[i] == -7),
    "chosen": lambda b, h, i, j: torch.where(i > j, U8[i], U8[j]).clamp(7, 250),
    "chosen of two": lambda b, h, i, j: torch.maximum(I8[i], U8[j]) + torch.where(i > j, 300, -1),
    "signs": lambda b, h, i, j: torch.sign(I8[i]) * 100 - torch.sign(U8[j]),
    "flags counted": lambda b, h, i, j: FLAG[i] * 3 + FLAG[j] * i + (i >= j) * 2,
    "flags joined": lambda b, h, i, j: ~(FLAG[i] * FLAG[j]) ^ (i >= j),
    "flags as floats": lambda b, h, i, j: torch.exp2(FLAG[i]) + FLAG[j] / 4,
    "flag and narrow": lambda b, h, i, j: FLAG[i] * U8[j] + i,
    "32 bits wrap": lambda b, h, i, j: I32[i] * I32[j] - 1,
    "32 bits negated": lambda b, h, i, j: -I32[i] + I32[i].abs() // 2,
    "32 bits and index": lambda b, h, i, j: I32[i] * 2 + I32[i] * j,
    "32 bits converted": lambda b, h, i, j: (i * 70000).int() * (j + 70000).int(),
    "32 bits, no room": lambda b, h, i, j: I32[i] % 1000 * 1000 + 7,
    "64 bits wrap": lambda b, h, i, j: I64[i] * I64[j] + 1,
    "64 bits shifted": lambda b, h, i, j: ((i + 1) << 40) % 1000 + (1 << j),
    "index converted": lambda b, h, i, j: (i * 99).to(torch.int8) * i + (i * 9999).to(torch.int16),
    "powers": lambda b, h, i, j: (i + 100) ** 5 - 2**j + I32[i] ** 2,
    "read at a read": lambda b, h, i, j: I64[(U8[i] % 6).int()] + I64[I32[1] % 6],
    "two tensors of one element": lambda b, h, i, j: LARGE * 3 - SMALL // 7 + i,
}  # fmt: skip

#: Functions that are refused, and words of the message.
REFUSED: dict[str, tuple[Function, str, str]] = {
    "difference": (lambda b, h, i, j: U8[i] - U8[j], "`sub` in uint8", "-255 to 255"),
    "one less": (lambda b, h, i, j: U8[i] - 1, "`sub` in uint8", "ids.int()"),
    "sum": (lambda b, h, i, j: I16[i] + I8[j], "`add` in int16", "-32896 to 32894"),
    "twice": (lambda b, h, i, j: U8[i] * 2 > 300, "`mul` in uint8", "0 to 510"),
    "square": (lambda b, h, i, j: torch.square(I8[i]), "`mul` in int8", "wrap around"),
    "negative": (lambda b, h, i, j: -U8[i], "`neg` in uint8", "-255 to 0"),
    "negated": (lambda b, h, i, j: -I8[i], "`neg` in int8", "-127 to 128"),
    "absolute": (lambda b, h, i, j: abs(I8[i]), "`abs` in int8", "0 to 128"),
    "quotient": (lambda b, h, i, j: I8[i] // -1, "`floordiv` in int8", "-127 to 128"),
    "not": (lambda b, h, i, j: ~U8[i], "`bitnot` in uint8", "-256 to -1"),
    "shifted up": (lambda b, h, i, j: U8[i] << 1, "`shl` in uint8", "0 to 510"),
    "power": (lambda b, h, i, j: 2 ** U8[i], "`pow` in uint8", "ids.int()"),
    "uint16": (lambda b, h, i, j: U16[i] - U16[j], "`sub` in uint16", "-65535 to 65535"),
    "flag": (lambda b, h, i, j: FLAG[i] + U8[j], "`add` in uint8", "add(bool, uint8)"),
    "converted index": (lambda b, h, i, j: i.to(torch.uint8) - 1, "`sub` in uint8", "-1 to 254"),
    "of one element": (lambda b, h, i, j: SMALL * 3 + i, "`mul` in int8", "-384 to 381"),
    "with one element": (lambda b, h, i, j: I8[i] * LARGE, "`mul` in int8", "mul(int8, int64)"),
    "made": (lambda b, h, i, j: torch.zeros_like(U8[i]) - 1, "`sub` in uint8", "-1 to -1"),
    "number": (lambda b, h, i, j: U8[i] > 300, "300 does not fit into uint8", "0 to 255"),
    "below": (lambda b, h, i, j: U8[i] == -1, "-1 does not fit into uint8", "wraps it around"),
    "divisor": (lambda b, h, i, j: U8[i] % 300, "300 does not fit into uint8", "ids.int()"),
    "choice": (lambda b, h, i, j: torch.where(i > j, U8[i], 999), "999 does not fit", "uint8"),
    "bound": (lambda b, h, i, j: U8[i].clamp(min=-1), "-1 does not fit into uint8", "uint8"),
    "filled": (lambda b, h, i, j: torch.full_like(U8[i], 300), "300 does not fit", "uint8"),
    "32 bits": (lambda b, h, i, j: I32[i] > 2**40, "does not fit into int32", "ids.long()"),
    "64 bits": (lambda b, h, i, j: i < 2**63, "more than 64 bits", "9223372036854775808"),
    "flags added": (lambda b, h, i, j: FLAG[i] + FLAG[j], "`add` of booleans", "x.int()"),
    "flags compared": (lambda b, h, i, j: (i > j) - (i < j), "`sub` of booleans", "x.int()"),
    "flag negated": (lambda b, h, i, j: -FLAG[i], "`neg` of booleans", "neg(bool)"),
    "greater flag": (lambda b, h, i, j: torch.maximum(FLAG[i], i > j), "maximum", "bool, bool"),
    "negative power": (lambda b, h, i, j: i**-1, "negative power", "x.float() ** -1"),
    "narrow index": (lambda b, h, i, j: I64[U8[i] % 6], "index of a captured tensor", "uint8"),
    "uint64": (lambda b, h, i, j: U64[i] == U64[j], "is of uint64", "t.long()"),
    "to uint64": (lambda b, h, i, j: i.to(torch.uint64), "conversion to uint64", "int64"),
    "not joined": (lambda b, h, i, j: U16[i] * I8[j], "does not join", "uint16, int8"),
}  # fmt: skip


def places() -> tuple[Tensor, ...]:
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    return zero, zero, torch.arange(S)[:, None], torch.arange(S)


def as_score(fn: Function) -> Any:
    """A score whose new value is the function's, a boolean as 0 or 1."""

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        found = fn(b, h, i, j)
        return (found if found.kind != "bool" else torch.where(found, 1.0, 0.0)) + s * 0

    return score


class Each(fr.Reduction):
    """The score of the only key."""

    t = fr.Sum(lambda x: x)

    def finish(t):
        return t


def by_pairs(fn: Function, impl: str) -> Tensor:
    """The function at every (i, j), one key a call."""
    q, k = torch.zeros(1, 1, S, 1).double(), torch.zeros(1, 1, 1, 1).double()
    score = fr.score(as_score(fn))
    found = [fr.pairwise(Each, q, k, score_mod=score, k_offset=j, impl=impl) for j in range(S)]
    return torch.stack(found, -1)[0, 0]


@pytest.mark.parametrize("name", SERVED)
def test_served_as_torch(name: str) -> None:
    fn = SERVED[name]
    expected = torch.as_tensor(fn(*places())).double().expand(1, 1, S, S)[0, 0]
    came = masks.score(as_score(fn))(torch.zeros(S, S).double(), *places())
    assert torch.equal(came[0, 0], expected)
    assert torch.equal(by_pairs(fn, "tiles"), expected)
    assert torch.equal(by_pairs(fn, "eager"), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_where_it_is_written(name: str) -> None:
    fn, fact, more = REFUSED[name]
    with pytest.raises(errors.DeclarationError) as caught:
        masks.score(lambda s, b, h, i, j: fn(b, h, i, j) * s)
    text = str(caught.value)
    assert fact in text
    assert more in text
    assert "test_integers.py" in text


def test_what_needs_no_conversion_has_none() -> None:
    """`.int()` of a narrow integer, and 32 bits that do not overflow, cost nothing in a kernel."""
    for fn in (
        lambda s, b, h, i, j: s * (U8[i].int() - U8[j].int()),
        lambda s, b, h, i, j: s * (I32[i] % 8 * 4 + U8[j].long()),
        lambda s, b, h, i, j: s * (I32[i] + j),
    ):
        assert not any(n.op == "cast" for n in walk(masks.score(fn).expr))
    wraps = masks.score(lambda s, b, h, i, j: s * (I32[i] - I32[j])).expr
    assert [n.value for n in walk(wraps) if n.op == "cast"] == ["int32"]


# ---- what is computed with, everywhere alike ----------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 2**20])
def test_large_integers_in_block_maps(step: int) -> None:
    """float64 cannot tell 2^60 from 2^60 + 1: ends of blocks are compared as integers."""
    at = torch.arange(40)[:, None], torch.arange(40)
    times = 2**60 + torch.arange(40) * step
    ids = 2**60 + torch.arange(40) // 7
    for fn, exact in (
        (lambda b, h, i, j: times[i] >= times[j], True),
        (lambda b, h, i, j: ids[i] == ids[j], True),
        (lambda b, h, i, j: ids[i] != ids[j], True),
        (lambda b, h, i, j: ids[i] - ids[j] < 1, True),
        (lambda b, h, i, j: times[i] - times[j] + (i - j) * j >= 0, False),
    ):
        mask = masks.mask(fn)
        true = blocks_of(fn(0, 0, *at).expand(1, 1, 40, 40), 7, 7)
        came = classify(mask.bind(40, 40, CPU), 1, 1, 40, 40, 7, 7)
        assert ((came == true) | (came == 1)).all()
        assert not exact or step < 2**20 or torch.equal(came, true)


def test_integers_beside_floats_in_block_maps() -> None:
    """Kernels round an integer to float32 before they compare it: 2^24 + 1 is 2^24 there."""
    whole = 2**24 + torch.arange(40) * 3
    real = whole.float()
    at = torch.arange(40)[:, None], torch.arange(40)
    for fn in (
        lambda b, h, i, j: whole[i] > real[j],
        lambda b, h, i, j: whole[i] - real[j] > 0.5,
        lambda b, h, i, j: torch.maximum(whole[i] * 1.0, real[j]) > whole[j],
        lambda b, h, i, j: torch.where(i > j, whole[i], real[j]) == whole[j] * 1.0,
        lambda b, h, i, j: (whole[i] + j) * real[j] > real[i] * (whole[j] + i),
    ):
        mask = masks.mask(fn)
        seen = mask.evaluate(0, 0, *at, 40, 40)
        assert torch.equal(seen, fn(0, 0, *at))
        true = blocks_of(seen.expand(1, 1, 40, 40), 3, 1)
        came = classify(mask.bind(40, 40, CPU), 1, 1, 40, 40, 3, 1)
        assert ((came == true) | (came == 1)).all()
        assert (came != 1).any()


def test_numbers_have_the_digits_of_the_state() -> None:
    """0.1 beside float64 scores is a float64."""
    q, k = torch.randn(1, 1, 9, 3).double(), torch.randn(1, 1, 7, 3).double()
    bias = torch.rand(9)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * 0.1 + bias[i] * 0.3 - j * 0.7

    i, j = torch.arange(9)[:, None], torch.arange(7)
    right = torch.logsumexp((q @ k.mT) * 0.1 + bias.double()[:, None] * 0.3 - j.double() * 0.7, -1)
    for impl in ("eager", "tiles"):
        came = fr.pairwise(fr.reductions.LogSumExp, q, k, score_mod=score, impl=impl)
        assert (came - right).abs().max() < 1e-14
    assert (fr.score(score)(q @ k.mT, 0, 0, i, j).logsumexp(-1) - right).abs().max() < 1e-14


def test_half_precision_is_computed_in_float32() -> None:
    """A table of bfloat16 is read, then nothing rounds: eager and tiles say the same."""
    table = torch.rand(40).bfloat16()
    q, k = torch.randn(1, 1, 40, 8), torch.randn(1, 1, 40, 8)
    mask = fr.mask(lambda b, h, i, j: (table[i] + table[j] > 0.5) | (i == j))
    i, j = torch.arange(40)[:, None], torch.arange(40)
    seen = (table[i].float() + table[j].float() > 0.5) | (i == j)
    assert torch.equal(mask.evaluate(0, 0, i, j, 40, 40), seen)
    right = (q @ k.mT).masked_fill(~seen, float("-inf")).logsumexp(-1)
    for impl in ("eager", "tiles"):
        came = fr.pairwise(fr.reductions.LogSumExp, q, k, mask=mask, impl=impl)
        torch.testing.assert_close(came, right)


@pytest.mark.parametrize("impl", ["eager", "tiles"])
def test_float64_tables_in_a_call_of_float32_are_refused(impl: str) -> None:
    """Seconds since 1970 have no fraction, and no minutes, in float32."""
    times = 1.7e9 + torch.arange(9).double() / 4
    q = torch.randn(1, 1, 9, 4)
    mask = fr.mask(lambda b, h, i, j: times[i] >= times[j])
    score = fr.score(lambda s, b, h, i, j: s - (times[i] - times[j]))
    for given in ({"mask": mask}, {"score_mod": score}):
        with pytest.raises(
            errors.DtypeError, match=r"float64[\s\S]*shape \(9,\)[\s\S]*\.float\(\)"
        ):
            fr.pairwise(fr.reductions.LogSumExp, q, q, impl=impl, **given)
    double = q.double()
    seen = fr.pairwise(fr.reductions.LogSumExp, double, double, mask=mask, impl=impl)
    causal = fr.pairwise(fr.reductions.LogSumExp, double, double, mask=masks.causal, impl=impl)
    assert torch.equal(seen, causal)


def test_positions_that_kernels_cannot_count_are_refused() -> None:
    q = torch.randn(1, 1, 3, 4)
    for offsets in ({"q_offset": LONGEST + 1}, {"k_offset": -LONGEST - 1}):
        with pytest.raises(errors.OptionError, match=f"up to {LONGEST}"):
            fr.attention(q, q, q, is_causal=True, **offsets)
    near = {"q_offset": LONGEST, "k_offset": LONGEST}
    there = fr.attention(q, q, q, is_causal=True, **near)
    assert torch.equal(there, fr.attention(q, q, q, is_causal=True))


def test_positions_are_widened_where_they_must_be() -> None:
    kinds = {"i": "int", "j": "int", "q_offset": "int", "Sk": "int", "Sq": "int", "t": "int"}

    def casts(fn: Callable[..., Any]) -> int:
        expr = masks.mask(fn).shifted("q_offset").expr
        return sum(n.value == "int64" for n in walk(widened(expr, kinds)))

    for fn in (
        lambda b, h, i, j: (i >= j) & (i - j <= 10**9),
        lambda b, h, i, j: (i - j) % 8 == 0,
        lambda b, h, i, j: (i * 0.5 > j) & (i.float() * 1e12 > 0),
    ):
        assert casts(fn) == 0
    for fn in (
        lambda b, h, i, j: i * j % 7 < 3,
        lambda b, h, i, j: i < 2**31,
        lambda b, h, i, j: i + (2**31 - 1) > j,
        lambda b, h, i, j: (i >> 35) == j,
    ):
        assert casts(fn) > 0


# ---- chains --------------------------------------------------------------------------------------


def both(fn: Callable[[Any], Any]) -> Any:
    """A chain with a reduction, so that it is a kernel."""

    def chain(x):
        y = fn(x)
        return y, fr.reduce(Each, y)

    return fr.fuse(chain)


ROW_REFUSED: dict[str, tuple[Tensor, Callable[[Any], Any], str]] = {
    "number": (U8, lambda x: x > 300, "300 does not fit into uint8"),
    "below": (U8, lambda x: x == -1, "-1 does not fit into uint8"),
    "choice": (U8, lambda x: torch.where(x > 3, x, -1), "-1 does not fit into uint8"),
    "upper bound": (I8, lambda x: x.clamp(0, 200), "200 does not fit into int8"),
    "divisor": (U8, lambda x: x // 300, "300 does not fit into uint8"),
    "rest": (U8, lambda x: x % -3, "-3 does not fit into uint8"),
    "filled": (U8, lambda x: torch.full_like(x, 300), "300 does not fit into uint8"),
    "32 bits": (I32, lambda x: x > 2**40, "does not fit into int32"),
    "64 bits": (I64, lambda x: x + 2**63, "more than 64 bits"),
    "flags": (FLAG, lambda x: x + x, "`add` of booleans"),
    "greater flag": (FLAG, lambda x: torch.maximum(x, x), "`maximum` of booleans"),
    "negative power": (I64, lambda x: x**-1, "negative power"),
}


@pytest.mark.parametrize("name", ROW_REFUSED)
def test_chains_refuse_where_it_is_written(name: str) -> None:
    x, fn, fact = ROW_REFUSED[name]
    with pytest.raises(errors.DeclarationError) as caught:
        both(fn)(x[None])
    assert fact in str(caught.value)
    assert "test_integers.py" in str(caught.value)


@pytest.mark.parametrize(
    ("x", "fn"),
    [
        (U8, lambda x: x * 2 + 300), (U8, lambda x: -x), (I8, lambda x: x.abs() // -1),
        (U8, lambda x: (x > 200) & (x % 7 < 3)), (I32, lambda x: x * x), (I8, lambda x: x**3),
        (U8, lambda x: torch.where(x > 3, x, 255)), (FLAG, lambda x: ~(x * x) | (x * 3 > 2)),
        (I64, lambda x: x * x), (U8, lambda x: (x << 9) + (x >> 9) + 2**x),
        (FLAG, lambda x: (torch.exp2(x) * 2 + x / (x | True)).int()),
    ],
)  # fmt: skip
def test_chains_wrap_as_torch(x: Tensor, fn: Callable[[Any], Any]) -> None:
    for impl in ("eager", "tiles"):
        came, total = both(fn).run(x[None], impl=impl)
        assert came.dtype == fn(x).dtype
        assert torch.equal(came[0], fn(x))
        assert total.item() == fn(x).sum().item()


def test_an_integer_operand_to_a_negative_power() -> None:
    class Inverses(fr.Reduction):
        t = fr.Sum(lambda x: x**-1)

        def finish(t):
            return t

    with pytest.raises(errors.DeclarationError, match="negative power"):
        fr.reduce(Inverses, I64[1:2])
