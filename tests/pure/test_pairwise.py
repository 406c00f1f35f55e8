"""fr.pairwise: any declaration over the pairs, against fr.reduce of all scores; what it refuses."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fusedreduce as fr
from fusedreduce import errors
from fusedreduce.reductions import (
    Argmax,
    LogSumExp,
    Moments,
    SoftmaxEntropy,
    SoftmaxSum,
    Total,
    WeightedLogSumExp,
    Welford,
)
from fusedreduce.run.language import Language
from tests.attention import causal, check, inputs

INF = float("inf")
near = torch.testing.assert_close


def scores(q, k):
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("R", [LogSumExp, Moments, SoftmaxEntropy, Argmax, Welford, Total])
def test_any_declaration(R, dtype) -> None:
    q, k, _ = inputs(2, 4, 2, 7, 33, 8, dtype=dtype)
    got = fr.pairwise(R, q, k)
    right = fr.reduce(R, scores(q, k))
    near(got, right, atol=1e-4, rtol=1e-4)
    for name in R.record.outputs if isinstance(got, dict) else ():
        near(fr.pairwise(R, q, k, outputs=name), got[name])


@pytest.mark.parametrize("R", [LogSumExp, Moments, SoftmaxEntropy, Welford])
def test_gradients(R) -> None:
    tensors = inputs(1, 2, 1, 5, 9, 8, dtype=torch.float32)[:2]
    for name in R.record.outputs:
        wish = name or None
        got = fr.pairwise(R, *tensors, outputs=wish)
        check(got, lambda q, k, R=R, n=wish: fr.reduce(R, scores(q, k), outputs=n, impl="eager"),
              tensors, (R, name))  # fmt: skip


@pytest.mark.parametrize("R", [Moments, Argmax, Welford, Total, SoftmaxEntropy])
def test_masked_pairs_are_no_elements(R) -> None:
    """Each query's keys, reduced one by one: a mask is not a score of -inf."""
    q, k, _ = inputs(1, 2, 2, 6, 9, 4)
    seen = torch.rand(1, 2, 6, 9) > 0.5
    seen[..., 0] = True
    got = fr.pairwise(R, q, k, mask=seen, impl="tiles")
    x = scores(q, k)
    for h in range(2):
        for i in range(6):
            keep = seen[0, h, i].nonzero()[:, 0]
            right = fr.reduce(R, x[0, h, i][keep])
            if R is Argmax:
                index = keep[right["index"]] if isinstance(right, dict) else keep[right]
                at = got["index"] if isinstance(got, dict) else got
                assert at[0, h, i] == index
                continue
            one = {n: t[0, h, i] for n, t in got.items()} if isinstance(got, dict) else got[0, h, i]
            near(one, right)


# ---- operands ------------------------------------------------------------------------------------


class Tempered(fr.Reduction):
    """log sum_j w_j exp(x_j / tau_i), for a temperature a query and a weight a key."""

    domain = {"tau": "positive", "w": "positive"}
    m = fr.Max(lambda x, tau: x / tau)
    s = fr.Sum(lambda x, tau, w, m: w * torch.exp(x / tau - m))

    def finish(m, s):
        return m + torch.log(s)


def test_operands_per_query_and_per_key() -> None:
    q, k, _ = inputs(2, 4, 2, 5, 8, dtype=torch.float32)
    tau = (torch.rand(2, 4, 5) + 0.5).requires_grad_()
    w = (torch.rand(2, 1, 8) + 0.5).requires_grad_()
    got = fr.pairwise(Tempered, q, k, tau=tau, w=w)
    function = lambda q, k, tau, w: (
        scores(q, k) / tau[..., None] + torch.log(w)[:, :, None]
    ).logsumexp(-1)
    check(got, function, (q, k, tau, w))
    near(fr.pairwise(Tempered, q, k, tau=2.0, w=1.0), (scores(q, k) / 2).logsumexp(-1))
    near(fr.pairwise(Tempered, q, k, tau=2, w=w[:1]),
         function(q, k, torch.tensor(2.0)[None], w[:1]))  # fmt: skip


def test_three_dimensions_mean_keys_where_lengths_are_equal() -> None:
    q, k, _ = inputs(1, 2, 2, 6, 6)
    w = torch.rand(1, 2, 6, dtype=torch.float64) + 0.5
    near(fr.pairwise(WeightedLogSumExp, q, k, w=w),
         (scores(q, k) + w.log()[:, :, None]).logsumexp(-1))  # fmt: skip
    near(fr.pairwise(WeightedLogSumExp, q, k, w=w[..., None]),
         (scores(q, k) + w.log()[..., None]).logsumexp(-1))  # fmt: skip
    full = torch.rand(1, 2, 6, 6, dtype=torch.float64) + 0.5
    near(fr.pairwise(WeightedLogSumExp, q, k, w=full), (scores(q, k) + full.log()).logsumexp(-1))


class Slanted(fr.Reduction):
    """sum_j x_j (i - j) (1 + h): terms may read the indices of the pair."""

    s = fr.Sum(lambda x, h, i, j: x * (i - j) * (1 + h))

    def finish(s):
        return s


def test_terms_read_the_indices() -> None:
    tensors = inputs(2, 3, 3, 5, 7, 4, dtype=torch.float32)[:2]
    i, j, h = torch.arange(5)[:, None], torch.arange(7), torch.arange(3)[:, None, None]
    check(fr.pairwise(Slanted, *tensors), lambda q, k: (scores(q, k) * (i - j) * (1 + h)).sum(-1),
          tensors)  # fmt: skip


def test_a_join_in_one_pass() -> None:
    q, k, _ = inputs()
    both = fr.pairwise(fr.join(LogSumExp, Moments), q, k)
    near(both["LogSumExp"], scores(q, k).logsumexp(-1))
    near(both["Moments"]["var"], scores(q, k).var(-1, correction=0))


# ---- states --------------------------------------------------------------------------------------


def test_a_state_goes_in_and_comes_out() -> None:
    q, k, v = inputs(1, 4, 2, 6, 11, DV=5)
    value, first = fr.pairwise(SoftmaxSum, q, k[:, :, :4], v=v[:, :, :4], return_state=True)
    assert {n: tuple(t.shape) for n, t in first.items()} == {
        "m": (1, 4, 6), "s": (1, 4, 6), "o": (1, 4, 6, 5)
    }  # fmt: skip
    near(value, fr.pairwise(SoftmaxSum, q, k[:, :, :4], v=v[:, :, :4]))
    got = fr.pairwise(SoftmaxSum, q, k[:, :, 4:], v=v[:, :, 4:], seed=first)
    right = fr.pairwise(SoftmaxSum, q, k, v=v)
    near(got, right)
    for name in ("out", "lse"):
        up = torch.randn_like(right[name])
        near(torch.autograd.grad(got[name], (q, k), up, retain_graph=True),
             torch.autograd.grad(right[name], (q, k), up, retain_graph=True))  # fmt: skip
    near(fr.pairwise(SoftmaxSum, q, k, v=v, return_state=True, impl="eager"),
         fr.pairwise(SoftmaxSum, q, k, v=v, return_state=True))  # fmt: skip


@pytest.mark.parametrize("R", [LogSumExp, Moments, Welford, Argmax])
def test_states_of_pieces_merge(R) -> None:
    q, k, _ = inputs(1, 2, 2, 4, 9)
    _, first = fr.pairwise(R, q, k[:, :, :5], return_state=True)
    got, _ = fr.pairwise(R, q, k[:, :, 5:], seed=first, return_state=True)
    if R is not Argmax:  # positions count from the first key of each call
        near(got, fr.pairwise(R, q, k))


def test_a_slot_of_a_state_has_gradients() -> None:
    tensors = inputs(1, 2, 2, 4, 9, dtype=torch.float32)[:2]
    _, state = fr.pairwise(LogSumExp, *tensors, return_state=True)
    check(state["m"], lambda q, k: scores(q, k).amax(-1), tensors)
    _, state = fr.pairwise(LogSumExp, *tensors, return_state=True)
    whole = lambda q, k: (scores(q, k) - scores(q, k).amax(-1, keepdim=True)).exp().sum(-1)
    check(state["s"], whole, tensors)


# ---- what is refused -----------------------------------------------------------------------------

q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
GQA = {"enable_gqa": True}
TRUE = torch.ones(5, 7, dtype=torch.bool)
REFUSED = {
    "no tensor": (lambda: fr.attention([1], k, v), errors.OperandError, "`q` is not a tensor"),
    "no v": (lambda: fr.attention(q, k, None), errors.OperandError, "`v` is not a tensor"),
    "dimensions": (lambda: fr.attention(q[0], k, v), errors.ShapeError, "3 dimensions"),
    "heads": (lambda: fr.attention(q, k, v), errors.ShapeError, "pass enable_gqa=True"),
    "group": (lambda: fr.attention(q[:, :3], k, v, **GQA), errors.ShapeError, "no multiple"),
    "dtypes": (lambda: fr.attention(q.double(), k, v, **GQA), errors.DtypeError, "k float32"),
    "integers": (lambda: fr.attention(q.int(), q.int(), q.int()), errors.DtypeError, "int32"),
    "width": (lambda: fr.attention(q[..., :4], k, v, **GQA), errors.ShapeError, "widths"),
    "too wide": (lambda: fr.attention(*[torch.ones(1, 1, 2, 513)] * 3), errors.ShapeError, "512"),
    "batch": (lambda: fr.attention(q[:1], k, v, **GQA), errors.ShapeError, "batches differ"),
    "length of v": (lambda: fr.attention(q, k, v[:, :, 1:], **GQA), errors.ShapeError, "lengths"),
    "heads of v": (lambda: fr.attention(q, k, v[:, 1:], **GQA), errors.ShapeError, "heads"),
    "device": (lambda: fr.attention(q, k.to("meta"), v), errors.DeviceError, "k on meta"),
    "layout": (lambda: fr.attention(q, q.to_sparse(), q), errors.OperandError, "dense"),
    "scale": (lambda: fr.attention(q, q, q, scale="1"), errors.OptionError, "not a number"),
    "aux": (lambda: fr.attention(q, q, q, aux=("ls",)), errors.OptionError, "'entropy'"),
    "sinks": (lambda: fr.attention(q, q, q, sinks=q), errors.ShapeError, r"shape \(4,\)"),
    "offset": (lambda: fr.attention(q, q, q, q_offset=0.5), errors.OptionError, "an integer"),
    "switch": (lambda: fr.attention(q, q, q, deterministic=3), errors.OptionError, "truth value"),
    "backend": (lambda: fr.attention(q, q, q, impl="x"), errors.OptionError, "'eager', 'tiles'"),
    "declaration": (
        lambda: fr.attention(q, q, q, reduction=LogSumExp), errors.OptionError, "fr.pairwise",
    ),
    "mask": (lambda: fr.attention(q, k, v, mask=TRUE[:3], **GQA), errors.ShapeError, "broadcast"),
    "mask of integers": (
        lambda: fr.attention(q, k, v, mask=TRUE.long(), **GQA), errors.DtypeError, "mask != 0",
    ),
    "mask of two": (
        lambda: fr.attention(q, q, q, mask=lambda i, j: i >= j), errors.DeclarationError, "b, h, i",
    ),
    "score as mask": (
        lambda: fr.attention(q, q, q, mask=fr.score(lambda s, b, h, i, j: s)),
        errors.OperandError, "score_mod=",
    ),
    "not a declaration": (lambda: fr.pairwise(3, q, k), errors.DeclarationError, "fr.Reduction"),
    "payload": (lambda: fr.pairwise(SoftmaxSum, q, k), errors.OperandError, "pass v="),
    "no payload": (lambda: fr.pairwise(LogSumExp, q, k, v=v), errors.OperandError, "takes no v"),
    "operand": (lambda: fr.pairwise(LogSumExp, q, k, w=1), errors.OperandError, "no operand `w`"),
    "missing": (lambda: fr.pairwise(WeightedLogSumExp, q, k), errors.OperandError, "pass w="),
    "operand's shape": (
        lambda: fr.pairwise(WeightedLogSumExp, q, k, w=torch.ones(2, 4, 6)),
        errors.ShapeError, r"t\[\.\.\., None\]",
    ),
    "output": (lambda: fr.pairwise(Moments, q, k, outputs="x"), errors.OptionError, "'mean'"),
    "seed": (lambda: fr.pairwise(LogSumExp, q, k, seed={}), errors.OperandError, "fr.pairwise"),
    "flat": (
        lambda: fr.ops.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]),
        errors.ShapeError, "2 dimensions",
    ),
    "heads of torch's": (
        lambda: fr.ops.scaled_dot_product_attention(q, k, v), errors.ShapeError, "enable_gqa",
    ),
    "two masks": (
        lambda: fr.ops.scaled_dot_product_attention(q, q, q, TRUE[:, :5], is_causal=True),
        errors.OptionError, "fr.attention takes both",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_told(name) -> None:
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call()


def test_a_broken_declaration_is_refused() -> None:
    class Wrong(fr.Reduction):
        m = fr.Max(lambda x: x)
        s = fr.Sum(lambda x, m: torch.exp(x - m),
                   correct=lambda s, old, new: s * torch.exp(new.m - old.m))  # fmt: skip

        def finish(m, s):
            return m + torch.log(s)

    with pytest.raises(errors.LawViolation):
        fr.pairwise(Wrong, q, k)


def test_causality_is_counted_from_the_top_left() -> None:
    got = fr.pairwise(Total, q[:, :2], k, mask=fr.masks.causal)
    near(got, (scores(q[:, :2], k) * causal(5, 7)).sum(-1))


def test_a_seed_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge and finish of states are functions that are made for the first call."""
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in "qkv")
    x = torch.randn(3, 40)

    def step():
        _, of_pairs = fr.pairwise(SoftmaxSum, q, k, v=v, return_state=True)
        _, of_rows = fr.reduce(LogSumExp, x, return_state=True)
        out = fr.pairwise(SoftmaxSum, q, k, v=v, seed=of_pairs)["out"]
        return out, fr.reduce(LogSumExp, x, seed=of_rows)

    def never(*given):
        raise AssertionError("an expression is compiled again")

    first, _ = step(), step()
    monkeypatch.setattr(Language, "function", never)
    near(step(), first)
    near(first[1], x.logsumexp(-1) + math.log(2.0))


class TwoVectors(fr.Reduction):
    """Two results with the payload's width: their gradients come from the meaning."""

    n = fr.Sum(lambda s: s * s)
    o = fr.Sum(lambda s, v: s * v)
    v = fr.Payload()

    def finish(n, o):
        return {"plain": o, "shared": o / (1 + n)}


@pytest.mark.parametrize("outputs", [("plain", "shared"), ("shared", "plain")])
def test_gradients_by_the_meaning_whatever_the_order_asked_for(outputs) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    s = q @ k.mT
    right = {"plain": s @ v, "shared": s @ v / (1 + s.square().sum(-1, keepdim=True))}
    found = fr.pairwise(TwoVectors, q, k, v=v, outputs=outputs)
    for name in outputs:
        got, wanted = (
            torch.autograd.grad(t[name].square().sum(), (q, k, v), retain_graph=True)
            for t in (found, right)
        )
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("aux", list(itertools.permutations(("lse", "entropy", "max_logit"))))
def test_second_derivatives_and_tangents_whatever_the_order_asked_for(aux) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv")

    def ours(q: torch.Tensor) -> dict[str, torch.Tensor]:
        return fr.attention(q, k, v, aux=aux)[1]

    def plain(q: torch.Tensor) -> dict[str, torch.Tensor]:
        s = q @ k.mT / 2
        entropy = -(s.softmax(-1) * s.log_softmax(-1)).sum(-1)
        return {"lse": s.logsumexp(-1), "max_logit": s.amax(-1), "entropy": entropy}

    for name in aux:
        slope, right = (
            torch.autograd.grad(f(q)[name].square().sum(), q, create_graph=True)[0]
            for f in (ours, plain)
        )
        second, wanted = (torch.autograd.grad(g.square().sum(), q)[0] for g in (slope, right))
        torch.testing.assert_close(second, wanted)
        along, expected = (
            torch.func.jvp(lambda q: f(q)[name], (q.detach(),), (v.detach(),))[1]  # noqa: B023
            for f in (ours, plain)
        )
        torch.testing.assert_close(along, expected)
