"""Any program in plain PyTorch, a tile of rows and columns at a time, on any device.

The algorithm of the printed kernels, with memory linear in the tile: for each block of rows, one
pass over its columns a level of stages, then one for the outputs. When a row fits in one tile its
inputs are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from fusedreduce.declare import edges
from fusedreduce.declare.record import Record
from fusedreduce.declare.restrict import alone
from fusedreduce.plan.layout import Layout, layout
from fusedreduce.program import Output, Program, Stage
from fusedreduce.run.language import Function, Language, Values
from fusedreduce.run.merges import General, general
from fusedreduce.run.stages import Corrected, Tile, corrected
from fusedreduce.run.views import Box, View, boxes

TILE_BYTES = (
    2**22
)  # of the state's dtype; larger ones leave the cache, smaller ones only cost calls
ROWS_STRIDED = 64  # at least so many rows where these lie next to each other, not the columns


def run(
    program: Program, tensors: Mapping[str, Any], tile: tuple[int, int] | None = None
) -> list[Tensor]:
    """The outputs of a program on tensors and numbers by input name; `tile` is (rows, columns)."""
    given = {i.name: tensors[i.name] for i in program.inputs if not i.number}
    device = next(iter(given.values())).device if given else torch.device("cpu")
    made = [_output(program, o, device) for o in program.outputs]
    keep_memory(device)
    with torch.no_grad():
        steps = _steps(program, device)
        numbers = {i.name: tensors[i.name] for i in program.inputs if i.number}
        fixed = {n: steps.language.full(v, "float") for n, v in numbers.items()}
        strides = {n: t.stride() for n, t in given.items()}
        strides |= {o.name: t.stride() for o, t in zip(program.outputs, made, strict=True)}
        lay = layout(program, strides)
        named = given | {o.name: t for o, t in zip(program.outputs, made, strict=True)}
        views = {n: View(t, *lay.of(n)) for n, t in named.items()}
        rows, columns = tile or chosen_tile(lay, list(given), steps.language.state)
        cut = boxes(lay.reduced, columns) if program.columns else []
        for block in boxes(lay.outer, rows) if program.rows else []:
            _Block(steps, views, fixed, block, cut).run()
    return made


def keep_memory(device: torch.device) -> None:
    """NOTE glibc asks the kernel, page by page, for blocks larger than the largest freed so far.

    Freeing one that was never touched lets the tiles' temporaries reuse their memory: 2 x in time.
    """
    if device.type == "cpu":
        torch.empty(4 * TILE_BYTES, dtype=torch.uint8)


def _output(program: Program, output: Output, device: torch.device) -> Tensor:
    shape = [prod(program.size[a] for a in d) for d in output.dims]
    return torch.empty(shape, dtype=getattr(torch, output.dtype), device=device)


def chosen_tile(lay: Layout, inputs: Sequence[str], state: torch.dtype) -> tuple[int, int]:
    """Whole rows as long as they fit, and more rows where the memory of a column is contiguous."""
    room = TILE_BYTES // state.itemsize
    rows, columns = prod(lay.outer), prod(lay.reduced)
    inner = [lay.of(n) for n in inputs]
    strided = any(o[-1] == 1 for o, _ in inner) and not any(r[-1] == 1 for _, r in inner)
    least = min(ROWS_STRIDED, rows) if strided else 1
    height = max(least, room // max(columns, 1))
    return height, max(1, min(columns, room // height))


# ---- a program, compiled -------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduced:
    """One stage: how a tile is taken in, and how the state becomes results."""

    stage: Stage
    body: Corrected | General
    finish: Function
    inputs: frozenset[str]

    def results(self, state: Values, columns: int) -> Values:
        """`stage.output`, and `stage.state.slot` when the state was asked for."""
        record = self.stage.record
        values = dict(zip(record.outputs, self.finish(state), strict=True))
        for output, value in record.empty:
            part = alone(record, output)
            values[output] = _or_empty(part, state, columns, values[output], value)
        answer = {self.stage.result(o): v for o, v in values.items()}
        if self.stage.state:
            answer |= {self.stage.slot(s.name): state[s.name] for s in record.slots}
        return answer


def _or_empty(record: Record, state: Values, columns: int, value: Tensor, empty: float) -> Tensor:
    """`empty` where a row holds nothing: it has no elements, or every element is absent."""
    if columns and not edges.can_be_empty(record):
        return value
    holds = edges.has_element(record, state) if columns else torch.zeros_like(value).bool()
    return torch.where(holds, value, torch.as_tensor(empty).to(value))


@dataclass(frozen=True)
class Steps:
    """A program as functions of tiles."""

    program: Program
    language: Language
    levels: tuple[tuple[Reduced, ...], ...]
    element_outputs: tuple[str, ...]
    elements: Function
    row_outputs: tuple[str, ...]
    rows: Function


@lru_cache(maxsize=256)
def _steps(program: Program, device: torch.device) -> Steps:
    language = Language(getattr(torch, program.state), device)
    reduced = {a.name for a in program.reduced}
    element = [o for o in program.outputs if o.axes & reduced]
    row = [o for o in program.outputs if not o.axes & reduced]

    def function(outputs: Sequence[Output]) -> Function:
        exprs = [o.expr for o in outputs]
        return language.function(exprs, program.kinds, ["any"] * len(exprs))

    return Steps(
        program,
        language,
        tuple(tuple(_reduced(program, s, language) for s in level) for level in program.levels),
        tuple(o.name for o in element),
        function(element),
        tuple(o.name for o in row),
        function(row),
    )


def _reduced(program: Program, stage: Stage, language: Language) -> Reduced:
    record = stage.record
    make = corrected if record.form == "corrected" else general
    body: Corrected | General = make(stage, program.kinds, language)
    kinds = {f.name: f.result for f in record.fields}
    exprs = [e for _, e in record.finish]
    finish = language.function(exprs, kinds, ["any"] * len(exprs))
    return Reduced(stage, body, finish, body.parameters & {*program.by_name, "j"})


# ---- a block of rows -----------------------------------------------------------------------------


@dataclass
class _Block:
    """Some rows on their way through all levels; `values` holds numbers and results of stages."""

    steps: Steps
    views: Mapping[str, View]
    values: Values
    rows: Box
    columns: Sequence[Box]

    def run(self) -> None:
        self.values = dict(self.values)
        self.whole: Values = {}  # the inputs, where a row is one tile
        for level in self.steps.levels:
            for reduced, state in zip(level, self.states(level), strict=True):
                self.values |= reduced.results(state, self.steps.program.columns)
        self.write(self.steps.rows, self.steps.row_outputs, self.anywhere)
        for box in self.columns if self.steps.element_outputs else ():
            self.write(self.steps.elements, self.steps.element_outputs, box)

    def states(self, level: Sequence[Reduced]) -> list[Values]:
        """The final states of stages that share a pass over the columns."""
        wanted = frozenset().union(*(r.inputs for r in level))
        states: list[Values | None] = [None] * len(level)
        for box in self.columns:
            values = self.values | self.tile(wanted, box)
            at = Tile(box.first, box.count)
            states = [r.body.step(at, values, s) for r, s in zip(level, states, strict=True)]
        return [
            identity(r.stage.record, r.body, self.steps.language) if s is None else s
            for r, s in zip(level, states, strict=True)
        ]

    def write(self, function: Function, outputs: Sequence[str], box: Box) -> None:
        if outputs:
            wanted = frozenset(function.parameters) - self.values.keys()
            values = function(self.values | self.tile(wanted, box))
            for name, value in zip(outputs, values, strict=True):
                self.views[name].write(value, self.rows, box)

    @property
    def anywhere(self) -> Box:
        """One position of the columns, for what does not vary along them."""
        axes = len(next(iter(self.views.values())).reduced)
        return Box(0, (0,) * axes, (1,) * axes)

    def tile(self, names: frozenset[str], box: Box) -> Values:
        """Inputs, and the index j, over the rows of this block and the columns of one box."""
        kept = self.whole if len(self.columns) == 1 else {}
        for n in names - kept.keys() - self.values.keys():
            kept[n] = self.index(box) if n == "j" else self.load(n, box)
        return kept

    def load(self, name: str, box: Box) -> Tensor:
        return self.steps.language.load(self.views[name].read(self.rows, box))

    def index(self, box: Box) -> Tensor:
        device = self.steps.language.device
        return torch.arange(box.first, box.first + box.count, device=device)[None]


def identity(record: Record, body: Corrected | General, language: Language) -> Values:
    """The state of no element."""
    state = {s.name: language.full(s.identity, s.type) for s in record.slots}
    phases = body.phases if isinstance(body, Corrected) else ()
    for phase in phases:
        for f, formula in zip(phase.bound, phase.formulas, strict=True):
            (state[f.name],) = formula(state)
    return state
