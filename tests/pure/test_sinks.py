"""Sinks on any device: the element before the keys, by tiles and by the meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.api import recent
from fusedreduce.errors import DeviceError, NotFusible, ShapeError
from tests import sinks as of_sinks
from tests.sinks import MASKS, NAMES, check_all, inputs, joined, plain

INF = float("inf")
IMPLS = ("eager", "tiles")


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2], NAMES], ids=len)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("impl", IMPLS)
def test_results_and_gradients(impl: str, mask: str, names: tuple[str, ...]) -> None:
    check_all(mask, names, inputs(torch.float64), impl)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_dtypes(mask: str, dtype: torch.dtype) -> None:
    check_all(mask, NAMES[:2], inputs(dtype), "tiles")


# ---- what a sink is not --------------------------------------------------------------------------


@pytest.mark.parametrize("impl", IMPLS)
def test_it_is_no_score(impl: str) -> None:
    """It is neither scaled nor changed by the score function, and no mask hides it."""
    q, k, v, sinks = inputs(torch.float64)
    bias = torch.randn(4, 1, 1, dtype=torch.float64)
    found = fr.attention(
        q, k, v, sinks=sinks, scale=0.5, enable_gqa=True, impl=impl, aux=("lse",),
        score_mod=lambda s, b, h, i, j: s + bias[h, 0, 0], mask=lambda b, h, i, j: i >= j,
    )  # fmt: skip
    seen = MASKS["causal"][1]
    right = plain(q * (0.5 * q.shape[-1] ** 0.5), k, v, sinks, seen, bias)
    torch.testing.assert_close(found[0], right["out"])
    torch.testing.assert_close(found[1]["lse"], right["lse"])


@pytest.mark.parametrize("impl", IMPLS)
def test_minus_infinity_is_none(impl: str) -> None:
    q, k, v, _ = inputs(torch.float64)
    none = torch.full((4,), -INF, dtype=torch.float64, requires_grad=True)
    mask = MASKS["rows that see nothing"][0]
    options: dict[str, Any] = dict(mask=mask, enable_gqa=True, aux=NAMES[1:], impl=impl)
    (out, more), (right, others) = (
        fr.attention(q, k, v, sinks=s, **options) for s in (none, None)
    )  # fmt: skip
    torch.testing.assert_close((out, more), (right, others))
    assert (more["lse"][:, :, 3] == -INF).all()
    up = torch.randn_like(out)
    *slopes, of_sinks = torch.autograd.grad(out, (q, k, v, none), up)
    torch.testing.assert_close(slopes, list(torch.autograd.grad(right, (q, k, v), up)))
    assert not of_sinks.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", IMPLS)
def test_infinity_and_nan(impl: str, dtype: torch.dtype) -> None:
    """An infinite sink outweighs all keys; a NaN is in every result."""
    q, k, v, _ = inputs(dtype)
    odd = torch.tensor([INF, float("nan"), 0.0, 1.0])
    out, more = fr.attention(q, k, v, sinks=odd, enable_gqa=True, aux=NAMES[1:2], impl=impl)
    assert (out[:, 0] == 0).all()
    assert (more["lse"][:, 0] == INF).all()
    assert out[:, 1].isnan().all()
    assert more["lse"][:, 1].isnan().all()
    assert out[:, 2:].isfinite().all()


# ---- other declarations --------------------------------------------------------------------------


class Kept(fr.Reduction):
    """Softmax attention beside a field of each other kind."""

    v = fr.Payload()
    empty = {"out": 0.0}
    m = fr.Max(lambda x: x)
    at = fr.ArgMax(lambda x: x)
    low = fr.Min(lambda x: x)
    n = fr.Sum(lambda x: 1.0)
    far = fr.Sum(lambda x, j: j)
    p = fr.Prod(lambda x: torch.sigmoid(x))
    some = fr.Any(lambda x: x > 2)
    every = fr.All(lambda x: x > -2)
    s = fr.Sum(lambda x, m: torch.exp(x - m))
    o = fr.Sum(lambda x, m, v: torch.exp(x - m) * v)

    def finish(m, at, low, n, far, p, some, every, s, o):
        return {"out": o / s, "at": at, "low": low, "n": n, "far": far, "p": p,
                "some": some, "every": every}  # fmt: skip


class Earliest(fr.Reduction):
    """The weights relative to the first score: with a sink that is the sink."""

    v = fr.Payload()
    r = fr.First(lambda x: x)
    s = fr.Sum(lambda x, r: torch.exp(x - r))
    o = fr.Sum(lambda x, r, v: torch.exp(x - r) * v)

    def finish(r, s, o):
        return {"out": o / s, "first": r}


class General(fr.Reduction):
    """The mean of the payload, by pairs of states."""

    v = fr.Payload()
    n, o = fr.state(0.0, 0.0)

    def lift(x, v):
        return 1.0, v

    def merge(a, b):
        return a.n + b.n, a.o + b.o

    def finish(n, o):
        return {"out": o / n}


def kinds_of(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> dict[str, Tensor]:
    """What `Kept` says of causal attention; positions count from the sink's, -1."""
    seen = MASKS["causal"][1]
    x = (q @ k.repeat_interleave(2, 1).mT) * q.shape[-1] ** -0.5
    x = torch.cat([sinks[:, None, None].expand(*x.shape[:3], 1), x], -1)
    assert seen is not None
    seen = torch.cat([torch.ones(len(seen), 1, dtype=torch.bool), seen], -1)
    low, far = torch.where(seen, x, INF), torch.where(seen, torch.arange(-1, x.shape[-1] - 1), 0)
    return {
        "at": torch.where(seen, x, -INF).argmax(-1) - 1,
        "low": low.min(-1).values,
        "n": seen.sum(-1).to(x).expand(x.shape[:3]),
        "far": far.sum(-1).expand(x.shape[:3]),
        "p": torch.where(seen, x.sigmoid(), 1.0).prod(-1),
        "some": (seen & (x > 2)).any(-1),
        "every": (~seen | (x > -2)).all(-1),
    }


@pytest.mark.parametrize("impl", IMPLS)
def test_fields_of_every_kind(impl: str) -> None:
    tensors = inputs(torch.float64)
    right = kinds_of(*tensors)
    out, more = fr.attention(*tensors[:3], sinks=tensors[3], reduction=Kept, aux=tuple(right),
                             mask=fr.masks.causal, enable_gqa=True, impl=impl)  # fmt: skip
    assert -1 in more["at"]
    for n, t in right.items():
        torch.testing.assert_close(more[n], t, msg=n)
    ups = [torch.randn_like(more[n]) for n in ("low", "p")]
    found, wanted = (torch.autograd.grad([m[n] for n in ("low", "p")], (tensors[0], tensors[3]),
                                         ups) for m in (more, right))  # fmt: skip
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(out, plain(*tensors, MASKS["causal"][1])["out"])


@pytest.mark.parametrize("impl", IMPLS)
def test_it_comes_first(impl: str) -> None:
    tensors = inputs(torch.float64)
    out, more = fr.attention(*tensors[:3], sinks=tensors[3], reduction=Earliest, aux=("first",),
                             enable_gqa=True, impl=impl)  # fmt: skip
    assert (more["first"] == tensors[3][:, None]).all()
    up = torch.randn_like(out)
    right = plain(*tensors)["out"]
    torch.testing.assert_close(out, right)
    found, wanted = (torch.autograd.grad(o, tensors, up) for o in (out, right))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("impl", [None, *IMPLS])
def test_a_general_form_is_refused(impl: str | None) -> None:
    q, k, v, sinks = inputs(torch.float64, Hk=4)
    with pytest.raises(NotFusible, match=r"General.*sinks[\s\S]*corrected form"):
        fr.attention(q, k, v, sinks=sinks, reduction=General, impl=impl)


# ---- as torch wants it ---------------------------------------------------------------------------


@pytest.mark.parametrize("in_dims", [(0, None, None, None), (None, 1, 1, 0), (0, 0, 0, 0)])
def test_vmap(in_dims: tuple[int | None, ...]) -> None:
    shapes = ((3, 2, 5, 4), (3, 2, 7, 4), (3, 2, 7, 4), (2,))
    given = []
    for shape, d in zip(shapes, in_dims, strict=True):
        t = torch.randn(3, *shape, dtype=torch.float64)
        given.append(t[0] if d is None else t.movedim(0, d))
    ours = torch.vmap(lambda q, k, v, s: fr.attention(q, k, v, sinks=s), in_dims)
    right = torch.vmap(lambda *a: plain(*a)["out"], in_dims)
    torch.testing.assert_close(ours(*given), right(*given))
    slopes = [torch.vmap(torch.func.grad(lambda *a, f=f: f(*a).sin().sum(), 3), in_dims)(*given)
              for f in (lambda q, k, v, s: fr.attention(q, k, v, sinks=s),
                        lambda *a: plain(*a)["out"])]  # fmt: skip
    torch.testing.assert_close(*slopes)


def test_twice_differentiated() -> None:
    tensors = tuple(t.detach().requires_grad_() for t in inputs(torch.float64, 1, 2, 1, 3, 4))
    assert torch.autograd.gradgradcheck(
        lambda q, k, v, s: fr.attention(q, k, v, sinks=s, enable_gqa=True, aux=("lse",))[1]["lse"],
        tensors,
    )


def test_dropout_drops_keys_alone() -> None:
    tensors = inputs(torch.float64)
    found = []
    for impl in IMPLS:
        out = fr.attention(*tensors[:3], sinks=tensors[3], dropout_p=0.4, rng_seed=5,
                           enable_gqa=True, impl=impl)  # fmt: skip
        found.append((out, *torch.autograd.grad(out.sin().sum(), tensors)))
    torch.testing.assert_close(*found)


# ---- calls that come again -----------------------------------------------------------------------


def test_each_call_reads_its_own_sinks() -> None:
    recent._calls.clear()
    q, k, v, _ = inputs(torch.float64)
    for learned in (False, True) * 3:
        sinks = torch.randn(4, dtype=torch.float64, requires_grad=learned)
        tensors = (q, k, v, sinks)
        out, right = (
            fr.attention(*tensors[:3], sinks=sinks, enable_gqa=True),
            plain(*tensors)["out"],
        )
        torch.testing.assert_close(out, right)
        asked = [t for t in tensors if t.requires_grad]
        found, wanted = (torch.autograd.grad(o.sum(), asked) for o in (out, right))
        torch.testing.assert_close(found, wanted)
    assert len(recent._calls) == 1
    strided = torch.randn(4, 3, dtype=torch.float64)[:, 1]
    right = plain(q, k, v, strided)["out"]
    for _ in range(2):  # what comes twice is remembered
        torch.testing.assert_close(fr.attention(q, k, v, sinks=strided, enable_gqa=True), right)
        fr.attention(q, k, v, enable_gqa=True)
    assert len(recent._calls) == 3
    recent._calls.clear()


def test_sinks_beside_the_tensors_of_a_mask_and_a_score() -> None:
    recent._calls.clear()
    q, k, v, _ = inputs(torch.float64)
    for _ in range(4):
        sinks, slopes = (torch.randn(4, dtype=torch.float64) for _ in range(2))
        ids = torch.randint(0, 3, (of_sinks.Sk,))
        out = fr.attention(
            q, k, v, sinks=sinks, enable_gqa=True, mask=fr.masks.document(ids),
            score_mod=fr.score(lambda s, b, h, i, j, t=slopes: s + t[h] * (i - j)),
        )  # fmt: skip
        step = torch.arange(of_sinks.Sq)[:, None] - torch.arange(of_sinks.Sk)
        same = ids[: of_sinks.Sq, None] == ids
        right = plain(q, k, v, sinks, same, slopes[:, None, None] * step)["out"]
        torch.testing.assert_close(out, right)
    assert len(recent._calls) == 1
    recent._calls.clear()


@pytest.mark.parametrize("impl", IMPLS)
def test_their_gradient_alone(impl: str) -> None:
    q, k, v, sinks = inputs(torch.float64)
    q, k, v = (t.detach() for t in (q, k, v))
    for names in (NAMES[:1], NAMES[1:2]):
        found = fr.attention(q, k, v, sinks=sinks, enable_gqa=True, aux=("lse",), impl=impl)
        ours, right = (
            joined({"out": found[0], **found[1]}, names),
            joined(plain(q, k, v, sinks), names),
        )
        up = torch.randn_like(ours)
        slopes = [torch.autograd.grad(o, sinks, up) for o in (ours, right)]
        torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 5), (1, 0, 3, 5), (1, 2, 0, 5)], ids=str)
def test_no_query(sizes: tuple[int, ...]) -> None:
    B, H, queries, keys = sizes
    tensors = [torch.randn(B, H, n, 4) for n in (queries, keys, keys)]
    sinks = torch.zeros(H, requires_grad=True)
    out = fr.attention(*tensors, sinks=sinks)
    assert out.shape == (B, H, queries, 4)
    (slope,) = torch.autograd.grad(out.sum(), sinks)
    assert not slope.any()


def test_sinks_elsewhere() -> None:
    q, k, v, sinks = inputs(torch.float64)
    with pytest.raises(DeviceError, match=r"sinks on meta"):
        fr.attention(q, k, v, sinks=sinks.to("meta"), enable_gqa=True)


@pytest.mark.parametrize("again", range(3))
def test_wrong_sinks_are_refused_each_time(again: int) -> None:
    q, k, v, sinks = inputs(torch.float64)
    for wrong in (sinks[:3], sinks[None], sinks.long(), 1.0):
        with pytest.raises(ShapeError, match=r"a float tensor of shape \(4,\)"):
            fr.attention(q, k, v, sinks=wrong, enable_gqa=True)


def test_sinks_have_a_dtype_of_their_own() -> None:
    q, k, v, _ = inputs(torch.bfloat16)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        sinks = torch.ones(4, dtype=dtype, requires_grad=True)
        out = fr.attention(q, k, v, sinks=sinks, enable_gqa=True)
        assert out.dtype == torch.bfloat16
        (slope,) = torch.autograd.grad(out.sum(), sinks)
        assert slope.dtype == dtype
