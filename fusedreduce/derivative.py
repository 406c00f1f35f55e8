"""Differentiable runs: the forward that saves summaries, the backward programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedreduce.gradient import INDEX, Backward, NoBackward, backward
from fusedreduce.kernels.rows import print_rows
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import layout
from fusedreduce.program import Program
from fusedreduce.reductions import Total
from fusedreduce.run import launch, tiles
from fusedreduce.run.autograd import Plan

VERSION = "0.1.0"
PROGRAMS_IN_FLIGHT = 512  # that the sum over rows is cut for
SHORTEST_PART = 64  # rows


@dataclass
class ProgramRunner:
    """Runs one program on tensors of any strides; a launch is kept for each."""

    program: Program
    implementation: str
    origin: str
    launches: dict[Any, Callable[[Mapping[str, Any]], list[Tensor]]] = field(default_factory=dict)

    def __call__(self, values: Mapping[str, Any]) -> list[Tensor]:
        if self.implementation == "tiles":
            return tiles.run(self.program, values)
        tensors = {i.name: values[i.name] for i in self.program.inputs if not i.number}
        key = tuple((t.stride(), t.device) for t in tensors.values())
        ready = self.launches.get(key)
        if ready is None:
            ready = self.launches[key] = self.prepare(tensors)
        return ready(values)

    def prepare(self, tensors: Mapping[str, Tensor]) -> launch.Launch:
        program = self.program
        lay = layout(program, launch.program_strides(program, tensors))
        plan = row_plans.plan(program, lay)
        kernel = print_rows(program, plan, lay, program.name)
        return launch.prepare(program, kernel, plan, lay, VERSION, self.origin)


def derived(program: Program, wanted: tuple[str, ...]) -> Backward | str:
    """The backward programs for the gradients of these inputs, or why there are none."""
    try:
        return backward(program, wanted, Total.record, parts_of(program))
    except NoBackward as reason:
        return str(reason)


def parts_of(program: Program) -> int:
    """Into how many parts the rows are cut for the columns' sums: a divisor of the first axis."""
    if not program.outer:
        return 1
    wish = max(1, PROGRAMS_IN_FLIGHT * row_plans.STRIDED_TILE[0] // max(program.columns, 1))
    size = program.outer[0].size
    wish = min(wish, size // SHORTEST_PART)
    return max((d for d in range(1, wish + 1) if size % d == 0), default=1)


def differentiable(
    program: Program,
    implementation: str,
    origin: str,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    plain: Callable[[Mapping[str, Any]], list[Tensor]],
    meaning: Callable[[Mapping[str, Any]], list[Tensor]],
) -> Plan:
    """How to run `program` so that torch can differentiate it for the inputs `wanted`."""
    outputs = tuple(o.name for o in program.outputs)
    made = "there are no elements" if implementation == "eager" else derived(program, wanted)
    if isinstance(made, str):
        return Plan(names, plain, outputs, (), meaning, None)
    rows = ProgramRunner(made.rows, implementation, origin)
    columns = None if made.columns is None else ProgramRunner(made.columns, implementation, origin)

    index: dict[str, Tensor] = {}

    def run_backward(values: Mapping[str, Any]) -> dict[str, Tensor]:
        found = dict(zip((o.name for o in made.rows.outputs), rows(values), strict=True))
        second: dict[str, Tensor] = {}
        if made.columns is not None and INDEX in made.columns.by_name and not index:
            sizes = [a.size for a in program.reduced]
            device = values[names[0]].device
            index[INDEX] = torch.arange(program.columns, device=device).reshape(sizes)
        if columns is not None and made.columns is not None:
            results = columns({**values, **found, **index})
            second = dict(zip((o.name for o in made.columns.outputs), results, strict=True))
        answer: dict[str, Tensor] = {}
        for name, where, output, dims in made.wanted:
            grad = (found if where == "rows" else second)[output]
            dtype = values[name].dtype
            answer[name] = (grad.sum(dims) if dims else grad).to(dtype)
        return answer

    forward = ProgramRunner(made.forward, implementation, origin)
    return Plan(names, forward, outputs, made.saved, meaning, run_backward)
