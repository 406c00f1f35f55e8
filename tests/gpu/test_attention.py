"""fr.attention by printed kernels on the device: the protocol of FlashAttention's tests, full size.

The error against float64 is held to 2 (forward) and 3 (backward) times that of plain PyTorch in the
same precision, which has the scale on k: the operations in another order, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from tests import printing
from tests.accuracy import require_near
from tests.attention import causal, plain

LENGTHS = [
    (1, 1), (3, 3), (64, 1), (64, 128), (128, 192), (239, 1), (799, 3), (3, 799), (113, 203),
    (128, 217), (108, 256), (127, 512), (256, 512), (512, 256), (640, 128), (1024, 1024),
    (1023, 1024), (1024, 1023), (2048, 2048),
]  # fmt: skip
KINDS = ("full", "causal", "window", "documents", "softcap", "alibi")
HALF = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


def inputs(
    device: torch.device, B: int, H: int, Hk: int, Sq: int, Sk: int, D: int, DV: int,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    shapes = ((B, H, Sq, D), (B, Hk, Sk, D), (B, Hk, Sk, DV))
    return tuple(torch.randn(s, device=device).to(dtype).requires_grad_() for s in shapes)


def kind_of(kind: str, Sq: int, Sk: int, H: int, device: torch.device) -> tuple[Any, ...]:
    """(arguments, who sees whom, the score) of one kind."""
    i, j = torch.arange(Sq, device=device)[:, None], torch.arange(Sk, device=device)
    ids = torch.arange(max(Sq, Sk), device=device) // 100
    slopes = 2.0 ** -torch.arange(1, H + 1, device=device)
    return {
        "full": ({}, None, None),
        "causal": ({"is_causal": True}, i >= j, None),
        "window": ({"mask": fr.masks.window(70, 5)}, (j >= i - 70) & (j <= i + 5), None),
        "documents": ({"mask": fr.masks.document(ids)}, ids[i] == ids[j], None),
        "softcap": (
            {"score_mod": lambda s, b, h, i, j: 15.0 * torch.tanh(s / 15.0), "is_causal": True},
            i >= j, lambda x: 15.0 * torch.tanh(x / 15.0),
        ),
        "alibi": (
            {"score_mod": lambda s, b, h, i, j: s - slopes[h] * torch.abs(i - j)}, None,
            lambda x: x - slopes.to(x)[:, None, None] * (i - j).abs(),
        ),
    }[kind]  # fmt: skip


def reordered(q: Tensor, k: Tensor, v: Tensor, seen: Any, score: Any) -> Tensor:
    """Plain PyTorch with the scale on k."""
    return plain(q, k * q.shape[-1] ** -0.5, v, seen, score, scale=1.0)["out"]


def check(
    tensors: tuple[Tensor, ...], arguments: dict[str, Any], seen: Any = None, score: Any = None,
    up: Callable[[Tensor], Tensor] = torch.randn_like, what: Any = "",
) -> None:  # fmt: skip
    out = fr.attention(*tensors, enable_gqa=True, impl="triton", **arguments)
    d = up(out)
    found = torch.autograd.grad(out, tensors, d)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    right = plain(*wide, seen, score)["out"]
    exact = torch.autograd.grad(right, wide, d.double())
    rough = reordered(*tensors, seen, score)
    unfused = torch.autograd.grad(rough, tensors, d.to(rough.dtype))
    require_near(out.detach(), right.detach(), rough.detach().to(out.dtype), 2, what)
    noise = 0.0
    if tensors[1].shape[2] <= 3:  # probabilities of 1: d score is a difference of equal terms
        size = float(d.double().norm(dim=-1).max() * wide[2].detach().norm(dim=-1).max())
        factor = max(float(t.detach().abs().max()) for t in wide[:2]) / wide[0].shape[-1] ** 0.5
        noise = 2 * torch.finfo(out.dtype).eps * size * max(1.0, factor)
    for n, triple in enumerate(zip(found, exact, unfused, strict=True)):
        require_near(*triple, 3, (what, f"gradient {n}"), noise)


# ---- the protocol --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("Sq", "Sk"), LENGTHS)
def test_lengths(Sq: int, Sk: int, kind: str, device: torch.device) -> None:
    arguments, seen, score = kind_of(kind, Sq, Sk, 6, device)
    for dtype, Hk, D in ((torch.bfloat16, 6, 64), (torch.float16, 2, 128)):
        check(inputs(device, 2, 6, Hk, Sq, Sk, D, D, dtype), arguments, seen, score,
              what=(kind, dtype))  # fmt: skip


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("D", "DV"),
    [(d, d) for d in (32, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 224, 256)]
    + [(192, 128), (64, 256), (1, 8), (8, 1)],
)
def test_widths(D: int, DV: int, dtype: torch.dtype, device: torch.device) -> None:
    for kind in ("full", "causal"):
        arguments, seen, score = kind_of(kind, 257, 384, 4, device)
        check(inputs(device, 1, 4, 2, 257, 384, D, DV, dtype), arguments, seen, score, what=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("D", [32, 64, 128])
def test_float32(D: int, kind: str, device: torch.device) -> None:
    """IEEE products: as exact as plain PyTorch at the highest precision."""
    assert torch.get_float32_matmul_precision() == "highest"
    arguments, seen, score = kind_of(kind, 200, 333, 2, device)
    check(inputs(device, 1, 2, 1, 200, 333, D, D, torch.float32), arguments, seen, score)


def test_float64(device: torch.device) -> None:
    arguments, seen, score = kind_of("causal", 100, 133, 2, device)
    check(inputs(device, 1, 2, 1, 100, 133, 32, 32, torch.float64), arguments, seen, score)


@pytest.mark.parametrize(("heads", "shared"), [(8, 8), (12, 2), (16, 1), (9, 3), (64, 4)])
def test_grouped_heads(heads: int, shared: int, device: torch.device) -> None:
    """Reports S17 and S18: any group; one query too."""
    for Sq, Sk in ((1, 512), (300, 300)):
        check(inputs(device, 1, heads, shared, Sq, Sk, 64, 64, torch.bfloat16),
              {"is_causal": Sq > 1}, causal(Sq, Sk).to(device) if Sq > 1 else None)  # fmt: skip


# ---- how tensors lie -----------------------------------------------------------------------------


@pytest.mark.parametrize("before", [1, 8])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_strides_of_inputs_and_gradients(before: int, dtype: torch.dtype, device) -> None:
    """Reports S24 to S26: permuted views off the alignment, expanded gradients."""

    def view(S: int) -> Tensor:
        memory = torch.full((2, S, 4, 72 + before), float("nan"), device=device, dtype=dtype)
        t = memory[..., before : 64 + before].transpose(1, 2)
        t.copy_(torch.randn(t.shape, device=device))
        return t.requires_grad_()

    seen = causal(190, 250).to(device)
    tensors = (view(190), view(250), view(250))
    one = lambda out: torch.ones((), device=device, dtype=dtype).expand(out.shape)
    turned = lambda out: torch.randn_like(out).transpose(1, 2).contiguous().transpose(1, 2)
    halved = lambda out: torch.randn(2 * out.shape[0], *out.shape[1:], device=device,
                                     dtype=dtype)[::2]  # fmt: skip
    for up in (one, turned, halved):
        check(tensors, {"is_causal": True}, seen, up=up)


def test_one_storage_for_all(device: torch.device) -> None:
    packed = torch.randn(2, 300, 3, 4, 64, device=device, dtype=torch.bfloat16)
    check(tuple(t.transpose(1, 2).detach().requires_grad_() for t in packed.unbind(2)), {})


# ---- large and empty -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(65536, 2, 4, 64), (8300, 16, 1, 128), (2, 40000, 5, 32)])
def test_more_than_65535_heads(shape: tuple[int, ...], device: torch.device) -> None:
    """Reports S19 and S21 to S23: the last ones as if they were alone."""
    tensors = tuple(torch.randn(shape, device=device).half().requires_grad_() for _ in range(3))
    out = fr.attention(*tensors, is_causal=True, impl="triton")
    grads = torch.autograd.grad(out.sum(), tensors)
    last = tuple(t[-1:, -1:].detach().requires_grad_() for t in tensors)
    alone = fr.attention(*last, is_causal=True, impl="triton")
    assert torch.equal(out[-1:, -1:], alone)
    for g, a in zip(grads, torch.autograd.grad(alone.sum(), last), strict=True):
        assert torch.equal(g[-1:, -1:], a)


def test_more_than_two_to_the_31_elements(device: torch.device) -> None:
    """Report S20: the last batch has the bits of itself alone, forward and backward."""
    shape = (260, 16, 4100, 128)  # 2.18e9 elements, 4.4 GB each
    q = torch.empty(shape, device=device, dtype=torch.bfloat16)
    for part in q:
        part.normal_()
    q.requires_grad_()
    k, v = (torch.randn(260, 1, 64, 128, device=device).bfloat16().requires_grad_() for _ in "kv")
    out = fr.attention(q, k, v, enable_gqa=True, impl="triton")
    grads = torch.autograd.grad(out, (q, k, v), q.detach())
    last = tuple(t[-1:].detach().requires_grad_() for t in (q, k, v))
    alone = fr.attention(*last, enable_gqa=True, impl="triton")
    assert torch.equal(out[-1:], alone)
    up = last[0].detach()
    for g, a in zip(grads, torch.autograd.grad(alone, last, up), strict=True):
        assert torch.equal(g[-1:], a)


@pytest.mark.parametrize("empty", ["B", "Sq", "Sk"])
def test_nothing(empty: str, device: torch.device) -> None:
    """Reports S12 and S14."""
    n = dict(B=2, Sq=64, Sk=80) | {empty: 0}
    tensors = inputs(device, n["B"], 2, 2, n["Sq"], n["Sk"], 64, 64, torch.bfloat16)
    out, more = fr.attention(*tensors, aux=("lse",))
    assert not out.any()
    assert (more["lse"] == -float("inf")).all()
    assert all(not g.any() for g in torch.autograd.grad(out.sum(), tensors))


def test_packed_sequences_with_a_tail(device: torch.device) -> None:
    """Reports S10, S11 and S13: what no sequence owns may hold NaN, and its gradients are 0."""
    offsets = torch.tensor([0, 144, 144, 432, 944], device=device)
    q, k, v = inputs(device, 1, 4, 2, 1000, 1000, 64, 64, torch.bfloat16)
    with torch.no_grad():
        for t in (q, k, v):
            t[:, :, 944:] = float("nan")
    mask = fr.masks.cu_seqlens(offsets, within=fr.masks.causal)
    out = fr.attention(q, k, v, mask=mask, enable_gqa=True, impl="triton")
    grads = torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
    for t in (out, *grads):
        assert torch.isfinite(t).all()
        assert not t[:, :, 944:].any()
    for lo, hi in ((0, 144), (144, 432), (432, 944)):
        part = (t[:, :, lo:hi].detach() for t in (q, k, v))
        right = fr.attention(*part, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(out[:, :, lo:hi], right, rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize("n", [64, 192, 704, 832, 1088])
def test_all_scores_negative(n: int, device: torch.device) -> None:
    """Reports S06 and S07: an explicit mask, every lse below -88.7."""
    q, k, v = inputs(device, 1, 2, 2, n, n, 64, 64, torch.bfloat16)
    tensors = tuple(t.requires_grad_() for t in (q.detach().abs() + 4, -k.detach().abs() - 4, v))
    seen = torch.ones(n, n, dtype=torch.bool, device=device)
    _, more = fr.attention(*tensors, mask=seen, aux=("lse",))
    assert (more["lse"] < -88.7).all()
    check(tensors, {"mask": seen}, seen)


# ---- again and again -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "causal", "documents"])
def test_bits_repeat(kind: str, device: torch.device) -> None:
    """Report S54: out and every gradient of 50 runs, at other addresses each."""
    tensors = inputs(device, 4, 8, 2, 1000, 1100, 128, 128, torch.bfloat16)
    arguments, *_ = kind_of(kind, 1000, 1100, 8, device)
    up = torch.randn(4, 8, 1000, 128, device=device, dtype=torch.bfloat16)

    def run() -> list[Tensor]:
        out = fr.attention(*tensors, enable_gqa=True, impl="triton", **arguments)
        return [out, *torch.autograd.grad(out, tensors, up)]

    first, kept = run(), []
    for n in range(50):
        kept.append(torch.empty(1000 * (n % 7) + 1, device=device))
        assert all(map(torch.equal, first, run()))


@pytest.mark.parametrize("kind", ["causal", "documents"])
def test_graph_replay(kind: str, device: torch.device) -> None:
    """Report S37: replays see new inputs, those of a mask's tensor too."""
    torch.use_deterministic_algorithms(False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # all of it: leaves belong to the stream they are made on
        ids = torch.arange(600, device=device) // 100
        tensors = inputs(device, 2, 4, 2, 600, 600, 64, 64, torch.bfloat16)
        up = torch.randn(2, 4, 600, 64, device=device, dtype=torch.bfloat16)
        mask = fr.masks.causal
        mask = mask & fr.masks.document(ids) if kind == "documents" else mask

        def run() -> list[Tensor]:
            out = fr.attention(*tensors, mask=mask, enable_gqa=True, impl="triton")
            return [out, *torch.autograd.grad(out, tensors, up)]

        for _ in range(2):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = run()
        for n in (100, 37):
            with torch.no_grad():
                for t in (*tensors, up):
                    t.normal_()
            ids.copy_(torch.arange(600, device=device) // n)
            graph.replay()
            assert all(map(torch.equal, made, run()))


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_agree(kind: str, device: torch.device) -> None:
    """impl="tiles" runs on the device too; bits differ, values do not."""
    arguments, *_ = kind_of(kind, 150, 170, 4, device)
    tensors = inputs(device, 1, 4, 2, 150, 170, 64, 64, torch.float32)
    up = torch.randn(1, 4, 150, 64, device=device)
    answers = []
    for impl in ("triton", "tiles"):
        out = fr.attention(*tensors, enable_gqa=True, impl=impl, **arguments)
        answers.append([out, *torch.autograd.grad(out, tensors, up)])
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_offsets_one_after_another(device: torch.device) -> None:
    """One build serves every offset: 1 and multiples of 16 are no special cases of it."""
    q, k, v = inputs(device, 1, 2, 2, 64, 300, 64, 64, torch.bfloat16)
    j = torch.arange(300, device=device)
    for offset in (0, 1, 16, 17, 3, 160):
        out = fr.attention(q, k, v, mask=fr.masks.causal, q_offset=offset, impl="triton")
        seen = torch.arange(64, device=device)[:, None] + offset >= j
        wide = (t.detach().double() for t in (q, k, v))
        right, rough = plain(*wide, seen)["out"], reordered(q, k, v, seen, None)
        require_near(out.detach(), right, rough.detach(), 2, offset)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_another_device() -> None:
    """A build belongs to its device."""
    for d in (0, 1, 0, 1):
        device = torch.device("cuda", d)
        check(inputs(device, 1, 2, 2, 100, 100, 64, 64, torch.bfloat16), {})
