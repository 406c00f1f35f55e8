"""How attention fits into torch: compile, export, transforms, modes, second order."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import fusedreduce as fr
from fusedreduce.errors import DtypeError
from tests.attention import causal, inputs, plain

near = torch.testing.assert_close
bias = torch.randn(4, 40, dtype=torch.float64, requires_grad=True)
slope = torch.randn((), dtype=torch.float64, requires_grad=True)
biased = fr.score(lambda s, b, h, i, j: s * slope + bias[h, j])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def compiled(fn, **options):
    return torch.compile(fn, fullgraph=True, backend="aot_eager", **options)


def same(got, right, tensors) -> None:
    up = torch.randn_like(right)
    near(got, right)
    near(torch.autograd.grad(got, tensors, up), torch.autograd.grad(right, tensors, up))


# ---- torch.compile -----------------------------------------------------------------------------


def test_compiled_at_any_length_in_few_graphs() -> None:
    """Report S34: no variant of its own for each length."""
    fast = compiled(lambda q, k, v: fr.attention(q * 2, k, v, is_causal=True) + 1)
    for S in (3, 5, 9, 17, 33, 40):
        tensors = inputs(Sq=S, Sk=S)
        right = plain(2 * tensors[0], *tensors[1:], causal(S, S))["out"] + 1
        same(fast(*tensors), right, tensors)
    assert graphs() <= 2


def test_dynamic_from_the_start() -> None:
    fast = compiled(lambda q, k, v: fr.attention(q, k, v, aux=("lse",)), dynamic=True)
    for Sq, Sk in ((3, 8), (8, 5), (17, 64)):
        tensors = inputs(Sq=Sq, Sk=Sk)
        out, more = fast(*tensors)
        right = plain(*tensors)
        near(more["lse"], right["lse"])
        same(out, right["out"], tensors)
    assert graphs() <= 2


def test_captured_tensors_are_inputs_of_the_graph() -> None:
    fast = compiled(lambda q, k, v: fr.attention(q, k, v, score_mod=biased) * 2, dynamic=True)
    for S in (5, 9, 12):
        tensors = inputs(Sq=S, Sk=S)
        score = lambda x, S=S: x * slope + bias[:, None, :S]
        same(fast(*tensors), 2 * plain(*tensors, score=score)["out"], (*tensors, bias, slope))
    assert graphs() == 1


@pytest.mark.parametrize("make", [
    lambda S: fr.masks.document(torch.arange(S) // 4) & fr.masks.causal,
    lambda S: fr.masks.cu_seqlens(torch.tensor([0, 2, S]), within=fr.masks.causal),
    lambda S: fr.mask(lambda b, h, i, j: i - j < torch.tensor([3, 5, 7, 9])[h]) & fr.masks.causal,
])  # fmt: skip
def test_a_mask_made_anew_for_every_call_is_one_function(make) -> None:
    fast = compiled(lambda q, k, v, mask: fr.attention(q, k, v, mask=mask))
    for S in (5, 9, 12, 33):
        tensors, mask = inputs(Sq=S, Sk=S), make(S)
        same(fast(*tensors, mask), fr.attention(*tensors, mask=mask, impl="eager"), tensors)
    assert graphs() <= 2


def test_offsets_stay_free() -> None:
    fast = compiled(lambda q, k, v, at: fr.attention(q, k, v, is_causal=True, q_offset=at))
    q, k, v = (t.detach() for t in inputs(Sq=12, Sk=12))
    whole = fr.attention(q, k, v, is_causal=True)
    for at in (3, 4, 5, 7, 9):
        near(fast(q[:, :, at:], k, v, at), whole[:, :, at:])
    assert graphs() <= 3


def test_sinks_statistics_and_states_compile() -> None:
    def function(q, k, v, sinks):
        _, state = fr.pairwise(fr.reductions.SoftmaxSum, q, k, v=v, return_state=True)
        out, more = fr.attention(q, k, v, sinks=sinks, aux=("entropy",))
        return out, more["entropy"], state["s"]

    fast = compiled(function)
    for S in (5, 9, 12):
        tensors = (*inputs(Sq=S, Sk=S), torch.randn(4, dtype=torch.float64, requires_grad=True))
        got, right = fast(*tensors), function(*tensors)
        near(got, right)
        same(fast(*tensors)[0], function(*tensors)[0], tensors)
    assert graphs() <= 4


@pytest.mark.slow
def test_compiled_by_inductor() -> None:
    fast = torch.compile(lambda *a: fr.attention(*a, is_causal=True).relu(), fullgraph=True)
    tensors = inputs()
    same(fast(*tensors), fr.attention(*tensors, is_causal=True).relu(), tensors)


def test_a_bare_function_in_a_compiled_one_is_refused() -> None:
    fast = compiled(lambda q, k, v: fr.attention(q, k, v, mask=lambda b, h, i, j: i >= j))
    with pytest.raises(Exception, match=r"fr\.mask|OperandError"):
        fast(*inputs())


def test_a_bare_function_ends_a_graph_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fullgraph=True the call runs uncompiled, and torch looks into none of our caches."""
    monkeypatch.setattr(torch._dynamo.utils, "warn_once_cache", set())
    ids = torch.arange(9) // 4
    both = ids[:, None] == ids
    q, k, v = inputs(Sq=9, Sk=9)

    def attends(q, k, v):
        return fr.attention(q * 2, k, v, mask=lambda b, h, i, j: ids[i] == ids[j]).relu()

    def reduces(q, k, v):
        def score(s, b, h, i, j):
            return s + torch.where(ids[i] == ids[j], 1.0, 0.0)

        return fr.pairwise(fr.reductions.LogSumExp, q * 2, k, score_mod=score) * 2

    def run(function):
        return torch.compile(function, backend="aot_eager")(q, k, v)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got, sums = run(attends), run(reduces)
    assert [str(w.message) for w in caught] == []
    same(got, plain(q * 2, k, v, both)["out"].relu(), (q, k, v))
    same(sums, 2 * torch.logsumexp(2 * q @ k.mT + both * 1.0, -1), (q, k))


def test_a_user_error_shows_while_compiling() -> None:
    with pytest.raises(Exception, match="enable_gqa"):
        compiled(lambda *a: fr.attention(*a))(*inputs(Hk=2))


# ---- torch.export ------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sinks = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))

    def forward(self, q, k, v):
        first = fr.attention(q, k, v, mask=fr.masks.window(3, 0), sinks=self.sinks)
        return first + fr.ops.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_exported_with_a_dynamic_length_saved_and_loaded() -> None:
    layer, S = Layer(), torch.export.Dim("S", min=2)
    tensors = tuple(t.detach() for t in inputs())
    program = torch.export.export(layer, tensors, dynamic_shapes=({2: S},) * 3)
    names = [str(n.target) for n in program.graph.nodes if "fusedreduce" in str(n.target)]
    assert names == ["fusedreduce.pairs.default"] * 2
    kept = io.BytesIO()
    torch.export.save(program, kept)
    kept.seek(0)
    loaded = torch.export.load(kept).module()
    more = tuple(t.detach() for t in inputs(Sq=21, Sk=21))
    near(loaded(*more), layer(*more))


# ---- torch.func ----------------------------------------------------------------------------------


def single(q, k, v):
    return fr.attention(q[None], k[None], v[None], is_causal=True)[0]


def unfused(q, k, v):
    return plain(q[None], k[None], v[None], causal(q.shape[1], k.shape[1]))["out"][0]


def total(function):
    return lambda *a: function(*a).sin().sum()


def test_transforms() -> None:
    q, k, v = (t.detach() for t in inputs(Sq=5, Sk=5))
    near(torch.vmap(single)(q, k, v), torch.vmap(unfused)(q, k, v))
    near(torch.vmap(single, (0, None, 1), 1)(q, k[0], v.movedim(0, 1)),
         torch.vmap(unfused, (0, None, 1), 1)(q, k[0], v.movedim(0, 1)))  # fmt: skip
    slopes = lambda f: torch.vmap(torch.func.grad(total(f), (0, 1, 2)))(q, k, v)
    near(slopes(single), slopes(unfused))
    along = lambda f: torch.func.jvp(f, (q[0], k[0], v[0]), (q[1], k[1], v[1]))
    near(along(single), along(unfused))
    curved = lambda f: torch.func.hessian(lambda q: total(f)(q, k[0], v[0]))(q[0])
    near(curved(single), curved(unfused))


def test_a_batch_of_masks() -> None:
    q, k, v = (t.detach() for t in inputs(Sq=5, Sk=5))
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])

    def function(q, k, v, ids):
        return fr.attention(q[None], k[None], v[None], mask=fr.masks.document(ids))[0]

    each = torch.stack([function(q[n], k[n], v[n], ids[n]) for n in range(2)])
    near(torch.vmap(function)(q, k, v, ids), each)
    grads = torch.vmap(torch.func.grad(total(function)))(q, k, v, ids)
    near(grads, torch.stack([torch.func.grad(total(function))(q[n], k[n], v[n], ids[n])
                             for n in range(2)]))  # fmt: skip


def test_second_order() -> None:
    """Report S49: by the meaning."""
    tensors = inputs(1, 2, 1, 3, 4, 3)
    mask = fr.masks.window(1, 1)
    function = lambda *a: fr.attention(*a, mask=mask, enable_gqa=True)
    assert torch.autograd.gradgradcheck(function, tensors)
    assert torch.autograd.gradcheck(function, tensors)


# ---- modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant) -> None:
    tensors = inputs()
    function = lambda *a: fr.attention(*a, is_causal=True)
    checkpoint(function, *tensors, use_reentrant=reentrant).sin().sum().backward()
    right = plain(*tensors, causal(9, 9))["out"].sin().sum()
    near(tuple(t.grad for t in tensors), torch.autograd.grad(right, tensors))


def test_autocast_casts_as_torch_does() -> None:
    """Report S33: inside to the autocast dtype, outside a clear error."""
    q, k, v = inputs(dtype=torch.float32)
    half = q.detach().bfloat16()
    fast = compiled(fr.ops.scaled_dot_product_attention)
    with torch.autocast("cpu", torch.bfloat16):
        got, right = fr.attention(half, k, v), F.scaled_dot_product_attention(half, k, v)
        again = fast(half, k, v)
    assert got.dtype == right.dtype == again.dtype == torch.bfloat16
    near(got, right, atol=2e-2, rtol=2e-2)
    near(again, got)
    got.sum().backward()
    assert k.grad.dtype == torch.float32
    with pytest.raises(DtypeError, match="one floating-point dtype"):
        fr.attention(half, k, v)


def test_float64_under_autocast_stays() -> None:
    q, k, v = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        assert fr.attention(q, k, v).dtype == torch.float64


def test_without_gradients() -> None:
    q, k, v = inputs()
    with torch.no_grad():
        assert not fr.attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert fr.attention(q, k, v).is_inference()
    only = fr.attention(q.detach(), k.detach(), v)
    (got,) = torch.autograd.grad(only.sum(), v)
    near(got, torch.autograd.grad(plain(q, k, v)["out"].sum(), v)[0])


def test_fake_tensors_have_shapes() -> None:
    q, k, v = inputs(Hk=2, Sq=5, Sk=7, DV=6)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (q, k, v)]
        out, more = fr.attention(*fakes, enable_gqa=True, aux=("lse", "max_logit"))
    assert out.shape == (2, 4, 5, 6)
    assert more["lse"].shape == (2, 4, 5)


def test_bits_repeat() -> None:
    """Report S54."""
    tensors = inputs(Sq=130, Sk=130, dtype=torch.bfloat16)

    def run():
        out = fr.attention(*tensors, is_causal=True)
        return out, *torch.autograd.grad(out, tensors, torch.ones_like(out))

    first = run()
    assert all(all(map(torch.equal, first, run())) for _ in range(5))
