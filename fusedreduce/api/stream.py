"""A state a user keeps: data comes in pieces, the statistics of all of it are there at any time."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from fusedreduce import pipeline
from fusedreduce.api.reduce import reduce, shaped
from fusedreduce.declare.record import POSITION_KINDS, Record
from fusedreduce.declare.reduction import Reduction, require_reduction
from fusedreduce.errors import OperandError, OptionError, ShapeError, message
from fusedreduce.ir.expr import names
from fusedreduce.run import merging

VERSION = 1


class Stream:
    """The state of everything seen so far; made by `fr.stream`.

    Floats are kept in float64, so that a count does not stall at 2^24 and a sum of many small
    numbers keeps its digits; positions (`First`, `ArgMax`, `ArgMin`) count through the stream.
    """

    def __init__(self, R: type[Reduction], dim: int | tuple[int, ...] | None, trust: bool) -> None:
        self.R = require_reduction(R)
        self.dim = dim
        self.trust = trust
        self.record, _ = pipeline.certified(R.record, trust)
        self.state: dict[str, Tensor] = {}
        self.count = 0
        _refuse_index(self.record)

    def update(self, x: Tensor, /, **operands: Any) -> Stream:
        """Take in more elements, after those seen before; answers the stream itself."""
        with torch.no_grad():
            _, state = reduce(
                self.R, x, dim=self.dim, trust=self.trust, return_state=True, **operands
            )
        return self._absorb(state, _elements(x, self.dim))

    def merge(self, other: Stream) -> Stream:
        """Take in another stream of the same declaration, as if its elements came now."""
        if other.record != self.record:
            raise OptionError(
                message(
                    "streams of different declarations do not merge",
                    expected=self.record.name,
                    came=other.record.name,
                )
            )
        return self._absorb(other.state, other.count) if other.state else self

    def _absorb(self, state: Mapping[str, Tensor], count: int) -> Stream:
        more = {n: t.double() if t.is_floating_point() else t for n, t in state.items()}
        for f in self.record.fields:
            if f.kind in POSITION_KINDS:
                name = f.position if f.kind == "First" else f.name
                more[name] = more[name] + self.count * (more[name] != _NOWHERE)
        if self.state:
            first = next(iter(self.state.values()))
            if first.shape != next(iter(more.values())).shape:
                raise ShapeError(
                    message(
                        "the kept dimensions of the new elements differ",
                        expected=f"{tuple(first.shape)}",
                        came=f"{tuple(next(iter(more.values())).shape)}",
                        do="give each update the same shape along the dimensions that stay",
                    )
                )
            more = merging.merge(self.record, self.state, more)
        self.state, self.count = more, self.count + count
        return self

    def value(self) -> Any:
        """finish of everything seen so far, floats in float64."""
        state = self.state or merging.identity(self.record, (), torch.float64, torch.device("cpu"))
        return shaped(self.record, merging.finish(self.record, state), None)

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers: for torch.save, or `load_state_dict` in another process."""
        return {
            "version": VERSION,
            "declaration": self.record.name,
            "count": self.count,
            "state": {n: t.clone() for n, t in self.state.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> Stream:
        """Go on from a saved state; raises `OptionError` when it is of another declaration."""
        slots = {s.name for s in self.record.slots}
        state = saved.get("state", {})
        if saved.get("version") != VERSION or (state and set(state) != slots):
            raise OptionError(
                message(
                    "the saved state does not fit the declaration",
                    expected=f"version {VERSION} with {', '.join(sorted(slots))}",
                    came=f"version {saved.get('version')} of {saved.get('declaration')} with "
                    f"{', '.join(sorted(state))}",
                    do="load it into the declaration it was saved from",
                )
            )
        self.state = {n: t.clone() for n, t in state.items()}
        self.count = int(saved["count"])
        return self


_NOWHERE = 2**63 - 1


def _elements(x: Tensor, dim: int | tuple[int, ...] | None) -> int:
    dims = range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    return prod(x.shape[d] for d in dims)


def _refuse_index(record: Record) -> None:
    """A term that reads j would count from 0 in every update."""
    for f in record.fields:
        if f.term is not None and "j" in names(f.term):
            raise OperandError(
                message(
                    f"the field `{f.name}` reads the index j",
                    expected="terms of the elements alone: a stream has no axis to count along",
                    where=f.line,
                    do="pass the index as an operand of its own",
                )
            )


def stream(
    R: type[Reduction], dim: int | tuple[int, ...] | None = None, *, trust: bool = False
) -> Stream:
    """A state of R that takes data in pieces: `.update(x)`, `.merge(other)`, `.value()`.

    dim   the dimensions of each piece that are reduced: None for all, 0 for statistics of columns
    Also `.state_dict()` and `.load_state_dict()`, for a restart with identical bits.

    >>> import torch, fusedreduce as fr
    >>> running = fr.stream(fr.reductions.Moments)
    >>> for batch in (torch.tensor([1.0, 2.0]), torch.tensor([6.0])):
    ...     _ = running.update(batch)
    >>> running.value()["mean"]
    tensor(3., dtype=torch.float64)
    """
    return Stream(R, dim, trust)
