"""Score functions: how the score of a pair changes before the reduction sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusedreduce.blocks.bound import Bound, device_of
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import Expr, cast
from fusedreduce.ir.show import show
from fusedreduce.masks import sources as tables
from fusedreduce.masks.sources import Sources
from fusedreduce.masks.text import over, written
from fusedreduce.trace.compiled import outside_graphs
from fusedreduce.trace.indexed import SCORED, trace_indexed


@dataclass(frozen=True, eq=False, repr=False)
class Score:
    """new_score(score, b, h, i, j): a float over those, Sq, Sk and reads of tables t0, t1, ..."""

    expr: Expr
    sources: Sources = ()
    label: str = ""
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", written(self.expr, self.sources))

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The user's tensors it reads, each once."""
        return tables.tensors_of(self.sources)

    def with_tensors(self, tensors: Sequence[Any]) -> Score:
        """The same score over other tensors, one for each of `tensors`."""
        return Score(self.expr, tables.with_tensors(self.sources, tensors), self.label)

    @staticmethod
    def of_text(text: str, tensors: Sequence[Any]) -> Score:
        """The score that has this text, over these tensors."""
        return Score(*over(text, tensors))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Score):
            return NotImplemented
        return self.expr is other.expr and tables.same(self.sources, other.sources)

    def __hash__(self) -> int:
        return hash(self.expr)

    def __repr__(self) -> str:
        return self.label or show(self.expr)

    def shifted(self, q_offset: int | str = 0, k_offset: int | str = 0) -> Score:
        """The score of a piece of the sequence, as `Mask.shifted`."""
        expr, sources = tables.shifted(self.expr, self.sources, q_offset, k_offset)
        return Score(expr, sources, f"{self.label}.shifted({q_offset}, {k_offset})")

    def bind(
        self, Sq: int, Sk: int, device: Any, *, q_offset: int = 0, k_offset: int = 0,
        B: int | None = None, H: int | None = None,
    ) -> Bound:  # fmt: skip
        """The score for known lengths, as `Mask.bind`."""
        numbers = {"Sq": Sq, "Sk": Sk, "q_offset": q_offset, "k_offset": k_offset}
        batch = {name: n for name, n in (("b", B), ("h", H)) if n is not None}
        return tables.bind(self.expr, self.sources, numbers, device, "score", batch)

    def __call__(self, score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        """The new scores at index tensors of any shapes that broadcast with the scores."""
        device = device_of((*self.tensors, score, b, h, i, j))
        return self.bind(0, 0, device).evaluate(b, h, i, j, score)


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
    return Score(expr, sources, f"score({getattr(fn, '__name__', type(fn).__name__)})")
