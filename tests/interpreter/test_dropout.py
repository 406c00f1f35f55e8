"""Dropout by printed kernels in the interpreter: the bits of the meaning, whatever the tiles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fusedreduce as fr
from fusedreduce.ir.philox import random
from fusedreduce.plan import pairs as plans
from fusedreduce.run import pair_printed
from tests import printing
from tests.attention import check, inputs
from tests.compile.test_functions import imported
from tests.dropout import kept, plain

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN")  # of rows that do not exist
P = 0.3
KERNEL = """
@triton.jit
def bits(seed_ptr, out_ptr, i0, j0, h, b, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i = i0 + tl.arange(0, ROWS)
    j = j0 + tl.arange(0, COLUMNS)
    seed = tl.load(seed_ptr)
    at = out_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(at, random(seed, i[:, None], h, j[None, :], b))
"""


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What nobody writes is NaN."""
    with printing.poisoned():
        yield


@pytest.fixture(params=[(16, 16, 4, 1), (32, 16, 4, 1)], ids=str)
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of short sequences, whoever launches."""

    def plan_of(pair: Any, direction: str, device: Any, tile: Any = None) -> Any:
        return plans.plan(pair, direction, device, tile or request.param)

    monkeypatch.setattr(pair_printed, "plan_of", plan_of)


def dropped(q: Any, k: Any, v: Any, seed: Any = 7, **more: Any) -> Any:
    return fr.attention(q, k, v, enable_gqa=True, dropout_p=P, rng_seed=seed, impl="triton", **more)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 81985529216486895])
def test_the_printed_function_makes_the_same_bits(seed: int, tmp_path: Path) -> None:
    module = imported("printed_random", ["random"], [KERNEL], tmp_path)
    out = torch.empty(32, 64, dtype=torch.int32)
    for i0, j0, h, b in ((0, 0, 0, 0), (128, 77, 3, 1), (2**31 - 64, 5, 31, 7)):
        module.bits[(1,)](torch.tensor([seed]), out, i0, j0, h, b, 32, 64)
        i, j = torch.arange(i0, i0 + 32)[:, None], torch.arange(j0, j0 + 64)
        right = random(torch.tensor(seed), i, torch.tensor(h), j, torch.tensor(b))
        assert torch.equal(out.long(), right)


@pytest.mark.usefixtures("tile")
def test_the_same_pairs_are_dropped() -> None:
    q, k = torch.zeros(2, 4, 33, 16), torch.zeros(2, 2, 40, 16)
    whole = kept(q, k, P, 7, "eager")
    assert torch.equal(kept(q, k, P, 7, "triton"), whole)
    piece = kept(q[:, :, 5:], k[:, :, 11:], P, 7, "triton", q_offset=5, k_offset=11)
    assert torch.equal(piece, whole[:, :, 5:, 11:])


@pytest.mark.parametrize("group", [2, 4])
def test_one_query_a_head(group: int) -> None:
    """The heads that share keys are the rows of one tile; they draw as heads."""
    q, k = torch.zeros(2, 4, 1, 16), torch.zeros(2, 4 // group, 40, 16)
    assert torch.equal(kept(q, k, P, 7, "triton"), kept(q, k, P, 7, "eager"))
    piece = kept(q, k, P, 7, "triton", q_offset=39, is_causal=True)
    assert torch.equal(piece, kept(q, k, P, 7, "eager", q_offset=39))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "documents"])
@pytest.mark.usefixtures("tile")
def test_forward_and_gradients(mask: str, dtype: torch.dtype) -> None:
    i, j, ids = torch.arange(33)[:, None], torch.arange(40), torch.arange(40) // 9
    more: dict[str, Any] = {"none": {}, "causal": {"is_causal": True},
                            "documents": {"mask": fr.masks.document(ids)}}[mask]  # fmt: skip
    seen = {"none": None, "causal": i >= j, "documents": ids[:33, None] == ids}[mask]
    tensors = inputs(B=1, Hk=2, Sq=33, Sk=40, DV=8, dtype=dtype)
    keep = kept(*tensors[:2], P, 7, "eager")
    check(dropped(*tensors, **more), lambda q, k, v: plain(q, k, v, keep, P, seen), tensors, mask)


def test_an_unaligned_seed_and_sinks() -> None:
    q, k, v = (t.detach() for t in inputs(Sq=9, Sk=9, dtype=torch.float32))
    seeds, sinks = torch.arange(9), torch.randn(4)
    right = fr.attention(q, k, v, dropout_p=P, rng_seed=7, sinks=sinks, impl="eager")
    torch.testing.assert_close(dropped(q, k, v, seeds[7:8], sinks=sinks), right)


def test_gradient_of_a_bias_of_every_pair() -> None:
    """The kernel of a table's gradient reads the number `kept`, whatever it calls its own."""
    q, k, v = (torch.randn(2, 2, n, 4) for n in (4, 5, 5))
    bias, up = torch.randn(2, 2, 4, 5, requires_grad=True), torch.randn(2, 2, 4, 4)
    scored = fr.score(lambda s, b, h, i, j: s + bias[b, h, i, j])
    keep = kept(q, k, P, 7, "triton")
    right = torch.where(keep, (q @ k.mT * 0.5 + bias).softmax(-1) / (1.0 - P), 0.0) @ v
    out = fr.attention(q, k, v, score_mod=scored, dropout_p=P, rng_seed=7, impl="triton")
    wanted, got = (torch.autograd.grad(o, bias, up)[0] for o in (right, out))
    torch.testing.assert_close(got, wanted)
