"""Learned tables of every layout: a tile of scores lies as the table that it was made of."""

from __future__ import annotations

import itertools

import pytest
import torch

import fusedreduce as fr


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
def test_permuted(order: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(2, 4, n, 3) for n in (2, 5, 5))
    shape = (2, 4, 2, 5)
    made = torch.randn([shape[d] for d in order]).permute(*map(order.index, range(4)))
    bias = made.detach().requires_grad_()
    assert bias.shape == shape
    up = torch.randn(2, 4, 2, 3)
    scored = fr.score(lambda s, b, h, i, j: bias[b, h, i, j] * s)
    out = fr.attention(q, k, v, score_mod=scored, impl="tiles")
    right = (q @ k.mT * 3**-0.5 * bias).softmax(-1) @ v
    got, wanted = (torch.autograd.grad(o, bias, up)[0] for o in (out, right))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("at", [0, 1, 2, -1])
def test_element_at_a_number(at: int) -> None:
    """Beside an index: 1 times a stride is the stride alone."""
    q, k, v = (torch.randn(2, 4, n, 3) for n in (2, 5, 5))
    bias = torch.randn(4, 3, requires_grad=True)
    up = torch.randn(2, 4, 2, 3)
    scored = fr.score(lambda s, b, h, i, j: s * bias[h, at])
    out = fr.attention(q, k, v, score_mod=scored, impl="tiles")
    right = (q @ k.mT * 3**-0.5 * bias[:, at, None, None]).softmax(-1) @ v
    got, wanted = (torch.autograd.grad(o, bias, up)[0] for o in (out, right))
    torch.testing.assert_close(got, wanted)
