"""Calls of row functions that come again: the same answers, whatever has changed between them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedreduce as fr
from fusedreduce.api import repeated
from fusedreduce.api.repeated import Repeated, key_of_call
from fusedreduce.errors import DeviceError, OperandError, ShapeError

TIMES = 3


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[repeated.Again]:
    """The calls that were not gone through anew."""
    known: list[repeated.Again] = []
    plain = repeated.Again.__call__

    def call(self: repeated.Again, tensors: Any) -> Any:
        known.append(self)
        return plain(self, tensors)

    monkeypatch.setattr(repeated.Again, "__call__", call)
    return known


def noise(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, **options)


def test_the_second_call_goes_straight(again: list[repeated.Again]) -> None:
    for _ in range(TIMES):
        x, w = noise(4, 6), noise(6)
        torch.testing.assert_close(fr.ops.layer_norm(x, (6,), w), F.layer_norm(x, (6,), w))
    assert len(again) == TIMES - 1


def test_gradients_of_repeated_calls(again: list[repeated.Again]) -> None:
    for k in range(TIMES):
        x, w = noise(4, 6, requires_grad=True), noise(6, requires_grad=True)
        found = torch.autograd.grad(fr.ops.layer_norm(x, (6,), w).square().sum(), (x, w))
        wanted = torch.autograd.grad(F.layer_norm(x, (6,), w).square().sum(), (x, w))
        torch.testing.assert_close(found, wanted)
        alone = noise(4, 6, requires_grad=True)
        y = fr.ops.layer_norm(alone, (6,), w.detach())
        torch.testing.assert_close(y, F.layer_norm(alone, (6,), w.detach()))
        assert y.requires_grad
        with torch.no_grad():
            assert not fr.ops.layer_norm(x, (6,), w).requires_grad
        assert k == 0 or again


def test_second_derivatives_of_repeated_calls() -> None:
    for _ in range(TIMES):
        assert torch.autograd.gradgradcheck(
            lambda x: fr.ops.softmax(x, -1), noise(2, 3, requires_grad=True)
        )


def test_what_a_call_is_known_by() -> None:
    """Every difference that may count makes another key."""
    x = noise(4, 6)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, 1), {}), ((x, 1.0), {}), ((x, True), {}), ((x, "1"), {}), ((x, None), {}),
        ((x, 0.0), {}), ((x, -0.0), {}), ((x, (1,)), {}), ((x, (1, 1)), {}),
        ((x,), {"dim": 1}), ((x,), {"p": 1}), ((x, x), {}), ((x.float(), 1), {}),
        ((x.t(), 1), {}), ((x[:2], 1), {}), ((x[:, ::2], 1), {}), ((x, torch.float32), {}),
    ]  # fmt: skip
    keys = [key_of_call(*call)[0] for call in calls]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_calls_that_are_known_by_nothing() -> None:
    x = noise(4, 6)
    sub = x.as_subclass(type("Sub", (Tensor,), {}))
    odd = torch.complex(x, x).conj().imag
    assert odd.is_neg()
    for args in ((x, [1]), (x, {1: 2}), (sub,), (odd,), (), (1.0,), (x.to("meta"),), (x, (1.0,)),
                 (x.to_sparse(),), (x, (True,)), (x, x.numpy())):  # fmt: skip
        assert key_of_call(args, {})[0] is None, args
    with torch.autocast("cpu"):
        assert key_of_call((x,), {})[0] is None
    seen = []
    torch.vmap(lambda t: seen.append(key_of_call((t,), {})[0]) or t)(x)  # type: ignore[func-returns-value]
    assert seen == [None]


def test_one_tensor_in_two_places_is_not_two() -> None:
    x, y = noise(4, 6), noise(4, 6)
    cosine = fr.ops.cosine_similarity
    for a, b in ((x, x), (x, y), (y, x), (x, x), (x, y)):
        torch.testing.assert_close(cosine(a, b), F.cosine_similarity(a, b))


def test_values_are_read_in_every_call() -> None:
    x = noise(4, 6)
    for eps in (1e-5, 2.0, 1e-5):
        torch.testing.assert_close(
            fr.ops.layer_norm(x, (6,), eps=eps), F.layer_norm(x, (6,), eps=eps)
        )
    held = torch.tensor(1e-5, dtype=torch.float64)
    for value in (1e-5, 2.0, 7.0):  # a tensor whose value is read
        held.fill_(value)
        found = fr.ops.layer_norm(x, (6,), eps=held)  # type: ignore[arg-type]
        torch.testing.assert_close(found, F.layer_norm(x, (6,), eps=value))
    for _ in range(TIMES):
        x.normal_()
        torch.testing.assert_close(fr.ops.softmax(x, -1), torch.softmax(x, -1))


def test_mistakes_stay_mistakes() -> None:
    x = noise(4, 6)
    for _ in range(TIMES):
        fr.ops.layer_norm(x, (6,))
        for shape in ((5,), (4,), 6, (6.5,)):
            with pytest.raises((ShapeError, OperandError)):
                fr.ops.layer_norm(x, shape)  # type: ignore[arg-type]
        with pytest.raises(ShapeError):
            fr.ops.softmax(x, True)


def test_a_tensor_without_numbers_between_calls() -> None:
    """A tensor on the meta device has the CPU's number."""
    x, w = noise(4, 6), noise(6)
    for _ in range(TIMES):
        fr.ops.layer_norm(x, (6,), w)
        with pytest.raises(DeviceError):
            fr.ops.layer_norm(x, (6,), w.to("meta"))


@pytest.mark.parametrize("first", [torch.float32, torch.float64])
def test_the_default_dtype_between_calls(first: torch.dtype) -> None:
    """What integers become where they are divided."""
    share = fr.fuse(lambda x: torch.sum(x / 3, -1))
    x = torch.arange(12).reshape(3, 4)
    before = torch.get_default_dtype()
    try:
        for dtype in (first, torch.float64, torch.float32, first):
            torch.set_default_dtype(dtype)
            assert share(x).dtype == torch.sum(x / 3, -1).dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_autocast_between_calls() -> None:
    x = noise(4, 6).bfloat16()
    for _ in range(TIMES):
        assert fr.ops.softmax(x, -1).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert fr.ops.softmax(x, -1).dtype == torch.softmax(x, -1).dtype


def test_running_statistics_move_in_every_call() -> None:
    ours, plain = (torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)), None
    plain = tuple(t.clone() for t in ours)
    for _ in range(TIMES):
        x = noise(2, 3, 5)
        found = fr.ops.instance_norm(x, *ours)
        torch.testing.assert_close(found, F.instance_norm(x, *plain))
    torch.testing.assert_close(ours, plain)


def test_written_outputs() -> None:
    out = torch.empty(4, 6, dtype=torch.float64)
    for _ in range(TIMES):
        x = noise(4, 6)
        assert fr.ops.normalize(x, out=out) is out
        torch.testing.assert_close(out, F.normalize(x))


def test_functions_of_users(again: list[repeated.Again]) -> None:
    @fr.fuse
    def scaled(x: Any, by: Any = 2.0) -> Any:
        return {"y": torch.softmax(x, -1) * by, "n": (3, None)}

    for _ in range(TIMES):
        x = noise(4, 6)
        for by in (2.0, 3.0, noise(4, 1)):
            found = scaled(x, by)
            torch.testing.assert_close(found["y"], torch.softmax(x, -1) * by)
            assert found["n"] == (3, None)
        torch.testing.assert_close(scaled(x)["y"], torch.softmax(x, -1) * 2.0)
    assert len(again) >= 3 * (TIMES - 1)


def test_a_function_of_two_fused_calls_is_gone_through() -> None:
    half = fr.fuse(lambda x: torch.softmax(x, -1) / 2)
    calls = Repeated(lambda x: (half(x), half(x))[1])
    for _ in range(TIMES):
        x = noise(4, 6)
        torch.testing.assert_close(calls((x,), {}), torch.softmax(x, -1) / 2)
    assert not calls.calls


def test_not_more_than_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "MOST", 4)
    calls = Repeated(lambda x: fr.fuse(lambda x: torch.softmax(x, -1))(x))
    for n in range(1, 9):
        calls((noise(n, 6),), {})
    assert len(calls.calls) == 4


def test_tensors_left_over_from_transforms() -> None:
    """torch's own operations take them for what is inside."""
    left: list[Tensor] = []

    def loss(x: Tensor) -> Tensor:
        left.append(x * 2)
        return left[0].sum()

    torch.func.grad(loss)(noise(4, 6))
    for _ in range(TIMES):
        torch.testing.assert_close(fr.ops.softmax(left[0], -1), torch.softmax(left[0], -1))
        w = noise(6, requires_grad=True)
        fr.ops.layer_norm(left[0], (6,), w).sum().backward()
        torch.testing.assert_close(w.grad, F.layer_norm(left[0], (6,)).sum(0))


def test_operations_keep_their_names() -> None:
    op = fr.ops.softmax
    assert op.__name__ == "softmax"
    assert pickle.loads(pickle.dumps(op)) is op
    assert copy.deepcopy(op) is op
    with pytest.raises(TypeError, match="dimm"):
        fr.ops.softmax(noise(2, 3), dimm=1)  # type: ignore[call-arg]


def test_inside_compiled_functions() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def f(x: Tensor, w: Tensor) -> Tensor:
        return fr.ops.layer_norm(fr.ops.softmax(x, -1), (6,), w)

    for n in (4, 5, 7):
        x, w = noise(n, 6), noise(6)
        torch.testing.assert_close(f(x, w), F.layer_norm(torch.softmax(x, -1), (6,), w))


FACTOR = 2.0


def test_numbers_that_a_function_reads_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    shift = 1

    @fr.fuse
    def moved(x: Any) -> Any:
        return next(torch.softmax(x, -1) * FACTOR + shift for _ in range(1))

    x = noise(4, 6)
    for factor, shift in ((2.0, 1), (2.0, 1), (3.0, 1), (3.0, 2), (3, 2), (2.0, 1), (-0.0, 1)):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        wanted = torch.softmax(x, -1) * factor + shift
        torch.testing.assert_close(moved(x), wanted, rtol=0, atol=1e-15)
        torch.testing.assert_close(torch.vmap(moved)(x), wanted, rtol=0, atol=1e-15)


def test_shapes_are_tuples(again: list[repeated.Again]) -> None:
    for _ in range(TIMES):
        x = noise(4, 6)
        torch.testing.assert_close(fr.ops.layer_norm(x, x.shape[-1:]), F.layer_norm(x, (6,)))
    assert len(again) >= TIMES - 1
