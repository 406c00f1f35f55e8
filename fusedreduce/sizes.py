"""Sizes that torch knows by symbols while it compiles, for the axes of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from fusedreduce.program import Dims, Program

UNKNOWN_SIZE = 4096  # stands for a size that torch itself does not know while it compiles


def hint(size: int | torch.SymInt) -> int:
    """A size that torch has at hand for a symbolic one; nothing is decided about it."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return UNKNOWN_SIZE if found is None else int(found)


@dataclass
class Sizes:
    """Sizes of axes as torch's own, symbolic where those of the inputs are."""

    program: Program
    tensors: Mapping[str, Tensor]
    known: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for i in (i for i in self.program.inputs if not i.number):
            for axes, size in zip(i.dims, self.tensors[i.name].shape, strict=True):
                self.meet(axes, size)

    def meet(self, axes: tuple[str, ...], size: Any) -> None:
        """Two dimensions that run over one axis have one size, from now on for sure."""
        if axes in self.known:
            torch._check(self.known[axes] == size)  # type: ignore[no-untyped-call]
        else:
            self.known[axes] = size

    def of(self, dims: Dims) -> list[Any]:
        return [self.known[d] if d in self.known else prod(map(self.axis, d)) for d in dims]

    def axis(self, name: str) -> Any:
        """NOTE: an axis that was split from a dimension fixes the size of that dimension."""
        if (name,) in self.known:
            return self.known[(name,)]
        for axes, size in self.known.items():
            if name in axes:
                int(size)
        return self.program.size[name]
