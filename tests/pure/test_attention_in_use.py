"""Attention as people write it elsewhere, by our functions and by plain PyTorch."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import and_masks, create_block_mask, or_masks
from torch.utils.checkpoint import checkpoint

import fusedreduce as fr
from tests.attention import causal, check, inputs, plain

near = torch.testing.assert_close


def same_gradients(got, right, tensors, **tolerance) -> None:
    up = torch.randn_like(got)
    one, two = (torch.autograd.grad(t, tensors, up) for t in (got, right))
    near(one, two, **tolerance)


def test_sliding_window_with_alibi() -> None:
    """Slopes made in a factory, a window and causality joined by torch's and_masks."""

    def alibi_of(heads):
        def alibi(score, b, h, q_idx, kv_idx):
            return score + (kv_idx - q_idx) * torch.exp2(-((h + 1) * 8.0 / heads))

        return alibi

    def causal_mask(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    def sliding_window(b, h, q_idx, kv_idx):
        return q_idx - kv_idx <= 7

    tensors = inputs(Sq=40, Sk=40)
    mask = and_masks(causal_mask, sliding_window)
    got = fr.attention(*tensors, mask=mask, score_mod=alibi_of(4))
    apart = torch.arange(40)[:, None] - torch.arange(40)
    slopes = torch.exp2(-(torch.arange(4) + 1.0) * 2)[:, None, None]
    seen = (apart >= 0) & (apart <= 7)
    check(got, lambda *a: plain(*a, seen, lambda x: x - slopes.to(x) * apart)["out"], tensors)
    near(got, fr.attention(*tensors, mask=fr.masks.window(7, 0), score_mod=alibi_of(4)))


def test_softcapped_scores_as_a_factory() -> None:
    def soft_cap(cap):
        def tanh(score, b, h, q_idx, kv_idx):
            return cap * torch.tanh(score / cap)

        return tanh

    tensors = inputs(spread=3.0)
    got = fr.attention(*tensors, score_mod=soft_cap(5.0), is_causal=True)
    right = lambda *a: plain(*a, causal(9, 9), lambda x: 5 * torch.tanh(x / 5))["out"]
    check(got, right, tensors)


def test_documents_of_a_packed_batch() -> None:
    """Each row of the batch is cut into documents of its own; a causal mask within them."""
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 2, 2]])

    def document_causal(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (ids[b, q_idx] == ids[b, kv_idx])

    tensors = inputs()
    seen = (ids[:, :, None] == ids[:, None, :])[:, None] & causal(9, 9)
    got = fr.attention(*tensors, mask=document_causal)
    check(got, lambda *a: plain(*a, seen)["out"], tensors)
    near(got, fr.attention(*tensors, mask=fr.masks.document(ids), is_causal=True))


def test_a_prefix_language_model() -> None:
    """Each row has a prefix of its own that is seen from both sides."""
    lengths = torch.tensor([3, 5])

    def prefix(b, h, q_idx, kv_idx):
        return kv_idx < lengths[b]

    def causal_mask(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    tensors = inputs()
    got = fr.attention(*tensors, mask=or_masks(prefix, causal_mask))
    seen = causal(9, 9) | (torch.arange(9) < lengths[:, None])[:, None, None]
    check(got, lambda *a: plain(*a, seen)["out"], tensors)
    near(got, fr.attention(*tensors, mask=fr.masks.prefix(lengths)))


def test_a_block_mask_made_by_torch() -> None:
    band = lambda b, h, i, j: (i >= j) & (i - j < 50)
    tensors = inputs(1, 2, Sq=200, Sk=200, dtype=torch.float32)
    got = fr.attention(*tensors, mask=create_block_mask(band, None, None, 200, 200, "cpu"))
    seen = band(0, 0, torch.arange(200)[:, None], torch.arange(200))
    check(got, lambda *a: plain(*a, seen)["out"], tensors)


def test_grouped_heads_with_a_key_padding_mask() -> None:
    """8 heads of queries share 2 of keys; a padding mask (B, S), True where a token is."""
    q, k, v = inputs(H=8, Hk=2, Sq=11, Sk=11)
    tokens = torch.arange(11) < torch.tensor([[11], [6]])
    for mask in (tokens[:, None, None], lambda b, h, i, j: tokens[b, j]):
        got = fr.attention(q, k, v, mask=mask, enable_gqa=True)
        right = F.scaled_dot_product_attention(q, k, v, tokens[:, None, None], enable_gqa=True)
        near(got, right)
        same_gradients(got, right, (q, k, v))


def test_jagged_sequences_by_offsets() -> None:
    """Sequences of 3, 1 and 6 tokens, packed (tokens, heads, width), queries fewer than keys."""
    q, k, v = (torch.randn(10, 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    offsets = torch.tensor([0, 3, 4, 10])
    batch = [t.transpose(0, 1)[None] for t in (q, k, v)]  # (1, H, tokens, D)
    got = fr.attention(*batch, mask=fr.masks.cu_seqlens(offsets, within=fr.masks.causal))
    parts = [t.transpose(0, 1).tensor_split(offsets[1:-1], 1) for t in (q, k, v)]
    each = [F.scaled_dot_product_attention(*p, is_causal=True) for p in zip(*parts, strict=True)]
    right = torch.cat(each, 1)[None]
    near(got, right)
    same_gradients(got, right, (q, k, v))


def test_a_learned_table_of_relative_positions() -> None:
    """T5's buckets: a table (heads, buckets) read at a bucket of i - j."""
    table = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)

    def relative(score, b, h, q_idx, kv_idx):
        return score + table[h, torch.clamp(q_idx - kv_idx, 0, 7)]

    tensors = inputs(Sq=20, Sk=20)
    got = fr.attention(*tensors, score_mod=relative, is_causal=True)
    apart = (torch.arange(20)[:, None] - torch.arange(20)).clamp(0, 7)
    right = plain(*tensors, causal(20, 20), lambda x: x + table[:, apart])["out"]
    near(got, right)
    same_gradients(got, right, (*tensors, table))


def test_swin_windows_with_a_bias_of_their_own() -> None:
    """A bias (heads, positions, positions), learned, and a mask of windows by `//`."""
    bias = torch.randn(4, 16, 16, dtype=torch.float64, requires_grad=True)
    tensors = inputs(Sq=64, Sk=64)
    got = fr.attention(
        *tensors, mask=lambda b, h, i, j: i // 16 == j // 16,
        score_mod=lambda s, b, h, i, j: s + bias[h, i % 16, j % 16],
    )  # fmt: skip
    seen = torch.arange(64)[:, None] // 16 == torch.arange(64) // 16
    right = plain(*tensors, seen, lambda x: x + bias.repeat(1, 4, 4))["out"]
    near(got, right)
    same_gradients(got, right, (*tensors, bias))


def test_decoding_with_a_cache() -> None:
    """A cache of fixed length, filled token by token; what lies behind is never seen."""
    q, k, v = (t.detach() for t in inputs(1, 4, 2, 12, 12, dtype=torch.float32))
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    keys, values = torch.full((2, 1, 2, 32, 16), float("nan"))
    keys[:, :, :5], values[:, :, :5] = k[:, :, :5], v[:, :, :5]
    step = functools.partial(fr.attention, is_causal=True, enable_gqa=True)
    near(step(q[:, :, :5], keys, values), right[:, :, :5])
    for t in range(5, 12):
        keys[:, :, t], values[:, :, t] = k[:, :, t], v[:, :, t]
        near(step(q[:, :, t : t + 1], keys, values, q_offset=t), right[:, :, t : t + 1])


def test_a_ring_of_chunks() -> None:
    """Keys in four pieces; each piece's state is merged, in the order of a ring."""
    q, k, v = inputs(1, 2, 2, 8, 24)
    R, state = fr.reductions.SoftmaxSum, None
    for at in (12, 18, 0, 6):
        part = slice(at, at + 6)
        out, state = fr.pairwise(
            R, q, k[:, :, part], v=v[:, :, part], mask=fr.masks.window(9, None), q_offset=16,
            k_offset=at, seed=state, return_state=True, outputs="out",
        )  # fmt: skip
    seen = torch.arange(16, 24)[:, None] - 9 <= torch.arange(24)
    right = plain(q, k, v, seen, scale=1.0)["out"]
    near(out, right)
    same_gradients(out, right, (q, k, v))


class Block(nn.Module):
    def __init__(self, attention, norm=nn.RMSNorm) -> None:
        super().__init__()
        self.attention, self.norm = attention, norm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attention(*heads).transpose(1, 2).flatten(2))


@pytest.fixture
def blocks() -> tuple[Block, Block]:
    ours = Block(functools.partial(fr.attention, is_causal=True), fr.nn.RMSNorm).double()
    theirs = Block(functools.partial(F.scaled_dot_product_attention, is_causal=True)).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def test_a_compiled_block_at_many_lengths(blocks) -> None:
    torch._dynamo.reset()
    ours, theirs = blocks
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    fast = torch.compile(ours, backend=backend, fullgraph=True, dynamic=True)
    for S in (5, 9, 17, 64, 130):
        x = torch.randn(2, S, 32, dtype=torch.float64)
        got, right = fast(x), theirs(x)
        near(got, right)
        up = torch.randn_like(got)
        one = torch.autograd.grad(got, list(ours.parameters()), up)
        near(one, torch.autograd.grad(right, list(theirs.parameters()), up))
    assert len(graphs) <= 2


class Documents(nn.Module):
    """A mask that is made in every forward, of ids that come with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.window = fr.masks.window(5, None)

    def forward(self, q, k, v, ids):
        mask = fr.masks.document(ids) & self.window & ~fr.mask(lambda b, h, i, j: j > i)
        return fr.attention(q, k, v, mask=mask) * 2


def test_masks_made_inside_a_compiled_module() -> None:
    torch._dynamo.reset()
    fast = torch.compile(Documents(), backend="aot_eager")
    for S in (9, 14):
        q, k, v = inputs(Sq=S, Sk=S)
        ids = torch.arange(S) // 4
        apart = torch.arange(S)[:, None] - torch.arange(S)
        seen = (ids[:, None] == ids) & (apart >= 0) & (apart <= 5)
        got, right = fast(q, k, v, ids), 2 * plain(q, k, v, seen)["out"]
        near(got, right)
        same_gradients(got, right, (q, k, v))


def test_a_checkpointed_block(blocks) -> None:
    ours, theirs = blocks
    x = torch.randn(2, 9, 32, dtype=torch.float64, requires_grad=True)
    for reentrant in (False, True):
        got = checkpoint(ours, x, use_reentrant=reentrant)
        right = theirs(x)
        near(got, right)
        near(torch.autograd.grad(got.sum(), x) if not reentrant else _gradient(got, x),
             torch.autograd.grad(right.sum(), x))  # fmt: skip


def _gradient(out, x):
    x.grad = None
    out.sum().backward()
    return (x.grad,)


def test_a_block_under_autocast() -> None:
    ours = Block(functools.partial(fr.attention, is_causal=True), fr.nn.RMSNorm)
    theirs = Block(functools.partial(F.scaled_dot_product_attention, is_causal=True))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 9, 32)
    with torch.autocast("cpu", torch.bfloat16):
        got, right = ours(x), theirs(x)
    assert got.dtype == right.dtype
    near(got, right, atol=2e-2, rtol=2e-2)
    got.sum().backward()
    right.sum().backward()
    near(ours.qkv.weight.grad, theirs.qkv.weight.grad, atol=5e-2, rtol=5e-2)


def test_a_retrieval_loss_over_all_pairs() -> None:
    """InfoNCE of queries against keys: lse over keys minus the score of the one at i = j."""

    class Picked(fr.reductions.LogSumExp):
        right = fr.Sum(lambda x, i, j: torch.where(i == j, x, 0.0))
        definition = None

        def finish(m, s, right):
            return m + torch.log(s) - right

    q, k = (torch.randn(50, 16, dtype=torch.float64, requires_grad=True) for _ in range(2))
    got = fr.pairwise(Picked, q[None, None], k[None, None], score_mod=lambda s, *_: s / 0.1)
    right = F.cross_entropy(q @ k.T / 0.1, torch.arange(50), reduction="none")
    near(got[0, 0], right)
    same_gradients(got[0, 0], right, (q, k))


def test_a_kernel_mean_with_weights_of_the_keys() -> None:
    """Nadaraya-Watson with a Gaussian kernel: weights by name, a payload, no softmax anywhere."""

    class Gaussian(fr.Reduction):
        v = fr.Payload()
        n = fr.Sum(lambda x, a, kk, qq: a * torch.exp(x - (kk + qq) / 2))
        o = fr.Sum(lambda x, a, kk, qq, v: a * torch.exp(x - (kk + qq) / 2) * v)

        def finish(n, o):
            return {"mean": o / n}

    q, k, v = inputs(1, 2, 2, 7, 12, 4, 3)
    a = torch.rand(1, 2, 12, dtype=torch.float64, requires_grad=True)
    sizes = dict(kk=k.square().sum(-1), qq=q.square().sum(-1, keepdim=True))
    got = fr.pairwise(Gaussian, q, k, v=v, a=a, **sizes)["mean"]
    w = a[:, :, None] * torch.exp(-(torch.cdist(q, k) ** 2) / 2)
    right = w @ v / w.sum(-1, keepdim=True)
    near(got, right)
    same_gradients(got, right, (q, k, v, a))


def test_shapes_on_the_meta_device() -> None:
    q, k, v = torch.empty(3, 2, 4, 9, 16, device="meta")
    out, more = fr.attention(q, k, v, is_causal=True, aux=("lse",))
    assert (out.shape, more["lse"].shape) == ((2, 4, 9, 16), (2, 4, 9))


TOKENS = torch.ones(2, 9, dtype=torch.bool)
window = fr.masks.window(3, 0)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda a: a(mask=fr.masks.causal and window), "Declaration", "& window(8, 0)"),
        (lambda a: a(mask=fr.masks.causal & TOKENS), "Declaration", "seen[i, j]) of a tensor"),
        (lambda a: a(mask=TOKENS), "Shape", "mask[:, None, None], the keys"),
        (lambda a: a(mask=TOKENS[:, None] & causal(9, 9)), "Shape", "do        pass mask[:, None]"),
        (lambda a: a(mask=fr.masks.document([0] * 9)), "Shape", "pass torch.tensor(...)"),
        (lambda a: a(score_mod=fr.masks.causal), "Operand", "pass it as mask="),
        (lambda a: a(score_mod=lambda s, b, h, i, j: s.to(s.dtype)), "Declaration", "the cast out"),
        (lambda a: a(q_offset=torch.tensor([1, 2])), "Option", "i + first[b] >= j"),
    ],
)  # fmt: skip
def test_what_people_try_first(call, error, said) -> None:
    """Each message says what to write instead; what it says works (the tests above)."""
    with pytest.raises(getattr(fr.errors, f"{error}Error"), match=None) as raised:
        call(functools.partial(fr.attention, *inputs()))
    assert said in str(raised.value)


def test_a_jagged_tensor_is_sent_to_packed_sequences() -> None:
    pieces = [torch.randn(n, 4, 8) for n in (3, 5)]
    q = torch.nested.nested_tensor(pieces, layout=torch.jagged).transpose(1, 2)
    with pytest.raises(fr.errors.ShapeError, match="cu_seqlens"):
        fr.attention(q, q, q)


class Reach(fr.reductions.SoftmaxSum):
    """Softmax attention, and sum_j p_ij |i - j|; the correction of d is derived."""

    d = fr.Sum(lambda x, m, i, j: torch.exp(x - m) * torch.abs(i - j))

    def finish(m, s, o, d):
        return {"out": o / s, "lse": m + torch.log(s), "reach": d / s}


def test_a_statistic_of_positions() -> None:
    assert fr.prove(Reach).proved
    tensors = inputs()
    out, more = fr.attention(*tensors, is_causal=True, reduction=Reach, aux="reach")
    q, k, v = tensors
    p = (q @ k.mT / 4).masked_fill(~causal(9, 9), float("-inf")).softmax(-1)
    near(out, p @ v)
    near(more["reach"], (p * (torch.arange(9)[:, None] - torch.arange(9)).abs()).sum(-1))
    same_gradients(more["reach"], (p * (torch.arange(9)[:, None] - torch.arange(9)).abs()).sum(-1),
                   (q, k))  # fmt: skip
