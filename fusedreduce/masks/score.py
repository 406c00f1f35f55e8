"""Score functions: how the score of a pair changes before the reduction sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusedreduce.blocks.bound import device_of, widest
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import cast
from fusedreduce.ir.show import show
from fusedreduce.masks import sources as tables
from fusedreduce.masks.positional import Positional
from fusedreduce.trace.compiled import outside_graphs
from fusedreduce.trace.indexed import SCORED, trace_indexed


@dataclass(frozen=True, eq=False, repr=False)
class Score(Positional):
    """new_score(score, b, h, i, j), a float."""

    noun = "score"

    def shifted(self, q_offset: int | str = 0, k_offset: int | str = 0) -> Score:
        """The score of a piece of the sequence, as `Mask.shifted`."""
        expr, sources = tables.shifted(self.expr, self.sources, q_offset, k_offset)
        return Score(expr, sources, f"{self.label}.shifted({q_offset}, {k_offset})")

    def __call__(self, score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        """The new scores at index tensors of any shapes that broadcast with the scores."""
        device = device_of((*self.tensors, score, b, h, i, j))
        state = widest((*self.tensors, score))
        return self.bind(0, 0, device, state=state).evaluate(b, h, i, j, score)


@outside_graphs
def score(fn: Callable[..., Any] | Score) -> Score:
    """A score function of (score, b, h, i, j), given by position, traced once, here.

    >>> import torch
    >>> capped = score(lambda s, b, h, i, j: 30.0 * torch.tanh(s / 30.0))
    >>> show(capped.expr)
    '30.0 * tanh(score / 30.0)'
    """
    if isinstance(fn, Score):
        return fn
    traced = trace_indexed(fn, SCORED)
    if traced.kind == "bool":
        raise DeclarationError(
            message(
                "a score function returns a boolean",
                expected="the new score, a number",
                came=show(traced.expr),
                do="a predicate is a mask; or write torch.where(condition, score, other)",
            )
        )
    expr = traced.expr if traced.kind == "float" else cast(traced.expr, "float")
    expr, sources = tables.used(expr, traced.tables)
    label = f"score({getattr(fn, '__name__', type(fn).__name__)})"
    return Score(expr, sources, label, traced.replayable)
