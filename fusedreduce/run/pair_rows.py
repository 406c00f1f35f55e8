"""The row values of a pair's backward: sums over the width, and what is made of them.

One fused row program with the outer axes b, h, i and the reduced axis d, which the tiles run as
well as a printed row kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.gradient.pair_state import adjoint
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.check import kind_of_dtype
from fusedreduce.ir.expr import Expr, const, names, rewrite, substitute, var
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import Pair, Read
from fusedreduce.program import Axis, Dims, Input, Output, Program, Stage
from fusedreduce.reductions import Total
from fusedreduce.run import tiles
from fusedreduce.run.language import Language, unwatched
from fusedreduce.run.pair_formulas import Formulas, Region, constants, formulas
from fusedreduce.run.pair_inputs import PairInputs

Run = Callable[[Program, Mapping[str, Tensor]], Sequence[Tensor]]
Exprs = tuple[tuple[str, Expr], ...]
OUTER = (("b",), ("h",), ("i",))


class RowValues:
    """`b.rows` and `b.first` by name, each (B, H, Sq), for inputs that lie in one way.

    run   answers the outputs of a program, in order
    """

    def __init__(self, b: PairBackward, run: Run = tiles.run) -> None:
        self.b, self.run = b, run
        self.known: dict[Any, tuple[Recipe, Program | None]] = {}

    def __call__(
        self,
        inputs: PairInputs,
        saved: Mapping[str, Tensor],
        vectors: Mapping[str, Tensor | None],
        adjoints: Mapping[str, Tensor | None],
    ) -> dict[str, Tensor]:
        """
        saved     the results `b.summaries` of the forward
        vectors   the vector result, as exact as there is one, and its adjoint: `out` and `d_out`
        adjoints  of scalar results, by `d_<result>`; missing ones and None count as 0
        """
        b = self.b
        found = {**saved, **{n: t for n, t in adjoints.items() if t is not None}}
        given = {n: vectors.get(n) for n in (b.vector, adjoint(b.vector))} if b.vector else {}
        tensors = found | {n: t for n, t in given.items() if t is not None}
        tensors |= {n: inputs.tables[n] for n in columns(b)}
        key = (*tensors,)  # an adjoint has the dtype of its result
        if key not in self.known:
            self.known[key] = self.planned(inputs, found, tensors)
        how, program = self.known[key]
        if program is not None:
            made = self.run(program, {i.name: tensors[i.name] for i in program.inputs})
            found |= zip((n for n, _ in how.exprs), made, strict=True)
        if how.later:
            found |= _by_language(b, inputs, found, how.later)
        wanted = (*b.rows, *[b.first] * bool(b.first))
        missing = [n for n in wanted if n not in found]
        if missing:
            state = getattr(torch, b.forward.state)
            zero = torch.zeros((), dtype=state, device=inputs.q.device).expand(inputs.rows)
            found |= dict.fromkeys(missing, zero)
        return {n: found[n] for n in wanted}

    def planned(
        self, inputs: PairInputs, rows: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
    ) -> tuple[Recipe, Program | None]:
        b = self.b
        how = recipe(b, frozenset(rows), bool(b.vector) and adjoint(b.vector) in tensors)
        if not how.exprs:
            return how, None
        read = (*how.read, b.vector, adjoint(b.vector))
        dtypes = tuple((n, tensors[n].dtype) for n in read)
        return how, row_program(b, how.exprs, dtypes, (*inputs.rows, b.forward.DV))


@dataclass(frozen=True)
class Recipe:
    """Which row values a program makes, over `<sum>.value` and rows `read`; which come later."""

    exprs: tuple[tuple[str, Expr], ...]
    read: tuple[str, ...]
    later: tuple[tuple[str, Expr], ...]


@lru_cache(maxsize=256)
def recipe(b: PairBackward, given: frozenset[str], has_vector: bool) -> Recipe:
    """How the row values are made from these saved values and adjoints; the others are 0."""
    zeros = {adjoint(r.name) for r in b.forward.results} - given
    zeros |= set() if has_vector else {s.name for s in b.sums}
    nothing = {n: const(0.0) for n in zeros}
    shifts = {n: simplify(substitute(e, nothing)) for n, e in b.shifts}
    sums = {s.name for s in b.sums} - zeros
    tables, reads = columns(b), _first_reads(b)
    opening = {n: var(r.table) for r in reads for n in (r.node, simplify(r.node))}
    opened = {n: rewrite(e, opening.get) for n, e in shifts.items()}
    plain = {n: e for n, e in opened.items() if set(names(e)) <= {*given, *sums, *tables}}
    plain = plain if sums else {}
    later = {n: e for n, e in shifts.items() if n not in plain}
    read = {n for e in later.values() for n in names(e)} | set(b.rows)
    exprs = {n: var(f"{n}.value") for n in sums & read}
    exprs |= {n: substitute(e, {s: var(f"{s}.value") for s in sums}) for n, e in plain.items()}
    rows = tuple(n for n in names(*exprs.values()) if n in given or n in tables)
    return Recipe(tuple(exprs.items()), rows, tuple(later.items()))


@lru_cache(maxsize=256)
def columns(b: PairBackward) -> dict[str, Dims]:
    """The tables that the first element is read of, a number for each place along some axes."""
    return {r.table: tuple((str(e.value),) for e in r.indices) for r in _first_reads(b)}


def _first_reads(b: PairBackward) -> list[Read]:
    """Those at outer indices themselves."""
    nodes = ir_tables.reads(*(e for _, e in b.forward.first)) if b.first else ()
    own = {var(n) for (n,) in OUTER}
    return [r for r in b.forward.reads if r.node in nodes and own.issuperset(r.indices)]


@lru_cache(maxsize=256)
def row_program(
    b: PairBackward,
    exprs: tuple[tuple[str, Expr], ...],
    dtypes: tuple[tuple[str, torch.dtype], ...],
    shape: tuple[int, int, int, int],
) -> Program:
    """Row values over `<sum>.value` and rows, as one fused function of the vectors and rows."""
    vector, d_vector = b.vector, adjoint(b.vector)
    needed = names(*(e for _, e in exprs))
    stages = []
    for s in b.sums:
        if f"{s.name}.value" in needed:
            term = var(d_vector) * var(vector) if s.with_result else var(d_vector)
            stages.append(Stage(s.name, Total.record, (("x", term),), 0))
    used = {n for s in stages for n in names(s.operands[0][1])} | set(needed)
    dims: dict[str, Dims] = dict.fromkeys((vector, d_vector), (*OUTER, ("d",))) | columns(b)
    return Program(
        name=f"{b.forward.name}_rows",
        axes=tuple(Axis(n, k, n == "d") for n, k in zip("bhid", shape, strict=True)),
        inputs=tuple(
            Input(n, dims.get(n, OUTER), str(d).removeprefix("torch."))
            for n, d in dtypes
            if n in used
        ),
        stages=tuple(stages),
        outputs=tuple(Output(n, e, OUTER, b.forward.state) for n, e in exprs),
        state=b.forward.state,
    )


def _by_language(
    b: PairBackward, inputs: PairInputs, rows: Mapping[str, Tensor], exprs: Exprs
) -> dict[str, Tensor]:
    """Row values that read tables or indices, or no sum: evaluated whole."""
    pair, device = b.forward, inputs.q.device
    language = Language(getattr(torch, pair.state), device)
    kinds = {n: kind_of_dtype(str(t.dtype).removeprefix("torch.")) for n, t in rows.items()}
    make = _formulas if unwatched() else _formulas.__wrapped__
    made = make(pair, exprs, tuple(kinds.items()), language)
    region = Region((0, 0, 0, 0), (*inputs.rows, 1))
    with torch.no_grad():
        values = constants(pair, inputs, language) | region.indices(device)
        values |= {n: language.load(t[..., None]) for n, t in rows.items()}
        found = made(values, inputs.tables, region, language)
    return {n: t.expand(region.sizes)[..., 0] for (n, _), t in zip(exprs, found, strict=True)}


@lru_cache(maxsize=256)
def _formulas(
    pair: Pair, exprs: Exprs, kinds: tuple[tuple[str, str], ...], language: Language
) -> Formulas:
    types = ["float"] * len(exprs)
    return formulas([e for _, e in exprs], pair, dict(kinds), language, types)
