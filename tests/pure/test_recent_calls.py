"""Calls that come again: by the tensors they are given, not by those that were given first."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.errors import FusedReduceError, ShapeError

recent = importlib.import_module("fusedreduce.api.recent")


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    recent._calls.clear()
    yield
    recent._calls.clear()


def heads(S: int = 70) -> list[Tensor]:
    return [torch.randn(2, 2, S, 8, dtype=torch.float64) for _ in "qkv"]


def plain(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    scores = (q @ k.mT) / q.shape[3] ** 0.5 + bias
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v


def same(ids: Tensor) -> Tensor:
    return ids[:, None] == ids[None, :]


def documents(seed: int, S: int = 70) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (S,), generator=generator).sort().values


def test_each_call_reads_its_own_mask() -> None:
    q, k, v = heads()
    for seed in range(6):
        ids = documents(seed)
        out = fr.attention(q, k, v, mask=fr.masks.document(ids))
        assert torch.allclose(out, plain(q, k, v, same(ids)))
    assert len(recent._calls) == 1


def test_a_mask_whose_tensor_is_written_to() -> None:
    q, k, v = heads()
    ids = documents(0)
    mask = fr.masks.document(ids)
    for seed in range(5):
        ids.copy_(documents(seed))
        assert torch.allclose(fr.attention(q, k, v, mask=mask), plain(q, k, v, same(ids)))


def test_gradients_of_a_score_that_reads_a_learned_tensor() -> None:
    q, k, v = (t.requires_grad_() for t in heads())
    for _ in range(4):
        slopes = torch.randn(2, dtype=torch.float64, requires_grad=True)
        ids = documents(1)
        score = fr.score(lambda s, b, h, i, j, t=slopes: s + t[h] * (i - j))
        out = fr.attention(q, k, v, score_mod=score, mask=fr.masks.document(ids))
        step = torch.arange(70)[:, None] - torch.arange(70)
        right = plain(q, k, v, same(ids), slopes[:, None, None] * step)
        up = torch.randn_like(out)
        found, wanted = (torch.autograd.grad(o, (q, k, v, slopes), up) for o in (out, right))
        assert torch.allclose(out, right)
        for f, w in zip(found, wanted, strict=True):
            assert torch.allclose(f, w)


def test_no_gradient_where_none_is_asked_for() -> None:
    q, k, v = heads()
    learned = torch.randn(2, dtype=torch.float64, requires_grad=True)
    score = fr.score(lambda s, b, h, i, j: s * learned[h])
    for _ in range(3):
        with torch.no_grad():
            assert not fr.attention(q, k, v, score_mod=score).requires_grad
        assert fr.attention(q, k, v, score_mod=score).requires_grad


def test_one_tensor_in_mask_and_score_and_then_two() -> None:
    """A call whose mask and score read one tensor does not answer for one that reads two."""
    q, k, v = heads()
    for one, other in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 2)):
        a, b = documents(one), documents(other)
        b = a if one == other else b
        out = fr.attention(
            q, k, v, mask=fr.masks.document(a),
            score_mod=fr.score(lambda s, bb, h, i, j, t=b: s + t[j]),
        )  # fmt: skip
        assert torch.allclose(out, plain(q, k, v, same(a), b.double()[None, :]))


def test_what_was_refused_is_refused_again() -> None:
    q, k, v = heads()
    good, short = documents(0), documents(0, 69)
    for _ in range(3):
        fr.attention(q, k, v, mask=fr.masks.document(good))
        with pytest.raises(ShapeError, match="too short"):
            fr.attention(q, k, v, mask=fr.masks.document(short))
        with pytest.raises(FusedReduceError):
            fr.attention(q, k, v[:, :1], mask=fr.masks.document(good))


def test_strides_and_dtypes_of_a_masks_tensor() -> None:
    q, k, v = heads()
    every = torch.stack([documents(s) for s in range(2)], 1)
    for ids in (every[:, 0], every[:, 1], every[:, 0].int(), every[:, 1].contiguous()) * 2:
        out = fr.attention(q, k, v, mask=fr.masks.document(ids))
        assert torch.allclose(out, plain(q, k, v, same(ids)))


@pytest.mark.parametrize("reduction", [[], {}, None])
def test_what_is_no_reduction_and_has_no_hash(reduction: object) -> None:
    q, k, v = heads()
    for _ in range(2):
        fr.attention(q, k, v)
        with pytest.raises(FusedReduceError, match="not a declaration"):
            fr.attention(q, k, v, reduction=reduction)  # type: ignore[arg-type]


# ---- plain functions -----------------------------------------------------------------------------


def count_traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a mask or score is traced."""
    attention = importlib.import_module("fusedreduce.api.attention")
    traces: list[int] = []
    for name in ("mask_of", "score_of"):
        made = getattr(attention, name)
        monkeypatch.setattr(attention, name, lambda fn, made=made: traces.append(1) or made(fn))
    return traces


def test_a_function_made_anew_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = count_traces(monkeypatch)
    q, k, v = heads()
    step = torch.arange(70)[:, None] - torch.arange(70)
    for turn in range(6):
        slopes, ids = torch.randn(2, dtype=torch.float64), documents(turn)
        out = fr.attention(
            q, k, v, mask=lambda b, h, i, j, ids=ids: ids[i] == ids[j],
            score_mod=lambda s, b, h, i, j, slopes=slopes: s + slopes[h] * (i - j),
        )  # fmt: skip
        assert torch.allclose(out, plain(q, k, v, same(ids), slopes[:, None, None] * step))
    assert len(traces) <= 4  # what is prepared is kept from the second time on


def test_numbers_that_a_function_captures() -> None:
    q, k, v = heads()
    every = torch.ones(70, 70, dtype=torch.bool)
    i, j = torch.arange(70)[:, None], torch.arange(70)
    for width in (3, 5, 3, 5, 7, 5) * 2:
        out = fr.attention(q, k, v, mask=lambda b, h, i, j, w=width: (i - j).abs() < w)
        assert torch.allclose(out, plain(q, k, v, every & ((i - j).abs() < width)))
    for kind in (1, 1.0, True, 1, True) * 2:
        seen = lambda b, h, i, j, kind=kind: i - j >= (3 if kind is True else 0)
        out = fr.attention(q, k, v, mask=seen)
        right = plain(q, k, v, i - j >= (3 if kind is True else 0)).nan_to_num(0.0)
        assert torch.allclose(out, right)


WIDTH = 4
TABLE = torch.tensor(2)


def inner(i: Tensor, j: Tensor) -> Tensor:
    return (i - j).abs() < WIDTH


def test_globals_that_a_function_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = heads()
    i, j = torch.arange(70)[:, None], torch.arange(70)
    for width in (4, 9, 4, 9, 1):
        monkeypatch.setitem(globals(), "WIDTH", width)
        for seen in (lambda b, h, i, j: (i - j).abs() < WIDTH, lambda b, h, i, j: inner(i, j)):
            for _ in range(3):
                out = fr.attention(q, k, v, mask=seen)
                assert torch.allclose(out, plain(q, k, v, (i - j).abs() < width))


class Config:
    width = 4


def test_values_that_a_function_takes_out_of_tensors_and_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a trace cannot see change is traced anew."""
    q, k, v = heads()
    i, j = torch.arange(70)[:, None], torch.arange(70)
    width, config, several, window = torch.tensor([4]), Config(), [4], {"width": 4}
    get, at, tagged, look, ticks = window.get, several.__getitem__, torch.ones(70), eval, [1]
    clock = ticks.__len__

    def own(b, h, i, j):
        return (i - j).abs() < own.width

    ways = (
        lambda b, h, i, j: (i - j).abs() < int(width[0]),
        lambda b, h, i, j: (i - j).abs() < width.tolist()[0],
        lambda b, h, i, j: (i - j).abs() < width.item(),
        lambda b, h, i, j: (i - j).abs() < int(width.max()),
        lambda b, h, i, j: (i - j).abs() < (width + 0)[h * 0],
        lambda b, h, i, j: (i - j).abs() < config.width,
        lambda b, h, i, j: (i - j).abs() < several[0],
        lambda b, h, i, j: (i - j).abs() < window["width"],
        lambda b, h, i, j: (i - j).abs() < int(width.numpy()[0]),
        lambda b, h, i, j: (i - j).abs() < get("width"),
        lambda b, h, i, j: (i - j).abs() < at(0),
        lambda b, h, i, j: (i - j).abs() < tagged.width,
        lambda b, h, i, j: (i - j).abs() < globals()["WIDTH"],
        lambda b, h, i, j: (i - j).abs() < eval("WIDTH"),
        lambda b, h, i, j: (i - j).abs() < look("WIDTH"),
        lambda b, h, i, j: (i - j).abs() < clock() * new,
        own,
    )
    for new in (4, 4, 4, 9, 2, 9):
        width.fill_(new)
        config.width, several[0], window["width"] = new, new, new
        tagged.width, own.width = new, new
        monkeypatch.setitem(globals(), "WIDTH", new)
        for seen in ways:
            out = fr.attention(q, k, v, mask=seen)
            assert torch.allclose(out, plain(q, k, v, (i - j).abs() < new)), ways.index(seen)


def test_shapes_that_a_function_asks_for() -> None:
    q, k, v = heads()
    step = torch.arange(70)[:, None] - torch.arange(70)
    for length in (139, 141, 139, 141, 161) * 2:
        table = torch.randn(2, length, dtype=torch.float64)
        score = lambda s, b, h, i, j, t=table: s + t[h, i - j + t.shape[1] // 2]
        out = fr.attention(q, k, v, score_mod=score)
        every = torch.ones(70, 70, dtype=torch.bool)
        assert torch.allclose(out, plain(q, k, v, every, table[:, step + length // 2]))


def test_one_tensor_twice_and_two_tensors() -> None:
    q, k, v = heads()
    a, b_ = documents(1), documents(2)
    for one, two in ((a, a), (a, b_), (b_, a), (b_, b_)) * 3:
        seen = lambda b, h, i, j, x=one, y=two: (x[i] == x[j]) & (y[i] == y[j])
        out = fr.attention(q, k, v, mask=seen)
        assert torch.allclose(out, plain(q, k, v, same(one) & same(two)))


def test_a_function_that_imports_or_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are read when it runs; what it leaves behind is left behind in each call."""
    q, k, v = heads()
    i, j = torch.arange(70)[:, None], torch.arange(70)
    settings = ModuleType("settings_of_a_test")
    monkeypatch.setitem(sys.modules, "settings_of_a_test", settings)

    def imports(b, h, i, j):
        import settings_of_a_test  # type: ignore[import-not-found]

        return (i - j).abs() < settings_of_a_test.width

    def imports_from(b, h, i, j):
        from settings_of_a_test import width

        return (i - j).abs() < width

    for width in (4, 9, 4, 9, 2):
        settings.width = width  # type: ignore[attr-defined]
        for seen in (imports, imports_from):
            out = fr.attention(q, k, v, mask=seen)
            assert torch.allclose(out, plain(q, k, v, (i - j).abs() < width))

    for flips in (flipping(), flipping_global):
        for turn in range(8):
            out = fr.attention(q, k, v, mask=flips)
            right = plain(q, k, v, (i - j).abs() < (9 if turn % 2 else 3))
            assert torch.allclose(out, right)


def flipping() -> Callable[..., Tensor]:
    narrow = False

    def seen(b, h, i, j):
        nonlocal narrow
        narrow = not narrow
        return (i - j).abs() < (3 if narrow else 9)

    return seen


NARROW = False


def flipping_global(b, h, i, j):
    global NARROW
    NARROW = not NARROW
    return (i - j).abs() < (3 if NARROW else 9)


def test_the_sign_of_zero() -> None:
    q, k, v = heads()
    every = torch.ones(70, 70, dtype=torch.bool)
    raw = q @ k.mT / 8**0.5
    for zero in (0.0, -0.0) * 4:
        sign = math.copysign(1.0, zero)
        out = fr.attention(
            q, k, v, score_mod=lambda s, b, h, i, j, z=zero: s * math.copysign(1.0, z)
        )
        assert torch.allclose(out, plain(q, k, v, every, raw * sign - raw))
        score = lambda s, b, h, i, j: torch.atan2(s, 0 * s - 1.0)
        out = fr.attention(q, k, v, scale=zero, score_mod=score)
        right = torch.atan2(raw * zero, torch.full_like(raw, -1.0))
        assert torch.allclose(out, plain(q, k, v, every, right - raw))


def test_the_state_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = heads()
    every = torch.ones(70, 70, dtype=torch.bool)
    raw = q @ k.mT / 8**0.5
    ask = torch.is_grad_enabled
    ways = (
        lambda s, b, h, i, j: s * (0.5 if torch.is_grad_enabled() else 2.0),
        lambda s, b, h, i, j: s * (0.5 if ask() else 2.0),
        lambda s, b, h, i, j: s * torch.factor_of_a_test,
    )
    for on in (True, False) * 4:
        factor = 0.5 if on else 2.0
        monkeypatch.setattr(torch, "factor_of_a_test", factor, raising=False)
        for score in ways:
            with torch.set_grad_enabled(on):
                out = fr.attention(q, k, v, score_mod=score)
            assert torch.allclose(out, plain(q, k, v, every, raw * factor - raw))


def test_a_constant_made_of_a_tensors_number() -> None:
    q, k, v = heads()
    step = torch.arange(70)[:, None] - torch.arange(70)
    every = torch.ones(70, 70, dtype=torch.bool)
    slope = torch.tensor(1.0, dtype=torch.float64)
    for new in (1.0, 1.0, 0.25, -2.0):
        slope.fill_(new)
        for made in (
            lambda s, b, h, i, j: s + torch.full_like(s, slope) * (i - j),
            lambda s, b, h, i, j: s + s.new_full((), slope) * (i - j),
        ):
            out = fr.attention(q, k, v, score_mod=made)
            assert torch.allclose(out, plain(q, k, v, every, new * step))


def test_helpers_under_other_names_and_defaults_in_another_order() -> None:
    q, k, v = heads()
    i, j = torch.arange(70)[:, None], torch.arange(70)
    width = 3

    @functools.wraps(torch.nn.functional.softplus)
    def limit() -> int:
        return width

    def between(b, h, i, j, *, left=0, right=0):
        return (i - j <= left) & (j - i <= right)

    for turn in range(8):
        width = 9 if turn % 2 else 3
        out = fr.attention(q, k, v, mask=lambda b, h, i, j: (i - j).abs() < limit())
        assert torch.allclose(out, plain(q, k, v, (i - j).abs() < width))
        left, right = (2, 5) if turn % 2 else (5, 2)
        given = {"left": left, "right": right}
        between.__kwdefaults__ = dict(sorted(given.items(), key=lambda item: item[1]))
        out = fr.attention(q, k, v, mask=between)
        assert torch.allclose(out, plain(q, k, v, (i - j <= left) & (j - i <= right)))


def test_what_is_still_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Globals and attributes that torch has too, by other meanings, keep no function out."""
    monkeypatch.setitem(globals(), "t", torch.randn(2, dtype=torch.float64))
    q, k, v = heads()
    ways = (
        lambda s, b, h, i, j: s + t[h] * (i - j).abs(),  # noqa: F821
        lambda s, b, h, i, j: s + sum((i, j)) * math.pi,
        lambda s, b, h, i, j: torch.where(i > j, s, torch.nn.functional.silu(s)),
        lambda s, b, h, i, j: s + i.to(torch.float32) / max(3, 4),
    )
    for score in ways:
        recent._calls.clear()
        for _ in range(3):
            fr.attention(q, k, v, score_mod=score)
        assert len(recent._calls) == 1, ways.index(score)


def test_texts_that_look_into_a_function_and_other_builtins() -> None:
    q, k, v = heads()
    i, j = torch.arange(70)[:, None], torch.arange(70)
    made: dict[str, object] = {"__builtins__": {"abs": lambda x: abs(x) * made["by"]}}
    exec("def near(b, h, i, j): return abs(i - j) < 36", made)
    place = {"by": 1}
    looked: dict[str, object] = {"place": place}
    exec("def helper(): pass", looked)
    helper, text = looked["helper"], "{0.__globals__[place][by]}"
    for by in (1, 1, 4, 9, 4):
        made["by"] = place["by"] = by
        out = fr.attention(q, k, v, mask=made["near"])
        assert torch.allclose(out, plain(q, k, v, (i - j).abs() * by < 36))
        seen = lambda b, h, i, j: (i - j).abs() < int(text.format(helper))
        assert torch.allclose(fr.attention(q, k, v, mask=seen), plain(q, k, v, (i - j).abs() < by))


def test_a_graph_that_was_given_up_ends_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile does not go on inside a call that was met before."""
    from torch._dynamo import convert_frame

    traced: list[str] = []
    plainly = convert_frame._compile

    def noted(code: CodeType, *args: object, **options: object) -> object:
        traced.append(code.co_filename)
        return plainly(code, *args, **options)

    monkeypatch.setattr(convert_frame, "_compile", noted)
    torch._dynamo.reset()
    by = torch.rand(2, dtype=torch.float64)
    fast = torch.compile(
        lambda q, k, v: fr.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + by[h] * i) * 2,
        backend="eager",
    )
    i = torch.arange(70)[:, None]
    for _ in range(4):
        q, k, v = heads()
        q.requires_grad_()
        found = fast(q, k, v)
        wanted = 2 * plain(q, k, v, i >= 0, by[:, None, None] * i)
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(t.square().sum(), q) for t in (found, wanted)]
        torch.testing.assert_close(*grads)
    assert len(recent._calls) == 1
    assert not [path for path in traced if "fusedreduce/run" in path or "pair_" in path]
