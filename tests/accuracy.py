"""The accuracy rule: as good as plain PyTorch at the same precision, times k, plus a floor."""

from __future__ import annotations

import torch


def require_near(
    got: torch.Tensor,
    right: torch.Tensor,
    plain: torch.Tensor,
    k: float,
    what: object = "",
    noise: float = 0.0,
) -> None:
    """|got - right| <= k |plain - right| + 16 eps(state) max(1e-3, max |right|) + eps(dtype) max.

    right   in float64
    plain   what torch answers at the precision of `got`
    noise   what is left where terms much larger than the result cancel
    Where right overflows the dtype or is NaN, got is what it rounds to.
    """
    assert got.shape == right.shape == plain.shape, (what, got.shape, plain.shape)
    assert got.dtype == plain.dtype, (what, got.dtype, plain.dtype)
    dtype, finite = got.dtype, torch.isfinite(right.to(got.dtype))
    assert torch.allclose(
        got[~finite].double(), right.to(dtype)[~finite].double(), equal_nan=True
    ), what
    if not finite.any():
        return
    got, right, plain = (t[finite].double() for t in (got, right, plain))
    state = torch.float64 if dtype == torch.float64 else torch.float32
    scale = max(1e-3, float(right.abs().max()))
    floor = (16 * torch.finfo(state).eps + torch.finfo(dtype).eps) * scale
    unfused = (plain - right).abs()
    error, allowed = float((got - right).abs().max()), k * float(unfused.nan_to_num(0.0, 0.0).max())
    assert error <= allowed + floor + noise, (what, error, allowed, floor, noise)
