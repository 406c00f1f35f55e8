"""Printed kernels on inputs that nobody means to give: what went wrong with them once."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_slope_of_a_product_is_torchs_where_that_is_infinite(dtype: torch.dtype) -> None:
    nan = float("nan")
    rows = [[INF, 0.0, 1.0], [INF, INF, 0.0], [nan, 0.0, 0.0], [0.0, 2.0, 3.0]]
    mine, theirs = (torch.tensor(rows, dtype=dtype).requires_grad_() for _ in range(2))
    found, right = fr.reduce(fr.reductions.Product, mine, impl="triton"), theirs.prod(-1)
    slopes = torch.autograd.grad(found.sum(), mine), torch.autograd.grad(right.sum(), theirs)
    torch.testing.assert_close(*slopes, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_similarity_of_a_row_of_subnormal_numbers_has_a_slope(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.25, -0.5, 0.0], [6.0, 2.0, 1.0]], dtype=dtype) * torch.finfo(dtype).tiny
    x, y = x.requires_grad_(), torch.tensor([[0.5, 0.5, 1.0], [1.0, 2.0, 1.0]], dtype=dtype)
    found = ops.cosine_similarity(x, y, eps=1e-3, impl="triton")
    (slope,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slope, torch.nn.functional.normalize(y) / 1e-3)
