"""Printed pair kernels in Triton's interpreter: results and all gradients beside their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce import reductions
from fusedreduce.errors import NotFusible
from fusedreduce.plan import pairs as plans
from fusedreduce.run import pair_printed
from tests import attention, masks, pairs, printing
from tests.accuracy import require_near
from tests.pair_checks import PRINTED, check, results, strided
from tests.pairs import DECLARED, Case, arguments, masked, scored, sizes

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN")  # of rows that do not exist
SMALL = (16, 16, 4, 1)
UNEVEN = (16, 32, 4, 1)
BY_NAME = {c.name: c for c in DECLARED}
SOFTMAX, ENTROPY, WELFORD, WEIGHTED = (
    BY_NAME[n] for n in ("softmax", "entropy", "welford", "weighted")
)
ANY_ORDER = [c for c in DECLARED if c.name != "moments"]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of short sequences, whoever launches."""

    def plan_of(pair: Any, direction: str, device: Any, tile: Any = None) -> Any:
        return plans.plan(pair, direction, device, tile or SMALL)

    monkeypatch.setattr(pair_printed, "plan_of", plan_of)


def slow(value: Any) -> Any:
    """A parameter for `make test-all` alone."""
    return pytest.param(value, marks=pytest.mark.slow)


# ---- declarations, scores, masks -----------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, slow("causal"), "documents", slow("none")])
@pytest.mark.parametrize("case", ANY_ORDER, ids=lambda c: c.name)
def test_declarations(case: Case, mask: str | None) -> None:
    case = case if mask is None else masked(case, mask)
    z = sizes(21, 37, B=1, H=2, group=2)
    check(case, arguments(case, z, torch.float32), SMALL, by=PRINTED)


@pytest.mark.parametrize("mask", [None, "some rows"])
@pytest.mark.parametrize("score", pairs.SCORES)
@pytest.mark.parametrize("case", [SOFTMAX, slow(ENTROPY), slow(WELFORD)], ids=lambda c: c.name)
def test_scores(case: Case, score: str, mask: str | None) -> None:
    case = scored(case, score, mask)
    z = sizes(21, 35, B=1, H=2, group=2)
    check(case, arguments(case, z, torch.float32), SMALL, by=PRINTED)


@pytest.mark.slow
@pytest.mark.parametrize("case", pairs.SHIPPED, ids=lambda c: c.name)
def test_every_shipped_declaration(case: Case) -> None:
    """NOTE: First wants the keys in their order; such a declaration goes by tiles."""
    case = replace(case, mask=pairs.MASKS["causal"])
    a = arguments(case, sizes(19, 21, B=1, H=1), torch.float32)
    if pairs.pair_of(case, a).in_any_order:
        check(case, a, SMALL, by=PRINTED)
    else:
        operands = {n: t[:, :, None] for n, t in a.operands.items()}
        with pytest.raises(NotFusible, match="any order"):
            fr.pairwise(case.R, a.q, a.k, impl="triton", trust=True, **operands)


class Indexed(fr.Reduction):
    """Terms over b, h, i and j beside the score."""

    m = fr.Max(lambda x: x)
    s = fr.Sum(lambda x, m, i, j: torch.exp(x - m) * (1.0 + 0.1 * i + 0.01 * j))
    t = fr.Sum(lambda b, h, j: 1.0 * b + 2.0 * h + 0.5 * j)
    n = fr.Sum(lambda j: j % 2)

    def finish(m, s, t, n):
        return {"value": m + torch.log(s), "t": t, "n": n}


@pytest.mark.parametrize("mask", [None, "causal", "documents"])
def test_indices_in_terms(mask: str | None) -> None:
    case = Case("indexed", Indexed, ("value", "t", "n"))
    case = case if mask is None else masked(case, mask)
    a = arguments(case, sizes(19, 37, B=2, H=2), torch.float32)
    got, right = results(case, a, SMALL, PRINTED), pairs.meaning(case, a.mapped(Tensor.double))
    for n in ("t", "n"):
        torch.testing.assert_close(got[n].double(), right[n].double())
    check(replace(case, outputs=("value",)), a, SMALL, by=PRINTED)


@pytest.mark.parametrize("mask", [None, "causal", "some rows", "some keys"])
def test_the_first_of_equal_scores(mask: str | None) -> None:
    case = BY_NAME["top"] if mask is None else masked(BY_NAME["top"], mask)
    a = arguments(case, sizes(19, 50, D=1), torch.float32)
    a = replace(a, q=torch.ones_like(a.q), k=torch.randint(3, a.k.shape).float())
    got, right = results(case, a, SMALL, PRINTED), pairs.meaning(case, a)
    assert torch.equal(got["at"], right["at"])
    torch.testing.assert_close(got["top"], right["top"])


# ---- sizes and dtypes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group",
    [1, pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(8, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(("Sq", "Sk"), [(1, 1), (3, 5), (16, 32), (33, 1), (1, 47), (37, 23)])
def test_lengths_and_groups(Sq: int, Sk: int, group: int) -> None:
    z = sizes(Sq, Sk, B=1, H=group * (1 + group % 2), group=group)
    cases = [masked(SOFTMAX, "causal"), masked(SOFTMAX, "documents")]
    cases += [masked(WEIGHTED, "documents")] * (Sk > 1)  # one key: all is rounding
    for case in cases:
        check(case, arguments(case, z, torch.float32), SMALL, by=PRINTED)


@pytest.mark.parametrize(
    ("D", "DV"),
    [(1, 1), (8, 31), (16, 16), (31, 8), (72, 80), (80, 24), (96, 96), (128, 128), (1, 128)],
)
def test_widths(D: int, DV: int) -> None:
    case = scored(SOFTMAX, "softcap", "window")
    z = sizes(17, 37, B=1, H=2, D=D, DV=DV, group=2)
    check(case, arguments(case, z, torch.float32), UNEVEN, by=PRINTED)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", [None, "softcap", "alibi", "bias", "hidden"])
def test_dtypes(dtype: torch.dtype, score: str | None) -> None:
    for case in (SOFTMAX, WEIGHTED, ENTROPY, WELFORD):
        made = masked(case, "causal") if score is None else scored(case, score, "causal")
        a = arguments(made, sizes(19, 33, B=1, D=32, DV=16, group=2), dtype)
        check(made, replace(a, q=a.q / 8), SMALL, by=PRINTED)


def test_the_shipped_tiles() -> None:
    """A plan of the library's own, more than one block of it each way."""
    case = masked(SOFTMAX, "causal")
    check(case, arguments(case, sizes(130, 140, B=1, H=1, D=64), torch.float32), by=PRINTED)


# ---- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", masks.CASES, ids=lambda c: c.name)
def test_library_masks(case: masks.Case, small_tiles: None) -> None:
    """Ranges, and lists of blocks; what no query sees, and what sees no key, may hold NaN."""
    Sq, Sk = 45, 53
    i, j = torch.arange(Sq)[:, None], torch.arange(Sk)
    b, h, *_ = masks.places(Sq, Sk)
    seen = masks.everywhere(case.seen(b, h, i, j, Sq, Sk), Sq, Sk)
    tensors = attention.inputs(masks.B, masks.H, masks.H, Sq, Sk, 8, dtype=torch.float32)
    q, k, v = (t.detach().clone() for t in tensors)
    q[~seen.any(-1)] = NAN
    k[~seen.any(-2)], v[~seen.any(-2)] = NAN, INF
    given = tuple(t.requires_grad_() for t in (q, k, v))
    out, more = fr.attention(*given, mask=case.mask(), aux=("lse",), impl="triton")
    up, d_lse = torch.randn_like(out), torch.randn_like(more["lse"])
    d_lse = torch.where(seen.any(-1), d_lse, 0.0)
    found = torch.autograd.grad((out, more["lse"]), given, (up, d_lse))
    answers = []
    for dtype in (torch.float64, torch.float32):
        wide = [t.detach().to(dtype).requires_grad_() for t in tensors]
        made = attention.plain(*wide, seen)
        lse = torch.where(seen.any(-1), made["lse"], 0.0)
        grads = torch.autograd.grad((made["out"], lse), wide, (up.to(dtype), d_lse.to(dtype)))
        answers.append([made["out"], made["lse"], *grads])
    for n, triple in enumerate(zip((out, more["lse"], *found), *answers, strict=True)):
        require_near(*(t.detach() for t in triple), 2 if n < 2 else 3, (case.name, n))


def test_tensors_as_masks(small_tiles: None) -> None:
    tensors = attention.inputs(2, 2, 2, 35, 40, 8, dtype=torch.float32)
    bias = torch.randn(2, 1, 35, 40, requires_grad=True)
    for seen in (torch.rand(35, 40) > 0.3, torch.rand(2, 1, 35, 40) > 0.8, torch.ones(1, 40) > 0):
        out = fr.attention(*tensors, mask=seen, impl="triton")
        attention.check(out, lambda *a, s=seen: attention.plain(*a, s)["out"], tensors)
    out = fr.attention(*tensors, mask=bias, is_causal=True, impl="triton")
    attention.check(
        out,
        lambda q, k, v, t: attention.plain(q, k, v, attention.causal(35, 40), lambda x: x + t)[
            "out"
        ],
        (*tensors, bias),
    )


@pytest.mark.parametrize(("q_offset", "k_offset"), [(0, 0), (1, 0), (16, 0), (30, 7), (0, 9)])
def test_offsets(q_offset: int, k_offset: int, small_tiles: None) -> None:
    """Chunks against a cache whose unused end holds NaN; rows that see no key yet."""
    tensors = attention.inputs(1, 2, 1, 19, 53, 16, dtype=torch.float32)
    i, j = torch.arange(19)[:, None] + q_offset, torch.arange(53) + k_offset
    for mask, seen in (
        (fr.masks.causal, i >= j),
        (fr.masks.causal & fr.masks.window(9, 0), (i >= j) & (i - j <= 9)),
    ):
        kv = [t.detach().clone() for t in tensors[1:]]
        for t in kv:
            t[:, :, ~seen.any(0)] = NAN
        given = [t.requires_grad_() for t in (tensors[0], *kv)]
        options = {"q_offset": q_offset, "k_offset": k_offset, "enable_gqa": True}
        out = fr.attention(*given, mask=mask, impl="triton", **options)
        right, rough = (
            attention.plain(*(t.detach().to(d) for t in tensors), seen)["out"]
            for d in (torch.float64, torch.float32)
        )
        require_near(out.detach(), right, rough, 2)
        grads = torch.autograd.grad(out.sum(), given)
        assert all(torch.isfinite(g).all() for g in grads)


# ---- scores at the edges -------------------------------------------------------------------------

LOWEST = torch.finfo(torch.float32).min
EDGES = {
    "lowest": lambda t: lambda s, b, h, i, j: s * 0 + LOWEST,
    "lowest but one": lambda t: lambda s, b, h, i, j: torch.where(j == 2, s, LOWEST),
    "far below": lambda t: lambda s, b, h, i, j: s - 1000.0,
    "below exp": lambda t: lambda s, b, h, i, j: s - 120.0,
    "far above": lambda t: lambda s, b, h, i, j: s + 1000.0,
    "minus infinity": lambda t: lambda s, b, h, i, j: torch.where(i == 1, -INF, s),
}


@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("mask", [None, "some rows"])
@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str, mask: str | None, dtype: torch.dtype) -> None:
    case = Case(name, reductions.SoftmaxSum, ("out", "lse"), EDGES[name],
                None if mask is None else pairs.MASKS[mask])  # fmt: skip
    a = arguments(case, sizes(19, 21, B=1), dtype)
    for gauged in (False,) if "lowest" in name else (False, None):
        check(case, a, SMALL, gauged=gauged, by=PRINTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_all_scores_negative(dtype: torch.dtype, small_tiles: None) -> None:
    """Reports S06 and S07: every lse below -88.7."""
    q, k, v = attention.inputs(1, 2, 2, 33, 35, 16, dtype=dtype)
    tensors = [t.requires_grad_() for t in (q.detach().abs() + 5, -k.detach().abs() - 5, v)]
    for mask in (None, torch.ones(33, 35, dtype=torch.bool), fr.masks.causal_bottom_right):
        seen = None if mask is not fr.masks.causal_bottom_right else (
            torch.arange(33)[:, None] + 2 >= torch.arange(35))  # fmt: skip
        out, more = fr.attention(*tensors, mask=mask, aux=("lse",), impl="triton")
        assert (more["lse"] < -88.7).all()
        attention.check(out, lambda *a, s=seen: attention.plain(*a, s)["out"], tensors)


def test_large_scores_do_not_overflow(small_tiles: None) -> None:
    for n in (1, 2, 5, 17, 33):
        q, k, v = attention.inputs(1, 2, 2, n, n, 16, dtype=torch.float16, spread=3.0)
        out = fr.attention(5 * q, 3 * k, v, impl="triton")
        grads = torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
        assert all(torch.isfinite(t).all() for t in (out, *grads))


def test_float32_keeps_its_digits_at_large_scores(small_tiles: None) -> None:
    """Scores reach 50: a reference that is rounded once more costs 3e-6 of every weight."""
    tensors = attention.inputs(1, 2, 2, 33, 35, 16, dtype=torch.float32, spread=3.5)
    out = fr.attention(*tensors, impl="triton")
    attention.check(out, lambda *a: attention.plain(*a)["out"], tensors)


# ---- how tensors lie -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("before", [1, 4])
def test_tensors_that_are_not_contiguous(before: int, dtype: torch.dtype) -> None:
    """Bases and rows off the 16 bytes that the hardware copies want; NaN in the gaps."""
    case = scored(SOFTMAX, "bias", "causal")
    a = arguments(case, sizes(19, 21, group=2), dtype)
    turned = replace(
        a, q=strided(a.q, before), k=strided(a.k, before), v=strided(a.v, before),
        tables={n: t.t().contiguous().t() for n, t in a.tables.items()},
    )  # fmt: skip
    ups = {"out": strided(pairs.random(2, 2, 19, 8).to(dtype), before),
           "lse": pairs.random(19, 2, 2).float().permute(2, 1, 0)}  # fmt: skip
    check(case, turned, SMALL, right_of=a, ups=ups, by=PRINTED)


def test_tensors_with_stride_0() -> None:
    case = masked(SOFTMAX, "causal")
    a = arguments(case, sizes(19, 21), torch.float32)
    repeated = replace(
        a, q=a.q[:, :1].expand_as(a.q), k=a.k[:1].expand_as(a.k), v=a.v[..., :1].expand_as(a.v)
    )
    one = torch.ones(())
    ups = {"out": one.expand(2, 2, 19, 8), "lse": one.expand(2, 2, 19)}
    check(case, repeated, SMALL, ups=ups, by=PRINTED)


def test_one_storage_for_all(small_tiles: None) -> None:
    """Report S27: q, k and v are views of one packed projection."""
    packed = torch.randn(2, 21, 3, 2, 8, requires_grad=True)

    def function(t: Tensor) -> Tensor:
        return attention.plain(*(x.transpose(1, 2) for x in t.unbind(2)))["out"]

    out = fr.attention(*(x.transpose(1, 2) for x in packed.unbind(2)), impl="triton")
    attention.check(out, lambda t: function(t), (packed,))


# ---- statistics, sinks, states -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lse", "entropy", "max_logit"])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_statistics(name: str, with_sinks: bool, small_tiles: None) -> None:
    """Reports S39 to S42."""
    q, k, v = attention.inputs(2, 3, 3, 19, 21, dtype=torch.float32)
    sinks = (torch.randn(3, requires_grad=True),) if with_sinks else ()

    def function(q: Tensor, k: Tensor, v: Tensor, s: Tensor | None = None) -> Tensor:
        x = q @ k.mT / q.shape[-1] ** 0.5
        if s is not None:
            x = torch.cat([x, s[:, None, None].expand(*x.shape[:-1], 1)], -1)
        p = x.softmax(-1)
        found = {"lse": x.logsumexp(-1), "max_logit": x.amax(-1),
                 "entropy": -(p * x.log_softmax(-1)).sum(-1)}  # fmt: skip
        return (p[..., : v.shape[2]] @ v).sum(-1) + found[name]

    out, more = fr.attention(q, k, v, aux=(name,), sinks=sinks[0] if sinks else None, impl="triton")
    attention.check(out.sum(-1) + more[name], function, (q, k, v, *sinks))


@pytest.mark.parametrize("R", [reductions.SoftmaxSum, reductions.LogSumExp, reductions.Welford],
                         ids=lambda R: R.__name__)  # fmt: skip
def test_pieces_merge_to_the_whole(R: Any, small_tiles: None) -> None:
    q, k, v = attention.inputs(1, 2, 2, 19, 40, 8, dtype=torch.float32)
    payload = R.record.payloads

    def call(at: slice, **more: Any) -> Any:
        given = {"v": v[:, :, at]} if payload else {}
        mask = fr.masks.causal
        return fr.pairwise(R, q, k[:, :, at], mask=mask, impl="triton", **given, **more)

    whole = call(slice(None))
    _, state = call(slice(0, 17), return_state=True)
    merged = call(slice(17, None), k_offset=17, seed=state)
    names = whole if isinstance(whole, dict) else {"": whole}
    merged = merged if isinstance(merged, dict) else {"": merged}
    for n, w in names.items():
        torch.testing.assert_close(merged[n], w, rtol=1e-5, atol=1e-5, equal_nan=True)
    pairs_of = [(whole, merged if isinstance(whole, dict) else merged[""])]
    for w, m in pairs_of:
        sums = [sum(t.nan_to_num(0, 0, 0).square().sum() for t in (x.values() if isinstance(x, dict)
                else (x,))) for x in (w, m)]  # fmt: skip
        wanted = (q, k, v) if payload else (q, k)
        for a, b in zip(*(torch.autograd.grad(s, wanted) for s in sums), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
