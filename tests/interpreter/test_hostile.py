"""Printed kernels on inputs that nobody means to give: what went wrong with them once."""

from __future__ import annotations

import torch

from fusedreduce import ops

INF = float("inf")


def test_bfloat16_rounded_inside_beside_a_float64_weight() -> None:
    """float64 becomes bfloat16 by way of float32, as torch's does."""
    x, weight = torch.randn(3, 7).bfloat16(), torch.rand(7).double()
    found = ops.rms_norm(x, (7,), weight, 1e-6, casting="llama", impl="triton")
    h = x.double()
    y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16().double()
    # NOTE: the interpreter cuts off what bfloat16 does not hold
    torch.testing.assert_close(found, y * weight, rtol=2**-7, atol=0.0)


def test_entropy_of_a_row_of_nothing_beside_its_largest() -> None:
    rows = torch.tensor([[-INF, -INF, -INF], [0.0, 0.0, 0.0]])
    found = ops.loss_head(rows, torch.tensor([1, 1]), impl="triton")
    torch.testing.assert_close(found["entropy"], torch.tensor([0.0, 1.0986123]))


def test_narrow_labels_of_many_classes() -> None:
    x, target = torch.randn(3, 300), torch.tensor([0, 44, 3], dtype=torch.int8)
    options = {"ignore_index": 259, "reduction": "none"}  # 259 is 3 in int8
    found = ops.cross_entropy(x, target, impl="triton", **options)
    torch.testing.assert_close(found, ops.cross_entropy(x, target.long(), impl="eager", **options))
