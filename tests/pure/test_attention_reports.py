"""Public reports about attention, restated; the numbers are those of the shared list of cases."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from tests.attention import causal, check, inputs, plain

INF = float("inf")
LOWEST = torch.finfo(torch.float32).min
near = torch.testing.assert_close


def grads(out, tensors, up=None):
    return torch.autograd.grad(out, tensors, torch.randn_like(out) if up is None else up)


def test_rows_that_see_nothing() -> None:
    """S01, S07: 0, -inf, gradients 0 there and exact elsewhere."""
    q, k, v = inputs(1, 1, 1, 8, 8, 4, dtype=torch.float32)
    seen = torch.ones(8, 8, dtype=torch.bool)
    seen[5:] = False
    out, more = fr.attention(q, k, v, mask=seen, aux=("lse", "entropy"))
    assert (out[0, 0, 5:] == 0).all()
    assert (more["lse"][0, 0, 5:] == -INF).all()
    assert (more["entropy"][0, 0, 5:] == 0).all()
    check(out, lambda *a: plain(*a, seen)["out"], (q, k, v))
    out = fr.attention(q, k, v, mask=seen)
    assert (grads(out, (q, k, v))[0][0, 0, 5:] == 0).all()


@pytest.mark.parametrize("poison", [float("nan"), INF, 1e10])
def test_what_nobody_sees_may_hold_anything(poison) -> None:
    """S02: same as without that key, forward and backward."""
    q, k, v = inputs(1, 2, 2, 4, 5, 4, dtype=torch.float32)
    bad_k, bad_v = k.detach().clone(), v.detach().clone()
    bad_k[:, :, 1], bad_v[:, :, 1] = poison, poison
    bad_k.requires_grad_(), bad_v.requires_grad_()
    keep = torch.tensor([0, 2, 3, 4])
    seen = torch.ones(4, 5, dtype=torch.bool)
    seen[:, 1] = False
    out = fr.attention(q, bad_k, bad_v, mask=seen)
    right = fr.attention(q, k[:, :, keep], v[:, :, keep])
    near(out, right)
    up = torch.randn_like(out)
    got, want = grads(out, (q, bad_k, bad_v), up), grads(right, (q, k, v), up)
    near(got[0], want[0])
    near(got[1][:, :, keep], want[1][:, :, keep])
    near(got[2][:, :, keep], want[2][:, :, keep])
    assert all((t[:, :, 1] == 0).all() for t in got[1:])


@pytest.mark.parametrize("lowest", [LOWEST, -INF])
def test_a_first_tile_that_is_masked(lowest) -> None:
    """S03: an additive mask of the lowest number, or -inf, over the first 128 keys."""
    tensors = inputs(1, 2, 2, 21, 441, 16, dtype=torch.float32)
    mask = torch.zeros(1, 1, 1, 441)
    mask[..., :128] = lowest
    check(fr.attention(*tensors, mask=mask), lambda *a: plain(*a, score=lambda x: x + mask)["out"],
          tensors)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_one_key_has_all_the_weight(dtype) -> None:
    """S04: nothing flows to q and k but rounding."""
    tensors = inputs(1, 1, 1, 1, 1, 16, dtype=dtype, spread=3.0)
    got = grads(fr.attention(*tensors), tensors, torch.ones(1, 1, 1, 16, dtype=dtype))
    assert all(torch.isfinite(t).all() for t in got)
    assert all(float(t.detach().abs().max()) < 1e-3 for t in got[:2])


@pytest.mark.parametrize("S", [64, 192, 704])
def test_all_scores_far_below_zero(S) -> None:
    """S06, S07: lse below -88, an explicit mask of True."""
    q, k, v = inputs(1, 2, 2, S, S, 32, dtype=torch.bfloat16)
    q, k = (t.detach() * 0.1 + c for t, c in ((q, 4.6), (k, -4.6)))
    tensors = [t.detach().requires_grad_() for t in (q, k, v)]
    mask = torch.ones(S, S, dtype=torch.bool)
    out, more = fr.attention(*tensors, mask=mask, aux=("lse",))
    assert (more["lse"] < -88.7).all()
    check(out, lambda *a: plain(*a)["out"], tensors)


@pytest.mark.parametrize("S", [257, 1025])
def test_lengths_that_no_block_divides(S) -> None:
    """S08, S09: with a score of positions and a mask."""
    tensors = inputs(1, 1, 1, S, S, 16, dtype=torch.bfloat16)
    shift = torch.arange(S)[:, None] - torch.arange(S)
    got = fr.attention(*tensors, score_mod=lambda s, b, h, i, j: s + (i - j), is_causal=True)
    function = lambda *a: plain(*a, causal(S, S), lambda x: x + shift.to(x.dtype))["out"]
    check(got, function, tensors, saturated=True)


def test_packed_sequences_with_a_tail() -> None:
    """S10, S11, S13: empty segments; positions in no segment get 0, forward and backward."""
    q, k, v = inputs(1, 2, 2, 11, 13, 8)
    ends_q, ends_k = torch.tensor([0, 3, 3, 9]), torch.tensor([0, 4, 6, 11])
    out = fr.attention(q, k, v, mask=fr.masks.cu_seqlens(ends_q, ends_k))
    right = torch.cat([
        F.scaled_dot_product_attention(q[:, :, :3], k[:, :, :4], v[:, :, :4]),
        F.scaled_dot_product_attention(q[:, :, 3:9], k[:, :, 6:11], v[:, :, 6:11]),
        torch.zeros(1, 2, 2, 8, dtype=q.dtype),
    ], 2)  # fmt: skip
    near(out, right)
    up = torch.randn_like(out)
    near(grads(out, (q, k, v), up), grads(right, (q, k, v), up))


@pytest.mark.parametrize(("B", "Sq", "Sk"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_empty_workloads(B, Sq, Sk) -> None:
    """S12, S14: empty or 0, with gradients of the right shapes."""
    tensors = inputs(B, 2, 1, Sq, Sk, 8, dtype=torch.bfloat16)
    out, more = fr.attention(*tensors, enable_gqa=True, aux=("lse",))
    assert out.shape == (B, 2, Sq, 8)
    assert (out == 0).all()
    assert (more["lse"] == -INF).all()
    found = grads(out, tensors)
    assert [g.shape for g in found] == [t.shape for t in tensors]
    assert all((g == 0).all() for g in found)


def test_more_queries_than_keys() -> None:
    """S15, S16: bottom-right alignment leaves the first queries without a key."""
    tensors = inputs(1, 2, 2, 12, 5)
    out, more = fr.attention(*tensors, mask=fr.masks.causal_bottom_right, aux=("lse",))
    assert (out[:, :, :7] == 0).all()
    assert (more["lse"][:, :, :7] == -INF).all()
    seen = torch.arange(12)[:, None] - 7 >= torch.arange(5)
    check(out, lambda *a: plain(*a, seen)["out"], tensors)


@pytest.mark.parametrize(("B", "Sq"), [(8300, 1), (65536, 1)])
def test_many_small_batches(B, Sq) -> None:
    """S19, S21, S22, S23."""
    q, k, v = inputs(B, 1, 1, Sq, Sq, 4, dtype=torch.float16)
    near(fr.attention(q, k, v), v)


def test_gradients_that_lie_anyhow() -> None:
    """S24, S25, S26: permuted and stride-0 gradients, a q that is a view."""
    q, k, v = inputs(2, 4, 1, 6, 7)
    strided = q.transpose(1, 2).contiguous().transpose(1, 2)
    out = fr.attention(strided, k, v, enable_gqa=True)
    up = torch.randn(6, 2, 16, 4, dtype=torch.float64).permute(1, 3, 0, 2)
    for u in (up, torch.ones((), dtype=torch.float64).expand(out.shape)):
        right = plain(q, k, v)["out"]
        got = torch.autograd.grad(out, (q, k, v), u, retain_graph=True)
        near(got, grads(right, (q, k, v), u))


def test_one_tensor_three_times() -> None:
    """S27: packed projections, and q = k = v."""
    packed = torch.randn(2, 9, 3, 4, 8, dtype=torch.float64, requires_grad=True)
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    out, right = fr.attention(q, k, v), F.scaled_dot_product_attention(q, k, v)
    up = torch.randn_like(out)
    near(out, right)
    near(grads(out, packed, up), grads(right, packed, up))
    near(fr.attention(q, q, q), F.scaled_dot_product_attention(q, q, q))


@pytest.mark.parametrize(
    ("D", "DV"), [(31, 31), (72, 72), (88, 88), (192, 128), (1, 3), (512, 512)]
)
def test_any_width(D, DV) -> None:
    """S28, S29, S30, S31."""
    tensors = inputs(1, 2, 2, 4, 7, D, DV, torch.float32)
    check(fr.attention(*tensors), lambda *a: plain(*a)["out"], tensors)


def test_a_long_window_is_linear_in_memory() -> None:
    """S36: no S x S anywhere; 48000 queries and keys, a window of 9."""
    S = 48000
    q, k, v = (torch.randn(1, 1, S, 4) for _ in range(3))
    out = fr.attention(q, k, v, mask=fr.masks.window(8, 0))
    part = slice(S // 2, S // 2 + 20)
    around = slice(S // 2 - 8, S // 2 + 20)
    seen = (shift := torch.arange(8, 28)[:, None] - torch.arange(28)) >= 0
    right = plain(q[:, :, part], k[:, :, around], v[:, :, around], seen & (shift <= 8))["out"]
    near(out[:, :, part], right, atol=1e-5, rtol=1e-5)


def test_an_additive_mask_of_any_strides() -> None:
    """S44: a row stride of 43, 77 keys sliced from 80."""
    tensors = inputs(1, 2, 2, 5, 77, 16, dtype=torch.float16)
    for wide in (torch.randn(1, 2, 5, 80, dtype=torch.float16), torch.randn(5, 2, 83).half()[:, 0]):
        mask = wide[..., :77]
        function = lambda *a, m=mask: plain(*a, score=lambda x: x + m)["out"]
        check(fr.attention(*tensors, mask=mask), function, tensors)


def test_what_a_window_holds() -> None:
    """S47: window(w - 1, 0) with causal sees min(i + 1, w) keys."""
    q, k = torch.zeros(1, 1, 9, 4), torch.zeros(1, 1, 9, 4)
    lse = fr.pairwise(fr.reductions.LogSumExp, q, k, mask=fr.masks.window(3, 0))
    near(lse.exp()[0, 0], torch.arange(1, 10).clamp(max=4).float())


def test_documents_without_a_zero() -> None:
    """S48: boundaries are where ids change, wherever they begin."""
    ids = torch.tensor([7, 7, 9, 9, 9])
    tensors = inputs(1, 2, 2, 5, 5)
    got = fr.attention(*tensors, mask=fr.masks.document(ids) & fr.masks.causal)
    near(got, plain(*tensors, (ids[:, None] == ids) & causal(5, 5))["out"])
