"""Attention's printed kernels compile within a device's limits; explain says what they need."""

from __future__ import annotations

import re

import pytest
import torch

import fusedreduce as fr
from fusedreduce.plan.device import MAX_REGISTERS, device
from tests.compile.aot import older

NEEDS = re.compile(
    r"compiled for sm_(\d+): (\d+) registers a thread, "
    r"(no spills|(\d+) bytes of stack \(spills\)), ([\d,]+) bytes shared"
)


def told(capability: int, *shape: int) -> tuple[str, list[tuple[int, int, int]]]:
    """The report on causal attention; registers, stack and shared bytes of its three kernels."""
    q = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    text = fr.explain(fr.attention, q, q, q, is_causal=True, architecture=f"sm_{capability}")
    found = [(int(r), int(stack or 0), int(shared.replace(",", "")))
             for _, r, _, stack, shared in NEEDS.findall(text)]  # fmt: skip
    assert len(found) == 3, text
    return text, found


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("D", [64, 128])
def test_attention_fits(D: int, capability: int) -> None:
    text, found = told(capability, 1, 2, 1024, D)
    limits = device(divmod(capability, 10))
    for registers, stack, shared in found:
        assert registers <= MAX_REGISTERS, text
        assert shared <= limits.shared_bytes, text
        assert stack <= 128 + older(32) or capability != 90, text  # plans are measured on Hopper


def test_the_merge_of_split_keys_is_compiled_too() -> None:
    q, k = (torch.empty(1, 8, n, 64, dtype=torch.bfloat16, device="meta") for n in (1, 8192))
    text = fr.explain(fr.attention, q, k, k)
    assert len(NEEDS.findall(text)) == 4, text


def test_a_row_kernel_is_compiled_too() -> None:
    text = fr.explain(fr.ops.softmax, torch.empty(64, 1000, device="meta"), -1)
    assert len(NEEDS.findall(text)) == 1, text
