"""fr.attention and ops.scaled_dot_product_attention against plain PyTorch, by tiles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce.masks import causal as causal_mask
from tests.attention import causal, check, inputs, plain

INF = float("inf")


# ---- as torch's own ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8), (1, 2, 2, 3, 5, 8)])
def test_any_number_of_batch_dimensions(shape) -> None:
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    for mask in (None, torch.rand(5, 5) > 0.3, torch.randn(*shape[:-1], 5, dtype=torch.float64)):
        got = fr.ops.scaled_dot_product_attention(q, k, v, mask, scale=0.3)
        torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v, mask, scale=0.3))


# ---- the protocol of FlashAttention's tests, small -----------------------------------------------

LENGTHS = [(1, 1), (64, 128), (3, 239), (113, 203), (128, 217), (108, 256), (127, 512)]
KINDS = ["full", "causal", "bottom right", "window", "bias", "softcap"]


def kind_of(kind: str, Sq: int, Sk: int):
    """(arguments, who sees whom, the score) of one kind."""
    i, j = torch.arange(Sq)[:, None], torch.arange(Sk)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    return {
        "full": ({}, None, None),
        "causal": ({"is_causal": True}, i >= j, None),
        "bottom right": ({"mask": fr.masks.causal_bottom_right}, i + Sk - Sq >= j, None),
        "window": ({"mask": fr.masks.window(17, 5)}, (j >= i - 17) & (j <= i + 5), None),
        "bias": (
            {"score_mod": lambda s, b, h, i, j: s - slopes[h] * torch.abs(i - j)},
            None,
            lambda x: x - slopes.to(x)[:, None, None] * (i - j).abs(),
        ),
        "softcap": (
            {"score_mod": lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0), "is_causal": True},
            i >= j,
            lambda x: 2.0 * torch.tanh(x / 2.0),
        ),
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("Sq", "Sk"), LENGTHS)
def test_protocol(Sq, Sk, kind) -> None:
    arguments, seen, score = kind_of(kind, Sq, Sk)
    for dtype, Hk, D, DV in ((torch.bfloat16, 4, 59, 59), (torch.float16, 2, 40, 24),
                             (torch.float32, 1, 32, 64)):  # fmt: skip
        tensors = inputs(1, 4, Hk, Sq, Sk, D, DV, dtype)
        got, more = fr.attention(*tensors, enable_gqa=True, aux=("lse",), **arguments)
        function = lambda *a: plain(*a, seen, score)["out"]
        check(got, function, tensors, (kind, dtype), saturated=Sk == 1)
        assert got.dtype == dtype
        assert more["lse"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_large_scores_do_not_overflow(dtype) -> None:
    for n in (1, 2, 5, 17, 128):
        q, k, v = inputs(2, 2, 2, n, n, 16, dtype=dtype, spread=3.0)
        out = fr.attention(5 * q, 3 * k, v)
        grads = torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
        assert all(torch.isfinite(t).all() for t in (out, *grads))


# ---- statistics, sinks, grouped heads ------------------------------------------------------------


def statistics(q, k, v, sinks=None):
    x = q @ k.mT / q.shape[-1] ** 0.5
    if sinks is not None:
        x = torch.cat([x, sinks[:, None, None].expand(*x.shape[:-1], 1)], -1)
    p = x.softmax(-1)
    entropy = -(p * x.log_softmax(-1)).sum(-1)
    out = p[..., : v.shape[2]] @ v
    return {"out": out, "lse": x.logsumexp(-1), "entropy": entropy, "max_logit": x.amax(-1)}


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("names", [("lse",), ("entropy",), ("max_logit",),
                                   ("lse", "max_logit", "entropy")], ids=str)  # fmt: skip
def test_statistics_are_differentiable(names, with_sinks) -> None:
    """Reports S39 and S40: more results from the same pass, with gradients of their own."""
    tensors = inputs(2, 3, 3, 7, 9, dtype=torch.float32)
    sinks = (torch.randn(3, requires_grad=True),) if with_sinks else ()
    _, more = fr.attention(*tensors, sinks=sinks[0] if sinks else None, aux=names)
    assert tuple(more) == names
    used = (*tensors[:2], *sinks)
    for name in names:
        function = lambda q, k, *s, name=name: statistics(q, k, tensors[2].to(q), *s)[name]
        _, more = fr.attention(*tensors, sinks=sinks[0] if sinks else None, aux=names)
        check(more[name], function, used, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_learned_sinks(dtype) -> None:
    """Reports S41 and S42: a virtual key, with the gradient of out and lse together."""
    tensors = (*inputs(2, 4, 4, 8, 8, dtype=dtype), torch.randn(4, dtype=dtype, requires_grad=True))
    check(fr.attention(*tensors[:3], sinks=tensors[3]), lambda *a: statistics(*a)["out"], tensors)
    q, k, v = inputs(1, 2, 2, 3, 1)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)
    out, more = fr.attention(q, k[:, :, :0], v[:, :, :0], sinks=sinks, aux=("lse",))
    assert (out == 0).all()
    torch.testing.assert_close(more["lse"], sinks[None, :, None].expand(1, 2, 3))
    (slope,) = torch.autograd.grad(more["lse"].sum(), sinks)
    torch.testing.assert_close(slope, torch.full_like(slope, 3.0))


def test_a_sink_of_minus_infinity_is_no_key() -> None:
    q, k, v = inputs()
    none = torch.full((4,), -INF, dtype=torch.float64)
    torch.testing.assert_close(fr.attention(q, k, v, sinks=none), fr.attention(q, k, v))
    empty = fr.attention(q, k[:, :, :0], v[:, :, :0], sinks=none)
    assert (empty == 0).all()


@pytest.mark.parametrize(("heads", "shared"), [(12, 2), (16, 1), (9, 3)])
def test_grouped_heads(heads, shared) -> None:
    """Reports S17 and S18: any group."""
    tensors = inputs(1, heads, shared, 1, 33, 16, dtype=torch.float32)
    check(fr.attention(*tensors, enable_gqa=True), lambda *a: plain(*a)["out"], tensors)
    check(fr.ops.scaled_dot_product_attention(*tensors, enable_gqa=True),
          lambda *a: plain(*a)["out"], tensors)  # fmt: skip


def test_another_reduction() -> None:
    """Attention with squared weights: w = exp(2 (x - m)), whatever declares `out`."""

    class Sharper(fr.Reduction):
        v = fr.Payload()
        empty = {"out": 0.0, "mass": 0.0}
        m = fr.Max(lambda x: x)
        s = fr.Sum(lambda x, m: torch.exp(2.0 * (x - m)))
        o = fr.Sum(lambda x, m, v: torch.exp(2.0 * (x - m)) * v)

        def finish(m, s, o):
            return {"out": o / s, "mass": s}

    tensors = inputs(1, 2, 2, 5, 6, dtype=torch.float32)
    got, more = fr.attention(*tensors, reduction=Sharper, aux="mass")
    check(got, lambda *a: plain(*a, score=lambda x: 2.0 * x)["out"], tensors)
    assert more["mass"].shape == (1, 2, 5)


# ---- masks in every form -------------------------------------------------------------------------


def test_a_mask_in_every_form_says_the_same() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    q, k, v = inputs(2, 4, 4, 40, 40)
    right = plain(q, k, v, causal(40, 40))["out"]
    rule = lambda b, h, i, j: i >= j
    block = create_block_mask(rule, None, None, 40, 40, device="cpu", BLOCK_SIZE=16)
    additive = torch.zeros(40, 40, dtype=torch.float64).masked_fill(~causal(40, 40), -INF)
    for mask in (causal_mask, rule, fr.mask(rule), causal(40, 40), additive, block,
                 causal(40, 40)[None], causal(40, 40)[None, None]):  # fmt: skip
        torch.testing.assert_close(fr.attention(q, k, v, mask=mask), right)
    both = fr.attention(q, k, v, mask=fr.masks.window(3, 3), is_causal=True)
    torch.testing.assert_close(both, fr.attention(q, k, v, mask=fr.masks.window(3, 0)))


def test_an_additive_mask_and_captured_tensors_get_gradients() -> None:
    """Report S43 too: a learned 0-d scalar, biases by head and distance."""
    tensors = inputs(2, 4, 4, 6, 7, dtype=torch.float32)
    slope = torch.randn((), requires_grad=True)
    bias, extra = (
        torch.randn(4, 13, requires_grad=True),
        torch.randn(2, 1, 6, 7, requires_grad=True),
    )
    i, j = torch.arange(6)[:, None], torch.arange(7)
    score = lambda s, b, h, i, j: s * slope + bias[h, i - j + 6]
    got = fr.attention(*tensors, score_mod=score, mask=extra)
    function = lambda q, k, v, c, t, e: plain(q, k, v, None, lambda x: x * c + t[:, i - j + 6] + e)[
        "out"
    ]
    check(got, function, (*tensors, slope, bias, extra))


def test_offsets_are_pieces_of_the_whole() -> None:
    q, k, v = inputs(1, 2, 2, 12, 12)
    score = fr.score(lambda s, b, h, i, j: s - 0.1 * (i - j))
    arguments = {"mask": fr.masks.causal & fr.masks.window(4, 0), "score_mod": score}
    whole = fr.attention(q, k, v, **arguments)
    piece = fr.attention(q[:, :, 7:], k, v, q_offset=7, **arguments)
    torch.testing.assert_close(piece, whole[:, :, 7:])
    seen = causal(12, 12)[7:]  # a tensor is of the pairs of this call
    torch.testing.assert_close(
        fr.attention(q[:, :, 7:], k, v, mask=seen, q_offset=7),
        fr.attention(q, k, v, is_causal=True)[:, :, 7:],
    )
    late = fr.attention(q[:, :, 9:], k[:, :, 5:], v[:, :, 5:], q_offset=9, k_offset=5, **arguments)
    torch.testing.assert_close(late, whole[:, :, 9:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("low", [-INF, -3.0, 2.0, 30.0])
def test_sinks_in_16_bits(dtype, low) -> None:
    """As in float64, of small and large sinks, of queries that see nothing."""
    tensors = inputs(2, 4, 2, 9, 12, 16, dtype=dtype)
    sinks = torch.randn(4).clamp(max=1.0).add(low).requires_grad_(low > -INF)
    mask = lambda b, h, i, j: (i != 3) & (j <= i + 2)
    options = {"mask": mask, "enable_gqa": True, "aux": ("lse",)}
    wide = [t.detach().double().requires_grad_() for t in (*tensors, sinks)]
    out, more = fr.attention(*tensors, sinks=sinks, **options)
    right, states = fr.attention(*wide[:3], sinks=wide[3], **options)
    assert out.dtype == dtype
    assert more["lse"].dtype == torch.float32
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), right, atol=4 * eps, rtol=4 * eps)
    torch.testing.assert_close(more["lse"].double(), states["lse"], atol=1e-5, rtol=1e-5)
    assert (out[:, :, 3] == 0).all()
    if not sinks.requires_grad:
        return
    up, slope = torch.randn_like(right), torch.randn_like(states["lse"])
    found = torch.autograd.grad(
        (out, more["lse"]), (*tensors, sinks), (up.to(dtype), slope.float())
    )
    wanted = torch.autograd.grad((right, states["lse"]), wide, (up, slope))
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.double(), w, atol=16 * eps, rtol=16 * eps)


def test_sinks_of_another_declaration_in_16_bits() -> None:
    """One that keeps more than its results say."""
    tensors = inputs(1, 2, 2, 5, 7, 8, dtype=torch.bfloat16)
    sinks = torch.randn(2)
    out, more = fr.attention(*tensors, sinks=sinks, aux=("entropy",))
    right = statistics(*(t.detach().double() for t in tensors), sinks.double())
    torch.testing.assert_close(out.double(), right["out"], atol=0.03, rtol=0.03)
    torch.testing.assert_close(more["entropy"].double(), right["entropy"], atol=1e-4, rtol=1e-4)
