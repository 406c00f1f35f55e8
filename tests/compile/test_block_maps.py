"""Kernels of block maps and of their lists compile everywhere, and keep to registers."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.plan.device import MAX_REGISTERS
from fusedreduce.run.compiled import pair_needs
from fusedreduce.run.pair_lists import BlockMap, lists_kernel
from tests.block_maps import PRINTED, prepared

CPU = torch.device("cpu")
NAMES = ("documents and causal", "documents in a window", "a prefix a head", "packed sequences")


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("name", NAMES)
def test_map(name: str, capability: int) -> None:
    assert name in PRINTED
    made = prepared(name, 300, 300, CPU)
    launch = BlockMap(made.pair, made.inputs, made.plan("forward")).launch
    assert launch is not None
    found = pair_needs(launch.ready.kernel, launch.ready.plan, made.pair, capability)
    assert (found.stack, found.registers <= MAX_REGISTERS // 2) == (0, True), found


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_lists(capability: int) -> None:
    made, ready = prepared("causal", 70, 70, CPU), lists_kernel()
    found = pair_needs(ready.kernel, ready.plan, made.pair, capability)
    assert (found.stack, found.registers <= 64) == (0, True), found
