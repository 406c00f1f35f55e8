"""Gradients of fused functions beside torch's, for every floating argument that there is."""

from __future__ import annotations

from typing import Any

import torch

import fusedreduce as fr
from tests import chains


def gradients(fn: Any, args: chains.Tensors, ups: list[torch.Tensor], **options: Any) -> list[Any]:
    """The gradients of sum(outputs * ups) for every floating tensor argument."""
    given = tuple(
        a.detach().clone().requires_grad_()
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in args
    )
    outputs = [t for t in chains.flat(fn(*given, **options)) if t.is_floating_point()]
    wanted = [a for a in given if isinstance(a, torch.Tensor) and a.requires_grad]
    pairs = [(o, u.to(o)) for o, u in zip(outputs, ups, strict=True) if o.requires_grad]
    return list(
        torch.autograd.grad([o for o, _ in pairs], wanted, [u for _, u in pairs], allow_unused=True)
    )


def upstream(case: chains.Case, args: chains.Tensors) -> list[torch.Tensor]:
    """Random gradients of the outputs."""
    outputs = [t for t in chains.flat(case.reference(*args)) if t.is_floating_point()]
    return [torch.randn(o.shape, dtype=torch.float64, device=o.device) for o in outputs]


def check(case: chains.Case, args: chains.Tensors, k: float = 3.0, **options: Any) -> None:
    """error <= k x the error of torch's own gradient at the same precision, plus a floor."""
    ups = upstream(case, args)
    reference = case.smooth or case.reference
    right = gradients(reference, chains.doubled(args), ups)
    plain = gradients(reference, args, ups)
    got = gradients(fr.fuse(case.fn), args, ups, **options)
    for k_, (g, r, p) in enumerate(zip(got, right, plain, strict=True)):
        if r is None:
            assert g is None or not g.any(), (case.name, k_)
            continue
        assert g is not None, (case.name, k_)
        assert g.shape == r.shape, (case.name, k_, g.shape, r.shape)
        state = torch.float64 if g.dtype == torch.float64 else torch.float32
        scale = max(1e-3, float(r.abs().max()))
        floor = 16 * torch.finfo(state).eps * scale + torch.finfo(g.dtype).eps * scale
        error = float((g.double() - r).abs().max())
        allowed = k * float((p.double() - r).abs().max()) + floor
        assert error <= allowed, (case.name, k_, error, allowed)
