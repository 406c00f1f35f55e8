"""Sinks in printed pair kernels: the state they start from, the gradient beside `delta`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.plan import pairs as plans
from fusedreduce.run import pair_printed
from tests import printing
from tests.pair_checks import split_keys
from tests.pure.test_sinks import Kept
from tests.sinks import MASKS, NAMES, check_all, inputs, plain

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of rows that do not exist
INF = float("inf")
HALF = (torch.float16, torch.bfloat16)


def small(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """One batch, two heads that share keys; each sink of its own weight."""
    return inputs(dtype, 1, 2, 1)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of short sequences, whoever launches."""

    def plan_of(pair: Any, direction: str, device: Any, tile: Any = None) -> Any:
        return plans.plan(pair, direction, device, tile or (16, 16, 4, 1))

    monkeypatch.setattr(pair_printed, "plan_of", plan_of)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("names", [NAMES[:1], NAMES], ids=len)
@pytest.mark.parametrize("mask", MASKS)
def test_results_and_gradients(mask: str, names: tuple[str, ...]) -> None:
    check_all(mask, names, small(torch.float32), "triton")


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float64, *HALF], ids=str)
@pytest.mark.parametrize("mask", ["causal", "rows that see nothing"])
def test_dtypes(mask: str, dtype: torch.dtype) -> None:
    check_all(mask, NAMES[:2], small(dtype), "triton")


@pytest.mark.parametrize("names", [NAMES[:2], NAMES], ids=len)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", ["causal", "lists of blocks"])
def test_split_keys(mask: str, dtype: torch.dtype, names: tuple[str, ...]) -> None:
    """The first part has the sink, once; parts without a key too."""
    for n in (2, 5):
        with split_keys(n):
            check_all(mask, names, small(dtype), "triton")


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_query_a_head(dtype: torch.dtype, splits: int) -> None:
    """Heads that share keys are rows of one tile, each with a sink of its own."""
    with split_keys(splits):
        q, k, v, sinks = inputs(dtype, H=6, Hk=2, queries=1, keys=70)
        out, more = fr.attention(q, k, v, sinks=sinks, enable_gqa=True, aux=("lse",), impl="triton")
    wide = [t.detach().double() for t in (q, k, v, sinks)]
    right = plain(*wide)
    close = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), right["out"], atol=close, rtol=close)
    torch.testing.assert_close(more["lse"].double(), right["lse"], atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_infinite_sinks_and_nan(dtype: torch.dtype, splits: int, even: bool) -> None:
    """As the meaning does: such a head leaves whole blocks to the loop of partial ones."""
    lengths = {"queries": 48, "keys": 48} if even else {}
    q, k, v, _ = (t.detach() for t in inputs(dtype, B=1, Hk=2, **lengths))
    odd = torch.tensor([INF, float("nan"), -INF, -1e30])
    some, causal, window = (
        MASKS["rows that see nothing"][0],
        fr.masks.causal,
        fr.masks.window(20, 9),
    )
    for given in (some, causal, window, None):
        options: dict[str, Any] = dict(sinks=odd, mask=given, enable_gqa=True, aux=NAMES[1:])
        with split_keys(splits):
            out, more = fr.attention(q, k, v, impl="triton", **options)
        right, others = fr.attention(q, k, v, impl="eager", **options)
        close = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(out, right, equal_nan=True, rtol=close, atol=close)
        torch.testing.assert_close(more, others, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small_tiles")
def test_minus_infinity_sends_no_gradient() -> None:
    q, k, v, _ = inputs(torch.bfloat16)
    none = torch.full((4,), -INF, requires_grad=True)
    mask = MASKS["rows that see nothing"][0]
    out, right = (fr.attention(q, k, v, sinks=s, mask=mask, enable_gqa=True, impl="triton")
                  for s in (none, None))  # fmt: skip
    torch.testing.assert_close(out, right)
    up = torch.randn_like(out)
    *found, slope = torch.autograd.grad(out, (q, k, v, none), up)
    torch.testing.assert_close(found, list(torch.autograd.grad(right, (q, k, v), up)))
    assert not slope.any()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout(dtype: torch.dtype) -> None:
    """Keys are dropped, the sink is not."""
    tensors = small(dtype)
    found = []
    for impl in ("triton", "eager"):
        out = fr.attention(*tensors[:3], sinks=tensors[3], dropout_p=0.4, rng_seed=5,
                           mask=fr.masks.causal, enable_gqa=True, impl=impl)  # fmt: skip
        found.append([out, *torch.autograd.grad(out.float().sin().sum(), tensors)])
    close = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(*found, atol=close, rtol=close)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("splits", [1, 3])
def test_fields_of_every_kind(splits: int) -> None:
    tensors = small(torch.float32)
    names = Kept.record.outputs[1:]
    found = []
    for impl in ("triton", "eager"):
        with split_keys(splits):
            out, more = fr.attention(*tensors[:3], sinks=tensors[3], reduction=Kept, aux=names,
                                     mask=fr.masks.causal, enable_gqa=True, impl=impl)  # fmt: skip
        loss = out.sum() + more["low"].sum() + more["p"].sum()
        found.append([out, *more.values(), *torch.autograd.grad(loss, tensors)])
    torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5)


def test_sinks_by_a_stride() -> None:
    q, k, v, _ = (t.detach() for t in inputs(torch.float32))
    sinks: Tensor = torch.randn(4, 3)[:, 1]
    out = fr.attention(q, k, v, sinks=sinks, enable_gqa=True, impl="triton")
    torch.testing.assert_close(out, plain(q, k, v, sinks)["out"], rtol=1e-5, atol=1e-5)
