"""Calls on the command line: attention of given shapes, a declaration, a fused function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusedreduce import api
from fusedreduce.api.explain import noted
from fusedreduce.command.stand_ins import Shape, fused_task, placed, reduce_task
from fusedreduce.command.targets import require
from fusedreduce.errors import OptionError, message
from fusedreduce.masks import Mask, causal
from fusedreduce.masks import window as window_of
from fusedreduce.plan.memory import AttentionMemory, size, table
from fusedreduce.report import pairs, rows
from fusedreduce.runner import Noted, Runner

CALLS = {"attention": "fr.attention of q, k, v (B, H, S, D): explain, show, show --backward"}
DEFAULT = (1, 1, 8192, 64)


@dataclass(frozen=True)
class Seen:
    """The mask on the command line; a window of w keys counts the current one."""

    causal: bool = False
    window: int = 0

    @property
    def mask(self) -> Mask | None:
        if not self.window:
            return causal if self.causal else None
        return window_of(self.window - 1, 0 if self.causal else self.window - 1)


def attention_call(shapes: Sequence[Shape], dtype: torch.dtype, seen: Seen) -> Noted:
    """fr.attention of tensors without numbers; k and v have q's shape unless they are given."""
    given = placed(shapes, ("q", "k", "v"))
    q = given.get("q", DEFAULT)
    k = given.get("k", q)
    made = [torch.empty(s, dtype=dtype, device="meta") for s in (q, k, given.get("v", k))]
    (found,) = noted(api.attention, *made, mask=seen.mask, enable_gqa=True)
    return found


def attention_text(
    shapes: Sequence[Shape], dtype: torch.dtype, seen: Seen, architecture: str
) -> str:
    """The report, then what its scores would take, then the same for usual lengths."""
    call = attention_call(shapes, dtype, seen)
    q, k = call.values["q"], call.values["k"]
    B, H, Sq, _ = q.shape
    numbers = pairs.numbers_saved(call)
    name = str(dtype).removeprefix("torch.")
    here = AttentionMemory(B, H, Sq, k.shape[2], name, numbers)
    told = (
        f"{B} x {H} heads, {Sq:,} queries, {k.shape[2]:,} keys: scores {size(here.scores)}, two "
        f"numbers a query {size(here.two_numbers)}, ours {size(here.ours)}"
    )
    return "\n\n".join([pairs.text(call, architecture), told, table()])


def sources(shapes: Sequence[Shape], dtype: torch.dtype, seen: Seen, backward: bool) -> list[str]:
    return pairs.sources(attention_call(shapes, dtype, seen), backward)


def explained(
    found: Any, target: str, shapes: Sequence[Shape], dtype: torch.dtype, architecture: str
) -> str:
    """The report of a fused function, or of a declaration over the last dimension."""
    if isinstance(found, api.Fused):
        task, values = fused_task(found, shapes, dtype)
    else:
        task, values = reduce_task(require(found, target), shapes, dtype)
    if not any(isinstance(v, torch.Tensor) for v in values.values()):
        raise OptionError(message(f"{target} takes no tensor", came=", ".join(values)))
    return rows.text(Noted(Runner(task), values, None, False), architecture)
