"""What flows back into an ordinary run: lazily negated, batched by vmap, with tangents."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad, grad

import fusedreduce as fr

IMPLS = ["tiles", "triton"]
Run = Callable[[Tensor], Tensor]


def alone(x: Tensor) -> list[Tensor]:
    return [x[None, None]] * 3


def attended(x: Tensor) -> Tensor:
    q, k, v = alone(x)
    return (q @ k.mT / x.shape[1] ** 0.5).softmax(-1) @ v


CASES: dict[str, tuple[Callable[[Tensor, str], Tensor], Run]] = {
    "softmax": (lambda x, i: fr.ops.softmax(x, -1, impl=i), lambda x: torch.softmax(x, -1)),
    "layer_norm": (
        lambda x, i: fr.ops.layer_norm(x, (16,), impl=i),
        lambda x: F.layer_norm(x, (16,)),
    ),
    "attention": (lambda x, i: fr.attention(*alone(x), impl=i), attended),
}


def made(case: str, impl: str) -> tuple[Tensor, Tensor, Tensor]:
    """A leaf, our result of it and torch's."""
    ours, plain = CASES[case]
    x = torch.randn(4, 16, requires_grad=True)
    return x, ours(x, impl), plain(x)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES)
def test_lazily_negated(case: str, impl: str) -> None:
    """As from the imaginary part of a conjugate: memory holds the values with the other sign."""
    for _ in range(2):
        x, y, right = made(case, impl)
        up = torch.complex(torch.zeros_like(right), torch.randn_like(right)).detach().conj().imag
        assert up.is_neg()
        torch.testing.assert_close(grad(y, x, up), grad(right, x, up), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES)
def test_batched_by_vmap(case: str, impl: str) -> None:
    for _ in range(2):
        x, y, right = made(case, impl)
        ups = torch.randn(3, *y.shape)
        for twice in (False, True):
            back = lambda of: lambda up: grad(of, x, up, retain_graph=True, create_graph=twice)[0]  # noqa: B023
            found = torch.vmap(back(y))(ups)
            wanted = torch.stack([back(right)(up) for up in ups])
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
        again, plain = (grad(t.square().sum(), x)[0] for t in (found, wanted))
        torch.testing.assert_close(again, plain, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES)
def test_with_tangents(case: str, impl: str) -> None:
    x, y, right = made(case, impl)
    up, tangent = torch.randn_like(right), torch.randn_like(right)
    wanted = grad(right, x, tangent, retain_graph=True)[0]  # linear in what flows back
    _, found = torch.func.jvp(lambda up: grad(y, x, up, retain_graph=True)[0], (up,), (tangent,))
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
    with forward_ad.dual_level():
        dual = grad(y, x, forward_ad.make_dual(up, tangent))[0]
        found = forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
