"""What the hardware allows: the only place that knows limits of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32
MAX_REGISTERS = 255  # of one thread


@dataclass(frozen=True)
class Device:
    """Limits of one architecture.

    shared_bytes    shared memory one program may have (opt-in maximum)
    registers       32-bit registers of one multiprocessor
    """

    name: str
    shared_bytes: int
    registers: int = 65536


DEVICES: Mapping[tuple[int, int], Device] = {
    (8, 0): Device("sm_80", 166912),
    (8, 6): Device("sm_86", 101376),
    (8, 9): Device("sm_89", 101376),
    (9, 0): Device("sm_90a", 232448),
    (10, 0): Device("sm_100a", 232448),
    (12, 0): Device("sm_120", 101376),
}


def device(capability: tuple[int, int]) -> Device:
    """The limits for a compute capability; an unknown one gets those of the nearest older one.

    >>> device((9, 0)).shared_bytes
    232448
    """
    older = [c for c in DEVICES if c <= capability]
    return DEVICES[max(older)] if older else DEVICES[(8, 6)]
