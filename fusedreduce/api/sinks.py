"""Learned sinks of attention: an element before every key, from whose state a head starts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fusedreduce.declare.record import Record
from fusedreduce.errors import NotFusible, ShapeError, message


def checked(sinks: Any, q: Tensor, record: Record) -> Tensor | None:
    """Logits, one a head of q; None of none."""
    if sinks is None:
        return None
    if record.form == "general":
        raise NotFusible(
            message(
                f"attention: {record.name} with `sinks`",
                expected="a declaration in corrected form, whose fields say what an element adds",
                came="a general form",
                where=record.line,
                do="declare fields with terms: fr.Max, fr.Sum, ...",
            )
        )
    heads = q.shape[1]
    if isinstance(sinks, Tensor) and sinks.shape == (heads,) and sinks.is_floating_point():
        return sinks
    came = f"{tuple(sinks.shape)}, {sinks.dtype}" if isinstance(sinks, Tensor) else repr(sinks)
    raise ShapeError(
        message("attention: `sinks` are no logits of heads", came=came,
                expected=f"a float tensor of shape ({heads},), one a head of q")
    )  # fmt: skip
