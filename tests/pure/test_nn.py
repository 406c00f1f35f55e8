"""Modules of fr.nn beside torch.nn's: state dicts, texts, values, gradients."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch

import fusedreduce as fr

IMAGE, SEQUENCE, ROWS = (2, 6, 5, 4), (2, 6, 5), (3, 8)
MODULES = [
    ("LayerNorm", (8,), {}, ROWS),
    ("LayerNorm", ((5, 4),), {"eps": 0.1, "bias": False}, IMAGE),
    ("LayerNorm", (8,), {"elementwise_affine": False}, ROWS),
    ("LayerNorm", (8,), {"dtype": torch.float64}, ROWS),
    ("RMSNorm", (8,), {}, ROWS),
    ("RMSNorm", ([5, 4],), {"eps": 1e-6, "elementwise_affine": False}, IMAGE),
    ("GroupNorm", (3, 6), {}, IMAGE),
    ("GroupNorm", (2, 6), {"affine": False, "eps": 0.5}, SEQUENCE),
    ("InstanceNorm1d", (6,), {"affine": True}, SEQUENCE),
    ("InstanceNorm1d", (6,), {"track_running_stats": True}, SEQUENCE[1:]),
    ("InstanceNorm2d", (6,), {"affine": True, "track_running_stats": True}, IMAGE),
    ("InstanceNorm2d", (6,), {"momentum": 0.5, "track_running_stats": True}, IMAGE),
    ("InstanceNorm3d", (2,), {"affine": True}, (2, 2, 3, 5, 4)),
    ("Softmax", (-1,), {}, ROWS),
    ("LogSoftmax", (0,), {}, ROWS),
    ("Softmin", (), {"dim": 1}, IMAGE),
]
each = pytest.mark.parametrize(("name", "args", "options", "shape"), MODULES, ids=str)


def twins(name: str, args: Any, options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """torch.nn's with random parameters, and ours with the same by its state dict."""
    theirs, ours = (getattr(n, name)(*args, **options) for n in (torch.nn, fr.nn))
    for p in theirs.parameters():
        torch.nn.init.normal_(p)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@each
def test_state_dict_and_text(name: str, args: Any, options: Any, shape: Any) -> None:
    theirs, ours = twins(name, args, options)
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, type(theirs))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    again = copy.deepcopy(ours)
    for k, v in ours.state_dict().items():
        assert torch.equal(v, theirs.state_dict()[k])
        assert torch.equal(v, again.state_dict()[k])


@each
def test_signature(name: str, args: Any, options: Any, shape: Any) -> None:
    ours, theirs = (inspect.signature(getattr(n, name)) for n in (fr.nn, torch.nn))
    assert list(ours.parameters) == list(theirs.parameters)


@each
def test_values_and_gradients(name: str, args: Any, options: Any, shape: Any) -> None:
    theirs, ours = twins(name, args, options)
    dtype = options.get("dtype", torch.float32)
    for training in (True, True, False):
        ours.train(training), theirs.train(training)
        x, y = (torch.randn(shape, dtype=dtype) for _ in "xy")
        y = x.clone()
        got, wanted = ours(x.requires_grad_()), theirs(y.requires_grad_())
        torch.testing.assert_close(got, wanted)
        up = torch.randn_like(wanted)
        found = torch.autograd.grad(got, [x, *ours.parameters()], up)
        right = torch.autograd.grad(wanted, [y, *theirs.parameters()], up)
        for g, r in zip(found, right, strict=True):
            torch.testing.assert_close(g, r, rtol=1e-4, atol=1e-5)
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_cosine_similarity() -> None:
    theirs, ours = (n.CosineSimilarity(dim=-1, eps=0.1) for n in (torch.nn, fr.nn))
    x, y = torch.randn(2, 3, 8)
    torch.testing.assert_close(ours(x, y), theirs(x, y))
    assert repr(ours) == repr(theirs)


def test_rms_norm_with_residual() -> None:
    norm = fr.nn.RMSNorm(8, eps=1e-6)
    x, h = torch.randn(2, 3, 8)
    y, out = norm(x, residual=h, casting="gemma")
    assert torch.equal(out, x + h)
    torch.testing.assert_close(y, 2 * torch.rms_norm(x + h, (8,), eps=1e-6))


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="4D"):
        fr.nn.InstanceNorm2d(3)(torch.randn(2, 3))
    with pytest.raises(fr.errors.ShapeError, match="`dim`"):
        fr.nn.Softmax()(torch.randn(3))


def test_every_module_has_a_twin() -> None:
    assert {*fr.nn.__all__} <= {*dir(torch.nn)}
