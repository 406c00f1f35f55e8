"""Dropout of attention: what is dropped, forward and gradients given that, how seeds are drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fusedreduce as fr
from fusedreduce import errors
from fusedreduce.pairing import Given, pair_of
from fusedreduce.run import pair_tiles
from fusedreduce.runner import noting
from tests.attention import check, inputs
from tests.dropout import kept, plain

P = 0.3
IDS = torch.arange(40) // 9
I, J = torch.arange(33)[:, None], torch.arange(40)
MASKS = {
    "none": ({}, None),
    "causal": ({"is_causal": True}, I >= J),
    "bottom right": ({"mask": fr.masks.causal_bottom_right}, I + 7 >= J),
    "window": ({"mask": fr.masks.window(6, 2)}, (J >= I - 6) & (J <= I + 2)),
    "documents": ({"mask": fr.masks.document(IDS)}, IDS[:33, None] == IDS),
    "tensor": ({"mask": (I + J) % 3 > 0}, (I + J) % 3 > 0),
}


def dropped(q: Tensor, k: Tensor, v: Tensor, p: float = P, seed: Any = 7, **more: Any) -> Any:
    return fr.attention(q, k, v, enable_gqa=True, dropout_p=p, rng_seed=seed, **more)


# ---- which pairs -------------------------------------------------------------------------------


def test_the_fraction_that_is_dropped() -> None:
    q = torch.zeros(2, 3, 128, 8)
    for p in (0.1, 0.5, 0.9):
        assert abs((~kept(q, q, p, 3)).float().mean() - p) < 0.01


def test_heads_batches_rows_and_seeds_are_independent() -> None:
    q = torch.zeros(2, 2, 128, 8)
    parts = [*kept(q, q, 0.5, 3).flatten(0, 1), *kept(q, q, 0.5, 4).flatten(0, 1)]
    parts += [parts[0].roll(1, 0), parts[0].roll(8, 1)]
    for a, b in itertools.combinations(parts, 2):
        assert abs((a == b).float().mean() - 0.5) < 5 * 0.5 / 128


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_every_implementation_and_dtype_drops_the_same(dtype: torch.dtype) -> None:
    q, k = torch.zeros(2, 4, 33, 8), torch.zeros(2, 2, 40, 8)
    right = kept(q, k, P, 7, "eager")
    assert torch.equal(kept(q, k, P, 7, "tiles"), right)
    assert torch.equal(kept(q.to(dtype), k.to(dtype), P, 7), right)


@pytest.mark.parametrize("tile", [(16, 16), (5, 7), (33, 3)])
def test_tiles_of_any_size_drop_the_same(tile: tuple[int, int]) -> None:
    q, k, v = inputs(Sq=33, Sk=40)
    with noting() as calls:
        dropped(q, k, v)
    (call,) = calls
    pair = pair_of(call.runner.task, call.values, trust=False)
    made = pair_tiles.forward(pair, Given(call.runner.task, call.values).inputs(pair.numbers), tile)
    torch.testing.assert_close(made["out"], dropped(q, k, v).detach())


def test_pieces_drop_what_the_whole_drops() -> None:
    q, k = torch.zeros(1, 2, 33, 8), torch.zeros(1, 2, 40, 8)
    whole = kept(q, k, P, 7)
    for impl in ("eager", "tiles"):
        piece = kept(q[:, :, 5:], k[:, :, 11:], P, 7, impl, q_offset=5, k_offset=11)
        assert torch.equal(piece, whole[:, :, 5:, 11:])


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("impl", ["tiles", "eager"])
def test_forward_and_gradients(impl: str, mask: str, dtype: torch.dtype) -> None:
    arguments, seen = MASKS[mask]
    q, k, v = tensors = inputs(Hk=2, Sq=33, Sk=40, DV=8, dtype=dtype)
    keep = kept(q, k, P, 7)
    got = dropped(q, k, v, impl=impl, **arguments)
    check(got, lambda q, k, v: plain(q, k, v, keep, P, seen), tensors, (mask, impl))


def test_a_bias_and_its_gradient() -> None:
    q, k, v = inputs(Sq=33, Sk=40)
    bias = torch.randn(4, 33, 40, dtype=torch.float64, requires_grad=True)
    keep = kept(q, k, P, 7)

    def right(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        x = q @ k.mT * q.shape[-1] ** -0.5 + bias
        return torch.where(keep, x.softmax(-1) / (1 - P), 0.0) @ v

    got = dropped(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j])
    check(got, right, (q, k, v, bias))


def test_statistics_and_sinks_do_not_change() -> None:
    q, k, v = inputs(Sq=9, Sk=9)
    names = ("lse", "max_logit", "entropy")
    _, right = fr.attention(q, k, v, aux=names)
    _, found = dropped(q, k, v, aux=names)
    assert all(torch.equal(found[n], right[n]) for n in names)
    sinks = torch.randn(4, dtype=torch.float64)
    unit = torch.eye(9, dtype=torch.float64).expand(2, 4, 9, 9)
    weights = fr.attention(q, k, unit, sinks=sinks)
    keep = kept(q, k, P, 7)
    right = torch.where(keep, weights / (1 - P), 0.0)
    torch.testing.assert_close(dropped(q, k, unit, sinks=sinks), right)


def test_the_mean_over_seeds_is_attention() -> None:
    q, k, v = (t.detach() for t in inputs(B=1, H=2, dtype=torch.float32))
    mean = sum(dropped(q, k, v, 0.5, seed) for seed in range(800)) / 800
    assert (mean - fr.attention(q, k, v)).abs().max() < 0.15


def test_nothing_and_all_dropped() -> None:
    q, k, v = inputs()
    assert torch.equal(dropped(q, k, v, 0.0), fr.attention(q, k, v))
    out = dropped(q, k, v, 1.0)
    assert not out.any()
    assert not torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=1.0).any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (q, k, v)))


class Sigmoid(fr.Reduction):
    """Attention by sigmoids, with the first score: keys in order."""

    v = fr.Payload()
    first = fr.First(lambda x: x)
    o = fr.Sum(lambda x, v: torch.sigmoid(x) * v)

    def finish(first, o):
        return {"out": o, "first": first}


def test_another_declaration() -> None:
    q, k, v = inputs(dtype=torch.float64)
    keep = kept(q, k, P, 7)
    got = dropped(q, k, v, reduction=Sigmoid)
    function = lambda q, k, v: torch.where(keep, (q @ k.mT / 4).sigmoid() / (1 - P), 0.0) @ v
    check(got, function, (q, k, v))


# ---- seeds -------------------------------------------------------------------------------------


def test_a_seed_is_drawn_by_torch() -> None:
    q, k, v = (t.detach() for t in inputs(dtype=torch.float32))
    draw = lambda: dropped(q, k, v, seed=None)
    torch.manual_seed(1)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    torch.manual_seed(1)
    assert torch.equal(fr.ops.scaled_dot_product_attention(q, k, v, dropout_p=P), first)


def test_seeds_of_any_make() -> None:
    q, k, v = (t.detach() for t in inputs(dtype=torch.float32))
    right = dropped(q, k, v, seed=7)
    for seed in (torch.tensor(7), torch.tensor([7], dtype=torch.int32), torch.tensor([[7]])):
        assert torch.equal(dropped(q, k, v, seed=seed), right)
    assert torch.equal(dropped(q, k, v, seed=2**64 - 1), dropped(q, k, v, seed=-1))
    assert not torch.equal(dropped(q, k, v, seed=7 + 2**32), right)


WRONG: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "below 0": (lambda q: dropped(q, q, q, -0.1), errors.OptionError, "no probability"),
    "above 1": (lambda q: dropped(q, q, q, 1.5), errors.OptionError, "from 0 to 1"),
    "no number": (lambda q: dropped(q, q, q, float("nan")), errors.OptionError, "nan"),
    "a tensor": (lambda q: dropped(q, q, q, torch.tensor(0.1)), errors.OptionError, "tensor"),
    "65 bits": (lambda q: dropped(q, q, q, seed=2**64), errors.OptionError, "64 bits"),
    "half": (lambda q: dropped(q, q, q, seed=0.5), errors.OptionError, "0.5"),
    "two": (lambda q: dropped(q, q, q, seed=torch.tensor([1, 2])), errors.OptionError, "one elem"),
    "float": (lambda q: dropped(q, q, q, seed=torch.tensor(1.0)), errors.OptionError, "float32"),
    "elsewhere": (
        lambda q: dropped(q, q, q, seed=torch.ones(1, dtype=torch.int64, device="meta")),
        errors.DeviceError, "move it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refused(case: str) -> None:
    call, kind, said = WRONG[case]
    with pytest.raises(kind, match=said):
        call(torch.zeros(1, 1, 4, 8))


# ---- inside PyTorch ----------------------------------------------------------------------------


def test_checkpointing_drops_the_same_again() -> None:
    q, k, v = inputs(dtype=torch.float32)
    found = []
    for run in (lambda f: f(q), lambda f: checkpoint(f, q, use_reentrant=False)):
        torch.manual_seed(1)
        out = run(lambda q: dropped(q, k, v, seed=None))
        found.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_second_derivatives() -> None:
    q, k, v = inputs(B=1, H=2, Sq=4, Sk=5, D=3)
    assert torch.autograd.gradcheck(dropped, (q, k, v))
    assert torch.autograd.gradgradcheck(dropped, (q, k, v))


def test_vmap() -> None:
    q, k, v = (t.detach() for t in inputs(dtype=torch.float32))
    two, seeds = torch.stack([q, q]), torch.tensor([7, 8])
    right = torch.stack([dropped(q, k, v, seed=s) for s in (7, 8)])
    assert torch.equal(torch.vmap(lambda q, s: dropped(q, k, v, seed=s))(two, seeds), right)
    assert torch.equal(torch.vmap(lambda q: dropped(q, k, v))(two)[1], right[0])
    drawn = lambda q: dropped(q, k, v, seed=None)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(drawn)(two)
    for how in ("same", "different"):
        a, b = torch.vmap(drawn, randomness=how)(two)
        assert torch.equal(a, b) == (how == "same")


def test_func_grad() -> None:
    q, k, v = inputs(dtype=torch.float32)
    loss = lambda q: dropped(q, k, v).square().sum()
    (right,) = torch.autograd.grad(loss(q), q)
    torch.testing.assert_close(torch.func.grad(loss)(q.detach()), right)


def test_compile_draws_inside_the_graph() -> None:
    q, k, v = inputs(dtype=torch.float32)
    drawn = torch.compile(
        lambda q: dropped(q, k, v, seed=None), backend="aot_eager", fullgraph=True
    )
    torch.manual_seed(1)
    first, second = drawn(q), drawn(q)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(drawn(q), first)
    given = torch.compile(
        lambda q, s: dropped(q, k, v, seed=s), backend="aot_eager", fullgraph=True
    )
    out, right = given(q, torch.tensor(7)), dropped(q, k, v)
    torch.testing.assert_close(out, right)
    (a,), (b,) = (torch.autograd.grad(t.square().sum(), q) for t in (out, right))
    torch.testing.assert_close(a, b)


def test_autocast() -> None:
    q, k, v = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = dropped(q, k, v)
    assert torch.equal(out, dropped(*(t.bfloat16() for t in (q, k, v))))


def test_explain_tells_of_it() -> None:
    q = torch.zeros(1, 1, 32, 16)
    assert "0.25 of the weights" in fr.explain(fr.attention, q, q, q, dropout_p=0.25)
    assert "dropout" not in fr.explain(fr.attention, q, q, q)
