"""Attention that drops compiles for sm_80, sm_90a and sm_100a, and shares the rounds of Philox."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusedreduce as fr
from fusedreduce.gradient.pairs import backward
from fusedreduce.ir.philox import ROUNDS
from fusedreduce.pairing import Given, pair_of
from fusedreduce.plan.device import MAX_REGISTERS, device
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.run import compiled as reading
from fusedreduce.run import pair_kernels
from fusedreduce.run.compiled import Needs
from fusedreduce.runner import noting
from tests.compile.aot import compile_pair, older

#: Bytes of stack by device, direction and width, bfloat16 with a causal mask; more is a regression.
STACK = {
    (80, "keys", 64): 128, (80, "queries", 128): 640, (80, "keys", 128): 128,
    (90, "keys", 64): 64, (90, "keys", 128): 384, (100, "keys", 64): 192, (100, "keys", 128): 256,
}  # fmt: skip


def compiled(direction: str, capability: int, D: int, **more: Any) -> tuple[Needs, PairPlan]:
    """As a launch of long sequences would build it; no tensor is computed."""
    q = torch.empty(1, 2, 256, D, dtype=torch.bfloat16)
    with noting() as calls:
        fr.attention(q, q, q, dropout_p=0.1, rng_seed=0, **more)
    task, values = calls[0].runner.task, calls[0].values
    pair = pair_of(task, values, trust=False)
    b = None if direction == "forward" else backward(pair, ("q", "k", "v"))
    used = pair if b is None else b.forward
    plan = pair_kernels.plan_of(used, direction, divmod(capability, 10))
    blocks = pair_kernels.blocks_of(used, Given(task, values).inputs(pair.numbers), plan)
    if b is None:
        ready = pair_kernels.forward_kernel(pair, plan, blocks, pair.numbers, "")
    else:
        ready = pair_kernels.backward_kernel(b, plan, blocks, "")
    return compile_pair(ready, used, b, capability), plan


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("direction", ["forward", "queries", "keys"])
def test_compiles(direction: str, D: int, capability: int) -> None:
    found, plan = compiled(direction, capability, D, is_causal=True)
    assert found.shared <= device(divmod(capability, 10)).shared_bytes, found
    assert found.registers <= MAX_REGISTERS, found
    more = older(32 if (capability, direction, D) == (90, "keys", 128) else 0)
    most = STACK.get((capability, direction, D), 0) + more
    assert found.stack <= most, f"{plan.describe()}: {found}"


@pytest.mark.parametrize("direction", ["forward", "queries"])
def test_four_pairs_share_the_rounds(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On sm_90 a thread holds all four; of two products a round two rounds are made once a row."""
    texts = []
    read = reading.read
    monkeypatch.setattr(reading, "read", lambda b: (texts.append(b.asm["ptx"]), read(b))[1])
    _, plan = compiled(direction, 90, 128)
    (text,) = texts
    pairs = plan.QUERIES * plan.KEYS // (32 * plan.num_warps)
    assert 0 < text.count("mul.hi.u32") <= 2 * ROUNDS * pairs // 4
