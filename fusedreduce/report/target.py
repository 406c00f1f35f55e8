"""For which device a report is made, and what the compiler says there of a printed kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fusedreduce.errors import BackendError, OptionError, message
from fusedreduce.plan.device import DEVICES, Device, device
from fusedreduce.plan.pairs import HOPPER
from fusedreduce.request import one_device
from fusedreduce.run.compiled import Needs


@dataclass(frozen=True)
class Target:
    """Where the tensors lie, and the compute capability that plans are made for.

    given   the plans are for this device itself, not for one that stands in for a missing GPU
    """

    device: torch.device
    capability: tuple[int, int]
    given: bool

    @property
    def limits(self) -> Device:
        return device(self.capability)

    @property
    def number(self) -> int:
        major, minor = self.capability
        return 10 * major + minor


def target_of(values: Mapping[str, Any], architecture: str | None) -> Target:
    """The named architecture, else that of the tensors' GPU, else Hopper."""
    tensors = {n: v for n, v in values.items() if not n.endswith("_offset")}
    place = one_device(tensors)
    if architecture is not None:
        return Target(place, capability_of(architecture), True)
    if place.type == "cuda":
        return Target(place, torch.cuda.get_device_capability(place), True)
    return Target(place, HOPPER, False)


def capability_of(architecture: str) -> tuple[int, int]:
    """
    >>> capability_of("sm_90"), capability_of("sm_120")
    ((9, 0), (12, 0))
    """
    found = re.fullmatch(r"sm_(\d+)(\d)a?", architecture)
    if not found:
        known = ", ".join(d.name for d in DEVICES.values())
        raise OptionError(
            message("architecture is not one of NVIDIA's", expected=known, came=repr(architecture))
        )
    return int(found[1]), int(found[2])


def machine(needs: Callable[[], Needs], to: Target) -> str:
    """What the compiler says; where it cannot be asked, why."""
    try:
        return f"compiled for sm_{to.number}: {needs()}"
    except BackendError as error:
        told = [line.strip() for line in str(error).splitlines()]
        came = [line.partition(" ")[2].strip() for line in told if line.startswith("came")]
        return f"not compiled: {'; '.join([told[0], *came])}"


def why(implementation: str, impl: str | None, to: Target) -> str:
    """Which implementation runs, and the reason."""
    if impl is not None:
        return f"{implementation}: it was asked for"
    place = to.device
    if place.type == "meta":
        return "printed Triton kernels on a GPU, tiles elsewhere: these tensors lie nowhere"
    if implementation == "triton":
        return f"printed Triton kernels: the tensors are on {place}"
    return f"{implementation}, plain PyTorch: the tensors are on {place}, and no GPU is asked"


def lines(pairs: list[tuple[str, str]]) -> list[str]:
    """Two columns; an empty name continues the line above."""
    width = max(len(n) for n, _ in pairs)
    return [f"  {n.ljust(width)}  {text}" for n, text in pairs]
