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
        return launch.prepare(program, kernel, plan, lay, self.origin)


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


def kernels(made: Backward) -> tuple[Program, ...]:
    """The programs that a backward on a GPU runs: one where the columns' sums fit, else more."""
    if made.joined is not None and row_plans.sums_fit(made.joined):
        return (made.joined,)
    return separate(made)


def separate(made: Backward) -> tuple[Program, ...]:
    """The rows' program, then those that sum along rows."""
    programs = (made.rows, made.columns, *made.shared)
    return tuple(p for p in programs if p is not None and p.outputs)


def backward_runner(
    program: Program, made: Backward, implementation: str, origin: str
) -> Callable[[Mapping[str, Any]], dict[str, Tensor]]:
    """The gradients by input name."""
    programs = kernels(made) if implementation == "triton" else separate(made)
    runners = [ProgramRunner(p, implementation, origin) for p in programs]
    sizes = [a.size for a in program.reduced]
    indexed = any(i.name == INDEX for p in programs for i in p.inputs)

    def run(values: Mapping[str, Any]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if indexed:
            device = next(t.device for t in values.values() if isinstance(t, Tensor))
            index = torch.arange(program.columns, device=device).reshape(sizes)
            values = {**values, INDEX: index}
        for runner in runners:
            found |= named(runner, {**values, **found})
        return finished(made, found, values)

    return run


def named(runner: ProgramRunner, values: Mapping[str, Any]) -> dict[str, Tensor]:
    return dict(zip((o.name for o in runner.program.outputs), runner(values), strict=True))


def finished(
    made: Backward,
    found: Mapping[str, Tensor],
    values: Mapping[str, Any],
) -> dict[str, Tensor]:
    """What is left to sum, in order, and the dtype of each input."""
    answer: dict[str, Tensor] = {}
    for name, output, dims in made.wanted:
        grad = found[output]
        answer[name] = (grad.sum(dims) if dims else grad).to(values[name].dtype)
    return answer


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
    wanted = tuple(n for n in wanted if n in program.by_name)  # not what is read for its shape
    made = "there are no elements" if implementation == "eager" else derived(program, wanted)
    if isinstance(made, str):
        return Plan(names, plain, outputs, (), meaning, None)
    run_backward = backward_runner(program, made, implementation, origin)
    forward = ProgramRunner(made.forward, implementation, origin)
    return Plan(names, forward, outputs, made.saved, meaning, run_backward)
