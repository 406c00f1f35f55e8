"""A pair reduction that is prepared: who runs it, and how it is differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from fusedreduce.errors import NotFusible, OptionError, message
from fusedreduce.gradient import NoBackward
from fusedreduce.gradient.pair_state import adjoint
from fusedreduce.gradient.pairs import PairBackward, backward
from fusedreduce.ir.expr import names as variables
from fusedreduce.masks.sources import Prepare, one_by_one
from fusedreduce.pair import Pair
from fusedreduce.pair_arguments import Arguments
from fusedreduce.pairing import PairTask
from fusedreduce.pipeline import outside_autocast
from fusedreduce.request import check_impl, choose
from fusedreduce.run import pair_gradients, pair_tiles, segment_tables, tiles
from fusedreduce.run.calls import Plan
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_printed import Backward, Forward, rows_by_kernel
from fusedreduce.run.pair_rows import RowValues
from fusedreduce.run.pair_sinks import SINKS
from fusedreduce.structure import Leaf

Values = Mapping[str, Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Backend:
    """Who runs pairs of inputs that lie in one way.

    forward   of a pair: from inputs to results
    backward  of a derived one, for what is wanted: from inputs, vectors and rows to gradients
    rows      the row programs between them
    tables    who makes the tables of masks and scores that depend on lengths
    """

    forward: Callable[[Pair], Callable[[PairInputs], Tensors]]
    backward: Callable[[PairBackward, tuple[str, ...]], Callable[..., Tensors]]
    rows: Callable[..., Sequence[Tensor]]
    tables: Prepare


def _tiles_backward(b: PairBackward, wanted: tuple[str, ...]) -> Callable[..., Tensors]:
    return lambda inputs, vectors, rows: pair_gradients.backward(b, inputs, vectors, rows, wanted)


BACKENDS = {
    "tiles": Backend(
        lambda p: partial(pair_tiles.forward, p), _tiles_backward, tiles.run, one_by_one
    ),
    "triton": Backend(Forward, Backward, rows_by_kernel, segment_tables.prepare),
}


def chosen_backend(impl: str | None, device: torch.device) -> str:
    """impl=None: Triton on a GPU, tiles elsewhere. A given one is taken, or refused."""
    check_impl(impl)
    if impl is None:
        return "triton" if device.type == "cuda" and "triton" in BACKENDS else "tiles"
    if impl not in BACKENDS:
        raise OptionError(
            message(
                f"impl={impl!r} of a pair reduction",
                expected=", ".join(map(repr, ("eager", *BACKENDS))),
                do="leave impl out: the best one for the device is taken",
            )
        )
    return choose(impl, device)


def require_tiles(pair: Pair, impl: str | None) -> None:
    """Printed kernels take blocks of keys as they come; a declaration may want them in order."""
    if impl == "triton":
        raise NotFusible(
            message(
                f"{pair.record.name} by a printed pair kernel",
                expected="one that takes keys in any order: no First, a merge that commutes",
                do='leave impl out, or choose impl="tiles"',
            )
        )


@dataclass(frozen=True)
class PreparedPair:
    """What is left to do for arguments that lie as some did before."""

    task: PairTask
    pair: Pair
    implementation: str
    meaning: Callable[[Values], list[Tensor]]
    depth: int
    plans: dict[tuple[str, ...], Plan] = field(default_factory=dict)

    @cached_property
    def structure(self) -> Any:
        return structure_of(self.pair, self.task)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(r.dtype for r in self.pair.results)

    @cached_property
    def by_inputs(self) -> Callable[[PairInputs], Tensors]:
        """From inputs to the results of the pair, by name."""
        return BACKENDS[self.implementation].forward(self.pair)

    @cached_property
    def run(self) -> Callable[[Values], list[Tensor]]:
        return self.forward(self.pair)

    def forward(self, pair: Pair) -> Callable[[Values], list[Tensor]]:
        """From arguments to the results of the pair, in order."""
        backend = BACKENDS[self.implementation]
        by_inputs, inputs_of = backend.forward(pair), self.arguments(pair)

        def run(values: Values) -> Tensors:
            inputs = inputs_of(values)
            with outside_autocast():
                return by_inputs(inputs)

        if not self.depth:
            return lambda values: [*run(values).values()]
        return lambda values: [*over_batch(run, values, self.depth, self.whole).values()]

    def arguments(self, pair: Pair) -> Arguments:
        return Arguments(self.task, pair.numbers, BACKENDS[self.implementation].tables)

    @cached_property
    def whole(self) -> bool:
        """May batches around the call be taken as more of its own batch?"""
        pair = self.pair
        exprs = [e for _, e in pair.operands] + [f.term for f in pair.record.fields if f.term]
        exprs += [] if pair.mask is None else [pair.mask]
        return not pair.reads and "b" not in variables(*exprs)

    def plan(self, values: Values, wanted: tuple[str, ...], packed: bool = False) -> Plan:
        """How to differentiate a call for the arguments that ask for it."""
        if wanted not in self.plans:
            self.plans[wanted] = self.derived(values, wanted)
        return self.plans[wanted]

    def derived(self, values: Values, wanted: tuple[str, ...]) -> Plan:
        names = tuple(n for n, v in values.items() if isinstance(v, Tensor))
        outputs = tuple(r.name for r in self.pair.results)
        floating = tuple(r.name for r in self.pair.results if "float" in r.dtype)
        made = backward_of(self.task, self.pair, wanted)
        if made is None:
            return Plan(names, wanted, self.run, outputs, floating, (), self.meaning, None)
        return Plan(
            names, wanted, self.forward(made.forward), outputs, floating, made.saved, self.meaning,
            self.gradients(made, wanted), kept(made),
        )  # fmt: skip

    def gradients(self, made: PairBackward, wanted: tuple[str, ...]) -> Callable[[Values], Tensors]:
        """The gradients by argument, from arguments, adjoints of results and what was saved."""
        origin = origins(self.task, wanted)
        read = {r.table for r, _ in made.tables}
        asked = tuple(n for n in wanted if n in "qkv") + tuple(t for t in origin if t in read)
        backend = BACKENDS[self.implementation]
        row_values, by_inputs = RowValues(made, backend.rows), backend.backward(made, asked)
        inputs_of = self.arguments(made.forward)
        names = (made.vector, adjoint(made.vector))
        ups = [adjoint(r.name) for r in self.pair.results if not r.vector and "float" in r.dtype]

        def run(values: Values) -> Tensors:
            inputs = inputs_of(values)
            vectors = {n: values[n] for n in names if n in values}
            if made.exact:
                vectors[made.vector] = values[made.exact]
            saved = {n: values[n] for n in made.summaries}
            adjoints = {n: values[n] for n in ups}
            with outside_autocast():
                rows = row_values(inputs, saved, vectors, adjoints)
                found = by_inputs(inputs, vectors, rows) if asked else {}
                if made.first:  # sinks (H,), in the same order each time
                    found[SINKS] = rows[made.first].sum((0, 2))
            answer: Tensors = {}
            for n, gradient in found.items():
                n = origin.get(n, n)
                answer[n] = answer[n] + gradient if n in answer else gradient
            return {n: g if g.dtype == (d := values[n].dtype) else g.to(d)
                    for n, g in answer.items()}  # fmt: skip

        if not self.depth:
            return run
        return lambda values: over_batch(run, values, self.depth, self.whole)


def structure_of(pair: Pair, task: PairTask) -> dict[str, Leaf]:
    """The results by output or slot; a bare output is called ""."""
    known = {o or "value": o for o in task.outputs}
    return {known.get(r.name, r.name): Leaf(k) for k, r in enumerate(pair.results)}


@lru_cache(maxsize=1024)
def backward_of(task: PairTask, pair: Pair, wanted: tuple[str, ...]) -> PairBackward | None:
    """The derived backward; None where the meaning is to be differentiated."""
    try:
        gauged = False if task.state else None
        tables = (*origins(task, wanted), *[SINKS] * (SINKS in wanted))
        return backward(pair, tables, gauged)
    except NoBackward:
        return None


def kept(made: PairBackward) -> tuple[str, ...]:
    """The vector result, where its product with its adjoint is summed and it is not saved apart."""
    return (made.vector,) if any(s.with_result for s in made.sums) and not made.exact else ()


def origins(task: PairTask, wanted: Sequence[str]) -> dict[str, str]:
    """For each table that gets a gradient the argument that it is."""
    found = {n: n for n in wanted if n[0] == "o"}
    for table, tensor in task.score_tables.items():
        if f"s{tensor}" in wanted:
            found[table] = f"s{tensor}"
    return found


def over_batch(
    function: Callable[[Values], Tensors], values: Values, depth: int, whole: bool
) -> Tensors:
    """A function of tensors that have `depth` more dimensions in front; so have its answers."""
    if not depth:
        return function(values)
    tensors = {n: v for n, v in values.items() if isinstance(v, Tensor)}
    front = tensors["q"].shape[:depth]
    if whole:
        tables = {n for n in tensors if n[1:].isdigit() or n.endswith("_offset")}
        flat = {n: t.flatten(0, depth - 1)[0] if n in tables else t.flatten(0, depth)
                for n, t in tensors.items()}  # fmt: skip
        found = function({**values, **flat})
        batches = prod(front)
        return {n: t.reshape(*front, len(t) // batches, *t.shape[1:]) for n, t in found.items()}
    split = {n: t.flatten(0, depth - 1) for n, t in tensors.items()}
    each = [function({**values, **{n: t[k] for n, t in split.items()}}) for k in range(prod(front))]
    return {n: torch.stack([e[n] for e in each]).reshape(*front, *t.shape)
            for n, t in each[0].items()}  # fmt: skip
