"""A call by its key: what autograd is told of a run where torch looks on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fusedreduce.operators import Entry, Found
from fusedreduce.run import library


@dataclass
class Keyed:
    """A call by key, as autograd sees it; its numbers are given apart.

    found   what its own run showed: another call of the same key may show something else
    """

    entry: Entry
    numbers: tuple[float, ...]
    found: Found | None = None

    def __post_init__(self) -> None:
        self.names = self.entry.names

    @property
    def operator(self) -> str:
        return self.entry.runner.operator

    @property
    def seen(self) -> Found:
        assert self.found is not None
        return self.found

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.seen.wanted

    @property
    def outputs(self) -> int:
        return self.seen.outputs

    @property
    def floating(self) -> int:
        return self.seen.floating

    @property
    def kept(self) -> tuple[int, ...]:
        return self.seen.kept

    @property
    def derived(self) -> bool:
        return self.seen.derived

    @property
    def order(self) -> tuple[int | None, ...]:
        return tuple(self.wanted.index(n) if n in self.wanted else None for n in self.names)

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        made = library.call(self.operator, self.entry.key, tensors, self.numbers)
        self.found = self.entry.found
        return made

    def backward(
        self, tensors: Sequence[Tensor], ups: Sequence[Tensor], saved: Sequence[Tensor]
    ) -> list[Tensor | None]:
        given = (*tensors, *ups, *saved)
        return [*library.call(f"{self.operator}_backward", self.entry.key, given, self.numbers)]

    def meaning(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        values = self.entry.values(tensors, self.numbers)
        return self.entry.runner.at(self.entry.depth).eager(values)

    def batched(self) -> Keyed:
        return replace(self, entry=self.entry.batched())

    def learn(self, inside: Keyed) -> None:
        self.found = inside.found or self.found
        self.entry.learn(inside.entry)
