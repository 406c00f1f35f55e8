"""`dropout_p=` and `rng_seed=`, checked; the seed as a tensor, which graphs and backwards read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce.errors import DeviceError, OptionError, message
from fusedreduce.run.pair_dropout import Dropout, Offsets


def dropout_of(p: Any, rng_seed: Any, q: Tensor, by: Offsets) -> Dropout | None:
    """None where nothing is dropped; `by` are the offsets of a call, by name."""
    chance = probability(p)
    return None if chance == 0.0 else Dropout(chance, seed_of(rng_seed, q.device), by)


def probability(p: Any) -> float:
    try:
        if isinstance(p, (Tensor, str, bool)):
            raise TypeError
        found = float(p)
    except (TypeError, ValueError):
        found = -1.0
    if not 0.0 <= found <= 1.0:
        raise OptionError(
            message("attention: dropout_p is no probability", expected="a number from 0 to 1",
                    came=repr(p)[:80])
        )  # fmt: skip
    return found


def seed_of(given: Any, device: torch.device) -> Tensor:
    """One int64 on the device: drawn by torch's generator, a number, or an element of a tensor.

    NOTE: a tensor in each case, so that a CUDA graph draws, or is given, another at each replay.
    """
    if given is None:
        return torch.randint(-(2**63), 2**63 - 1, (1,), device=device)
    if isinstance(given, Tensor):
        return _of_tensor(given, device)
    number = given.__index__() if hasattr(given, "__index__") else None
    if number is None or isinstance(given, bool) or not -(2**63) <= number < 2**64:
        raise OptionError(
            message("attention: rng_seed is no seed", came=repr(given)[:80],
                    expected="None, an integer of 64 bits, or an integer tensor of one element")
        )  # fmt: skip
    signed = number - 2**64 if number >= 2**63 else number
    return torch.full((1,), signed, dtype=torch.int64, device=device)


def _of_tensor(given: Tensor, device: torch.device) -> Tensor:
    integers = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    if not integers or given.numel() != 1:
        raise OptionError(
            message("attention: rng_seed is no seed", came=f"{tuple(given.shape)}, {given.dtype}",
                    expected="an integer tensor of one element")
        )  # fmt: skip
    if given.device != device:
        raise DeviceError(
            message("attention: rng_seed is not where q is", expected=f"a tensor on {device}",
                    came=f"one on {given.device}", do="move it: rng_seed.to(q.device)")
        )  # fmt: skip
    return given.reshape(1).to(torch.int64)
