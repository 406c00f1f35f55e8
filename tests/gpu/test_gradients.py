"""The printed backward on the device: every fused function, every floating argument."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from tests import chains, gradients, references
from tests.gpu.test_rows import moved


@pytest.mark.parametrize("case", [*chains.CASES, *references.CASES], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (5, 130, torch.float64), (300, 1025, torch.float32), (129, 1023, torch.bfloat16),
        (64, 20000, torch.float32), (256, 4096, torch.bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_gradients(case: chains.Case, rows: int, columns: int, dtype: torch.dtype, device) -> None:
    if case.name == "weighted_values" and columns > 5000:
        pytest.skip("the expanded payload of the plain formula")
    torch.manual_seed(0)
    gradients.check(case, moved(case.inputs(rows, columns, dtype), device))


def test_gradients_repeat_bit_for_bit(device) -> None:
    case = next(c for c in chains.CASES if c.name == "layer_norm")
    args = moved(case.inputs(8192, 2048, torch.bfloat16), device)
    ups = gradients.upstream(case, args)
    layer_norm = fr.fuse(case.fn)
    first = gradients.gradients(layer_norm, args, ups)
    for _ in range(20):
        again = gradients.gradients(layer_norm, args, ups)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
