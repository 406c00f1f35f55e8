"""What masks and scores share: an expression over positions, and the tables it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from fusedreduce.blocks.bound import Bound
from fusedreduce.ir.expr import Expr
from fusedreduce.ir.show import show
from fusedreduce.masks import sources as tables
from fusedreduce.masks.sources import Sources
from fusedreduce.masks.text import over, written

P = TypeVar("P", bound="Positional")


@dataclass(frozen=True, eq=False, repr=False)
class Positional:
    """A value at (b, h, i, j); `==` compares by value.

    expr      over b, h, i, j, Sq, Sk and reads of tables t0, t1, ... (of a score: the score too)
    sources   what the tables are, by their place
    label     how it was made, for messages and headers
    replayable   it was traced from a function that says the same over other tensors alike
    text      expression and sources without the tensors: what keys of compiled programs hold
    """

    noun: ClassVar[str]

    expr: Expr
    sources: Sources = ()
    label: str = ""
    replayable: bool = False
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", written(self.expr, self.sources))

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The user's tensors it reads, each once."""
        return tables.tensors_of(self.sources)

    def with_tensors(self: P, tensors: Sequence[Any]) -> P:
        """The same over other tensors, one for each of `tensors`."""
        return type(self)(self.expr, tables.with_tensors(self.sources, tensors), self.label)

    @classmethod
    def of_text(cls: type[P], text: str, tensors: Sequence[Any]) -> P:
        """What has this text, over these tensors."""
        return cls(*over(text, tensors))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Positional) or other.noun != self.noun:
            return NotImplemented
        return self.expr is other.expr and tables.same(self.sources, other.sources)

    def __hash__(self) -> int:
        return hash(self.expr)

    def __repr__(self) -> str:
        return self.label or show(self.expr)

    def bind(
        self, Sq: int, Sk: int, device: Any, *, q_offset: int = 0, k_offset: int = 0,
        B: int | None = None, H: int | None = None, state: Any = None,
    ) -> Bound:  # fmt: skip
        """The same for known lengths: its tables are made, their sizes are checked; nothing waits.

        q_offset, k_offset   values of the names it was shifted by (it is not shifted again)
        B, H                 the batch and heads of the call, to check tables indexed by them
        state                the dtype of floats; None: float32, or float64 where a table is

        Raises ShapeError where a table is too short, DeviceError where it lies elsewhere.
        """
        numbers = {"Sq": Sq, "Sk": Sk, "q_offset": q_offset, "k_offset": k_offset}
        batch = {name: n for name, n in (("b", B), ("h", H)) if n is not None}
        return tables.bind(self.expr, self.sources, numbers, device, self.noun, batch, state)
