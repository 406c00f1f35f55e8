"""The operations on torch tensors as kernels compute them, whatever the dtypes in memory.

Integers are computed in int64 and floats in the dtype of the state; a conversion that the user
wrote rounds or wraps, and what follows is computed in those two again.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fusedreduce.ir.evaluate import Dialect, dialect


def load(value: Tensor, state: torch.dtype) -> Tensor:
    """What is computed with: floats in the state's dtype, integers in int64."""
    if value.dtype == torch.bool:
        return value
    return value.to(state if value.dtype.is_floating_point else torch.int64)


@lru_cache(maxsize=16)
def torch_dialect(state: torch.dtype, device: torch.device) -> Dialect:
    kinds = {"float": state, "int": torch.int64, "bool": torch.bool}

    def cast(value: Tensor, to: str) -> Tensor:
        """An explicit conversion rounds; what follows is computed in the state's dtype again."""
        wanted = kinds.get(to) or getattr(torch, to)
        rounded = value.to(wanted)
        if wanted == torch.bool or wanted == torch.float64:
            return rounded
        return rounded.to(state if wanted.is_floating_point else torch.int64)

    def const(value: float) -> Tensor:
        dtype = state if isinstance(value, float) else None
        return torch.tensor(value, dtype=dtype, device=device)

    return dialect("torch", {"torch": torch}, const=const, cast=cast, dtype=state)
