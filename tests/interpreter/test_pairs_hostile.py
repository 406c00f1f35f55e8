"""Printed pair kernels: mixes of sinks, half precision and scores by head that failed once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fusedreduce as fr

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of rows that do not exist


def require(
    got: Callable[..., Tensor], meaning: Callable[..., Tensor], args: tuple[Tensor, ...]
) -> None:
    """All gradients of the printed kernels beside those of the meaning, by the accuracy rule."""
    up = torch.randn(args[0].shape[:3], dtype=torch.float64)

    def gradients(function: Callable[..., Tensor], dtype: torch.dtype | None) -> list[Tensor]:
        own = [a.detach().to(dtype or a.dtype).requires_grad_() for a in args]
        out = function(*own).double().sum(-1)
        return [g.double() for g in torch.autograd.grad((out * up).sum(), own)]

    rows = zip(
        args, gradients(got, None), gradients(meaning, torch.float64), gradients(meaning, None),
        strict=True,
    )  # fmt: skip
    for a, mine, right, plain in rows:
        scale = max(1e-3, float(right.abs().max()))
        floor = (16 * torch.finfo(torch.float32).eps + torch.finfo(a.dtype).eps) * scale
        assert (mine - right).abs().max() <= 3 * (plain - right).abs().max() + floor


def softmax(score: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    virtual = sinks.to(score.dtype)[:, None, None].expand(*score.shape[:3], 1)
    return torch.softmax(torch.cat([score, virtual], -1), -1)[..., :-1] @ v


def test_sinks_in_half_precision() -> None:
    """The adjoint of a state is wider than v: both meet in one product."""
    q, k, v = (torch.randn(1, 2, n, 5).half() for n in (7, 9, 9))
    require(
        lambda *a: fr.attention(*a[:3], sinks=a[3], impl="triton"),
        lambda q, k, v, s: softmax(q @ k.mT / math.sqrt(5), v, s),
        (q, k, v, torch.randn(2)),
    )


@pytest.mark.parametrize("table", [False, True], ids=["h", "table[h]"])
@pytest.mark.parametrize("shared", [1, 2])
def test_scale_by_head(shared: int, table: bool) -> None:
    """A factor of run-time numbers and the head, in kernels that learn the head late."""
    by = torch.tensor([1.0, 2.0])
    q, k, v = torch.randn(1, 2, 7, 5), torch.randn(1, shared, 9, 5), torch.randn(1, shared, 9, 5)
    factor = (lambda h: by[h]) if table else (lambda h: 1 + h)

    def meaning(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        k, v = (t.repeat_interleave(2 // shared, 1) for t in (k, v))
        scores = q @ k.mT / math.sqrt(5) * by.to(q)[:, None, None]
        return softmax(scores - 0.5 * torch.arange(7)[:, None], v, s)

    require(
        lambda *a: fr.attention(
            *a[:3], sinks=a[3], enable_gqa=True, impl="triton",
            score_mod=lambda s, b, h, i, j: s * factor(h) - i * 0.5,
        ),
        meaning,
        (q, k, v, torch.randn(2)),
    )  # fmt: skip


@pytest.mark.parametrize("R", [fr.reductions.Largest, fr.reductions.Argmin])
def test_state_with_a_hidden_slot(R: type[fr.Reduction]) -> None:
    """A position keeps the value it belongs to, in a slot that no field is named after."""
    q, k = torch.randn(1, 2, 7, 5), torch.randn(1, 2, 9, 5)
    _, made = fr.pairwise(R, q, k, mask=fr.masks.causal, return_state=True, impl="triton")
    _, right = fr.pairwise(R, q, k, mask=fr.masks.causal, return_state=True, impl="eager")
    assert made.keys() == right.keys()
    for name, slot in right.items():
        torch.testing.assert_close(made[name], slot)
