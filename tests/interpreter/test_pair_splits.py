"""Split keys in Triton's interpreter: states by the pair kernel, merged by a row kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.run import pair_printed
from tests import attention, masks, pairs, printing
from tests.accuracy import require_near
from tests.pair_checks import PRINTED, check, results, rounded, split_keys
from tests.pairs import DECLARED, SCORES, Arguments, Case, arguments, masked, scored, sizes

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of rows that see nothing
SMALL = (16, 16, 4, 1)
BY_NAME = {c.name: c for c in DECLARED}
SOFTMAX, ENTROPY, WELFORD = (BY_NAME[n] for n in ("softmax", "entropy", "welford"))
ANY_ORDER = [c for c in DECLARED if c.name != "moments"]
WIDE = (torch.float64, torch.float32)
INF = float("inf")
Split = Callable[[int], None]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


@pytest.fixture
def split() -> Iterator[Split]:
    """`split(n)`: from now on the keys of every query are split in n."""
    with ExitStack() as stack:
        yield lambda n: stack.enter_context(split_keys(n))


def check_forward(case: Case, a: Arguments, tile: Any = SMALL) -> None:
    """The results by the accuracy rule."""
    unfused = case if a.q.dtype in WIDE else replace(case, score=rounded(case, a.q.dtype))
    right = pairs.meaning(case, a.mapped(Tensor.double))
    plain, got = pairs.meaning(unfused, a), results(case, a, tile, PRINTED)
    assert got.keys() == right.keys()
    for n, r in right.items():
        if r.is_floating_point():
            require_near(got[n], r, plain[n], 2.0, (case.name, n))
        else:
            assert torch.equal(got[n], r), (case.name, n)


# ---- declarations, masks, scores -----------------------------------------------------------------


def slow(value: Any) -> Any:
    """A parameter for `make test-all` alone."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize("n", [slow(2), 4])
@pytest.mark.parametrize("case", ANY_ORDER, ids=lambda c: c.name)
def test_declarations(case: Case, n: int, split: Split) -> None:
    """Five blocks of keys: 3 + 2; 2 + 2 + 1 and a split without a key."""
    split(n)
    check_forward(case, arguments(case, sizes(5, 75, B=1, group=2), torch.float32))


@pytest.mark.parametrize("n", [3, slow(8)])
@pytest.mark.parametrize("mask", pairs.MASKS)
@pytest.mark.parametrize("case", [SOFTMAX, slow(WELFORD)], ids=lambda c: c.name)
def test_masks(case: Case, mask: str, n: int, split: Split) -> None:
    """More than one block of queries; rows, splits and heads that see nothing."""
    split(n)
    case = masked(case, mask)
    check_forward(case, arguments(case, sizes(19, 67, B=1, H=2), torch.float32))


@pytest.mark.parametrize("case", masks.CASES, ids=lambda c: c.name)
def test_library_masks(case: masks.Case, split: Split) -> None:
    """Ranges, and lists of blocks; what no query sees may hold NaN."""
    split(2)
    Sq, Sk = 9, 131
    i, j = torch.arange(Sq)[:, None], torch.arange(Sk)
    b, h, *_ = masks.places(Sq, Sk)
    seen = masks.everywhere(case.seen(b, h, i, j, Sq, Sk), Sq, Sk)
    tensors = attention.inputs(masks.B, masks.H, masks.H, Sq, Sk, 8, dtype=torch.float32)
    q, k, v = (t.detach().clone() for t in tensors)
    k[~seen.any(-2)], v[~seen.any(-2)] = float("nan"), INF
    out, more = fr.attention(q, k, v, mask=case.mask(), aux=("lse",), impl="triton")
    right, rough = (attention.plain(*(t.detach().to(d) for t in tensors), seen) for d in WIDE)
    for n, got in (("out", out), ("lse", more["lse"])):
        require_near(got, right[n], rough[n], 2, (case.name, n))


@pytest.mark.parametrize("score", SCORES)
def test_scores(score: str, split: Split) -> None:
    split(3)
    case = scored(SOFTMAX, score, "window")
    check_forward(case, arguments(case, sizes(5, 70, B=1, group=2), torch.float32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(dtype: torch.dtype, split: Split) -> None:
    split(4)
    for case in (SOFTMAX, ENTROPY, WELFORD, BY_NAME["weighted"]):
        made = masked(case, "some keys")
        a = arguments(made, sizes(5, 90, B=1, D=32, DV=16, group=2), dtype)
        check_forward(made, replace(a, q=a.q / 8))


@pytest.mark.parametrize("Sk", [1, 15, 16, 17, 64, 100])
def test_lengths(Sk: int, split: Split) -> None:
    for n in (2, 8):
        split(n)
        for Sq in (1, 2, 5):
            check_forward(SOFTMAX, arguments(SOFTMAX, sizes(Sq, Sk, B=1, H=1), torch.float32))


@pytest.mark.parametrize("what", ["lowest", "far below", "far above", "minus infinity"])
def test_edges(what: str, split: Split) -> None:
    """Splits whose references lie far apart, and such as hold -inf alone."""
    shift = {"lowest": torch.finfo(torch.float32).min, "far below": -1000.0, "far above": 1000.0,
             "minus infinity": -INF}[what]  # fmt: skip
    split(4)
    case = replace(SOFTMAX, score=lambda t: lambda s, b, h, i, j: torch.where(j < 40, shift, s))
    check_forward(case, arguments(case, sizes(5, 75, B=1), torch.float32))


class Named(fr.Reduction):
    """Fields that are called as the kernel might call its own."""

    m = fr.Max(lambda x: x)
    split = fr.Sum(lambda x, m: torch.exp(x - m))
    split_m = fr.Sum(lambda x: x)
    splits = fr.Reference(lambda split_m: 2.0 * split_m)

    def finish(m, split, split_m, splits):
        return {"lse": m + torch.log(split), "sum": split_m, "twice": splits}


def test_names(split: Split) -> None:
    """And a reference that is a formula: it is no slot, and is made of the merged ones."""
    split(4)
    case = Case("named", Named, ("lse", "sum", "twice"))
    check_forward(case, arguments(case, sizes(5, 75, B=1), torch.float32))


# ---- attention as it is called -------------------------------------------------------------------


def both(call: Callable[[], Any], split: Split, n: int = 4) -> tuple[list[Tensor], list[Tensor]]:
    """All tensors that a call answers, with keys split and not; and were they?"""
    found = []
    for splits in (n, 1):
        split(splits)
        merge = pair_printed.merged_splits
        with patch.object(pair_printed, "merged_splits", wraps=merge) as merged:
            found.append(flat(call()))
        assert merged.called == (splits > 1)
    return found[0], found[1]


def flat(answer: Any) -> list[Tensor]:
    if isinstance(answer, Tensor):
        return [answer]
    parts = answer.values() if isinstance(answer, dict) else answer
    return [t for p in parts for t in flat(p)]


def alike(found: tuple[list[Tensor], list[Tensor]]) -> None:
    for a, b in zip(*found, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("group", [1, 4])
def test_one_query(group: int, split: Split) -> None:
    """Decoding: heads that share keys are rows of one tile; positions count from the offset."""
    q, k, v = attention.inputs(2, 4, 4 // group, 1, 150, 16, dtype=torch.float32)
    slopes = torch.rand(4)
    alibi = fr.score(lambda s, b, h, i, j: s + slopes[h] * (j - i))
    options = {"mask": fr.masks.causal & fr.masks.window(90, 0), "q_offset": 140}
    options |= {"score_mod": alibi, "aux": ("lse", "entropy", "max_logit"), "impl": "triton"}
    found = both(lambda: fr.attention(q, k, v, enable_gqa=True, **options), split)
    assert len(found[0]) == 4
    alike(found)
    j = torch.arange(150)
    seen = (j <= 140) & (j >= 50)
    wide = [t.detach().double() for t in (q, k, v)]
    right = attention.plain(*wide, seen, lambda x: x + slopes.to(x)[:, None, None] * (j - 140))
    torch.testing.assert_close(found[0][0].double(), right["out"], rtol=1e-5, atol=1e-5)


def test_sinks_and_states(split: Split) -> None:
    q, k, v = attention.inputs(1, 4, 2, 3, 150, 16, dtype=torch.float32)
    options: dict[str, Any] = {"enable_gqa": True, "impl": "triton"}
    alike(both(lambda: fr.attention(q, k, v, sinks=torch.zeros(4), aux=("lse",), **options), split))
    R = fr.reductions.SoftmaxSum
    q, k, v = (t.detach() for t in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))
    whole = lambda: fr.pairwise(R, q, k, v=v, return_state=True, impl="triton")
    alike(both(whole, split))
    _, seed = fr.pairwise(R, q, k[:, :, :50], v=v[:, :, :50], return_state=True, impl="triton")
    rest = lambda: fr.pairwise(R, q, k[:, :, 50:], v=v[:, :, 50:], seed=seed, impl="triton")
    out, lse = flat(fr.pairwise(R, q, k, v=v, impl="triton"))
    for a in both(rest, split):
        torch.testing.assert_close(a, [out, lse], rtol=1e-5, atol=1e-5)


def test_packed_sequences(split: Split) -> None:
    offsets = torch.tensor([0, 10, 10, 61, 80])  # an empty one, and a tail that nobody owns
    q, k, v = attention.inputs(1, 1, 1, 90, 90, 16, dtype=torch.float32)
    mask = fr.masks.cu_seqlens(offsets, within=fr.masks.causal)
    found = both(lambda: fr.attention(q, k, v, mask=mask, aux=("lse",), impl="triton"), split)
    alike(found)
    assert not found[0][0][:, :, 80:].any()
    assert (found[0][1][:, :, 80:] == -INF).all()


@pytest.mark.parametrize("case", [SOFTMAX, slow(ENTROPY)], ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16)], ids=str)
def test_gradients(case: Case, dtype: torch.dtype, split: Split) -> None:
    """What is saved for the backward is made of merged states too."""
    split(4)
    case = masked(case, "causal")
    check(case, arguments(case, sizes(5, 70, B=1, H=1), dtype), SMALL, by=PRINTED)


def test_bits_repeat(split: Split) -> None:
    split(4)
    q, k, v = attention.inputs(1, 2, 2, 3, 150, 16, dtype=torch.bfloat16)
    first, *others = (fr.attention(q, k, v, impl="triton") for _ in range(3))
    assert all(torch.equal(first, t) for t in others)
