"""What a call of a pair asks for besides, as lines of its report: dropout and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.philox import BITS
from fusedreduce.pairing import PairTask
from fusedreduce.run.pair_sinks import SINKS


def besides(
    task: PairTask, values: Mapping[str, Any], derived: PairBackward | None
) -> list[tuple[str, str]]:
    found = []
    if task.dropout:
        p = values["dropped"] / 2**BITS
        how = "by bits of a seed and of (b, h, i, j): drawn anew in the backward, not stored"
        found.append(("dropout", f"{p:.4g} of the weights, {how}"))
    if task.sinks:
        told = "each head starts from the state of a key of score sinks[h] and v = 0"
        if derived is not None and derived.first:
            told += "; their gradient is made by query beside the other row values, then summed"
        found.append((SINKS, told))
    return found
