"""Operations and modules inside torch.compile, in one graph, and under torch.func."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce import ops as public
from tests import chains, ops
from tests.pure.test_fit import compiled


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", ops.CASES, ids=lambda c: c.name)
def test_compiles_with_its_gradients(case: chains.Case, dynamic: bool) -> None:
    torch.manual_seed(0)
    fast = compiled(case.fn, dynamic=dynamic)
    for columns in (17, 40) if dynamic else (17,):
        args = [t.requires_grad_() for t in case.inputs(3, columns, torch.float32)]
        found = []
        for fn in (fast, case.fn):
            results = chains.flat(fn(*args))
            ups = [torch.ones_like(r) for r in results]
            found.append([*results, *torch.autograd.grad(results, args, ups, allow_unused=True)])
        for a, b in zip(*found, strict=True):
            assert a is b is None or torch.equal(a, b)


def test_a_model_of_modules_compiles() -> None:
    def model(n):
        return torch.nn.Sequential(
            n.InstanceNorm2d(6, affine=True, track_running_stats=True), n.GroupNorm(2, 6),
            n.LayerNorm(4), n.RMSNorm(4), n.Softmax(-1),
        )  # fmt: skip

    ours, theirs = model(fr.nn), model(torch.nn)
    fast = compiled(ours)
    x = torch.randn(2, 6, 5, 4)
    torch.testing.assert_close(fast(x), theirs(x))
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_transforms() -> None:
    x = torch.randn(3, 8, dtype=torch.float64)

    def loss(n):
        return lambda x: n.layer_norm(x, (8,)).pow(3).sum()

    torch.testing.assert_close(torch.func.grad(loss(public))(x), torch.func.grad(loss(F))(x))
