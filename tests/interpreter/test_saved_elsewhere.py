"""Saved tensors that come back with other strides: hooks may move, copy or compress them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import fusedreduce as fr

HOW: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.transpose(1, 2),
    "expanded": lambda t: t[:, :, :1].transpose(1, 2).expand(-1, 3, -1, -1),
    "windows": lambda t: t[:, :, 0].unfold(1, 3, 2).transpose(2, 3),
}


def gradients(
    run: Callable[..., Tensor], given: list[Tensor], up: Tensor, copied: bool
) -> tuple[Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in given]
    if not copied:
        return torch.autograd.grad(run(*leaves), leaves, up)
    with saved_tensors_hooks(lambda t: t, lambda t: t.contiguous()):
        out = run(*leaves)
    return torch.autograd.grad(out, leaves, up)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_attention(how: str, first: bool) -> None:
    """Twice each, so that what was prepared is kept; the first of both settles the launches."""
    given, lying = [torch.randn(2, 9, 3, 8) for _ in range(3)], HOW[how]
    q, _, v = map(lying, given)
    up = torch.randn(*q.shape[:3], v.shape[3])

    def plain(*ts: Tensor) -> Tensor:
        q, k, v = map(lying, ts)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    def fused(*ts: Tensor) -> Tensor:
        return fr.attention(*map(lying, ts), impl="triton")

    right = gradients(plain, given, up, False)
    for copied in (first, first, not first, not first):
        for got, wanted in zip(gradients(fused, given, up, copied), right, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("first", [False, True])
def test_rows(first: bool) -> None:
    given, up = [torch.randn(9, 70)], torch.randn(70, 9)
    right = gradients(lambda x: x.t().softmax(-1), given, up, False)
    for copied in (first, not first):
        got = gradients(lambda x: fr.ops.softmax(x.t(), -1, impl="triton"), given, up, copied)
        torch.testing.assert_close(got, right)
