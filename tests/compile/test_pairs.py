"""Printed pair kernels compile for sm_80, sm_90a and sm_100a within limits of device and plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusedreduce.gradient.pairs import backward
from fusedreduce.plan.device import MAX_REGISTERS, device
from fusedreduce.run import pair_launch
from fusedreduce.run.compiled import Needs
from fusedreduce.run.pair_inputs import PairInputs
from tests import pairs
from tests.compile.aot import compile_pair
from tests.pairs import DECLARED, Case, arguments, masked, scored, sizes

BY_NAME = {c.name: c for c in DECLARED}
SOFTMAX = BY_NAME["softmax"]
DIRECTIONS = ("forward", "queries", "keys")
CASES = [
    *(c for c in DECLARED if c.name != "moments"),
    *(masked(SOFTMAX, m) for m in ("causal", "by head", "documents")),
    *(scored(SOFTMAX, s, "causal") for s in ("softcap", "alibi", "bias")),
]
"""Bytes of stack that a kernel of d k and d v may take: two accumulators, p and ds are alive."""
SPILLED = {64: 0, 128: 320}


def compiled(
    case: Case, direction: str, capability: int, D: int = 64, dtype: torch.dtype = torch.bfloat16,
    group: int = 1,
) -> tuple[Needs, pair_launch.PairPlan]:  # fmt: skip
    """As a launch of long sequences would build it; no tensor is computed."""
    a = arguments(case, sizes(256, 256, B=1, H=group, D=D, DV=D, group=group), dtype)
    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    b = None if direction == "forward" else backward(pair, ("q", "k", "v"))
    used = pair if b is None else b.forward
    plan = pair_launch.plan_of(used, direction, divmod(capability, 10))
    return compile_pair(loaded(case, used, b, inputs, plan), used, b, capability), plan


def loaded(case: Case, pair: Any, b: Any, inputs: PairInputs, plan: Any) -> pair_launch.Loaded:
    blocks = pair_launch.blocks_of(pair, inputs, plan)
    if b is not None:
        return pair_launch.backward_kernel(b, plan, blocks, pair_launch.precision(pair))
    positive = tuple(case.numbers)
    return pair_launch.forward_kernel(pair, plan, blocks, positive, pair_launch.precision(pair))


def check(found: Needs, plan: pair_launch.PairPlan, capability: int, stack: int) -> None:
    limits = device(divmod(capability, 10))
    assert found.shared <= limits.shared_bytes, found
    assert found.registers <= MAX_REGISTERS, found
    assert found.stack <= stack, f"{plan.describe()} spills: {found}"


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_compiles(case: Case, direction: str) -> None:
    found, plan = compiled(case, direction, 90)
    print("FOUND", case.name, direction, found)
    check(found, plan, 90, 1000)


@pytest.mark.parametrize("capability", [80, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_other_devices(direction: str, capability: int) -> None:
    found, plan = compiled(masked(SOFTMAX, "causal"), direction, capability, group=2)
    print("FOUND", capability, direction, found)
    check(found, plan, capability, 1000)


@pytest.mark.parametrize("D", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_shipped_plans(direction: str, D: int) -> None:
    found, plan = compiled(masked(SOFTMAX, "causal"), direction, 90, D)
    print("FOUND", D, direction, found, plan)
    check(found, plan, 90, 10000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_dtypes(direction: str, dtype: torch.dtype) -> None:
    found, plan = compiled(masked(SOFTMAX, "causal"), direction, 90, 64, dtype)
    print("FOUND", dtype, direction, found, plan)
    check(found, plan, 90, 10000)
