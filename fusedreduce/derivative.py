"""Differentiable runs: the forward that saves summaries, the backward programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from fusedreduce.gradient import INDEX, Backward, NoBackward, apart, backward
from fusedreduce.kernels.rows import print_rows
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import layout
from fusedreduce.program import Program
from fusedreduce.reductions import Total
from fusedreduce.run import launch, tiles
from fusedreduce.run.calls import Plan
from fusedreduce.run.launch import Pack

PROGRAMS_IN_FLIGHT = 512  # that the sum over rows is cut for
SHORTEST_PART = 64  # rows
SUMS = "sums over rows"  # the pack of all of a program's


@dataclass(frozen=True)
class Backend:
    """Who runs the programs, and where.

    packed   summaries lie in few tensors, and the inputs' strides are those of the first call
    """

    implementation: str
    origin: str
    device: torch.device
    packed: bool


@dataclass
class ProgramRunner:
    """Runs one program; answers its outputs by name. A launch is kept for each pattern of strides.

    loose    the inputs whose strides may differ from call to call
    packs    tensors of the program that lie in one of another name
    """

    program: Program
    backend: Backend
    loose: tuple[str, ...]
    packs: tuple[Pack, ...] = ()
    launches: dict[Any, launch.Launch] = field(default_factory=dict)

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Tensor]:
        if self.backend.implementation == "tiles":
            names = (o.name for o in self.program.outputs)
            return dict(zip(names, tiles.run(self.program, values), strict=True))
        key = tuple([values[n].stride() for n in self.loose])
        ready = self.launches.get(key)
        if ready is None:
            ready = self.launches[key] = self.prepare(values)
        return dict(zip(ready.names, ready(values), strict=True))

    def prepare(self, values: Mapping[str, Any]) -> launch.Launch:
        program = self.program
        lay = layout(program, launch.program_strides(program, values))
        plan = row_plans.plan(program, lay)
        kernel = print_rows(program, plan, lay, program.name)
        packs = (*self.packs, *sums_pack(program, plan.shares))
        backend = self.backend
        return launch.prepare(program, kernel, plan, lay, backend.origin, backend.device, packs)


def summaries_packs(program: Program, names: tuple[str, ...]) -> tuple[Pack, ...]:
    """Saved summaries: those of one dtype and shape lie in one tensor, each 16-byte aligned."""
    outputs = {o.name: o for o in program.outputs}
    groups: dict[tuple[str, int], list[str]] = {}
    for n in names:
        size = prod(launch.output_shape(program, outputs[n]))
        groups.setdefault((outputs[n].dtype, -(-size // 16) * 16), []).append(n)
    return tuple(
        Pack(f"saved {dtype} {pitch}", tuple(members), (len(members), pitch), pitch)
        for (dtype, pitch), members in groups.items()
    )


def sums_pack(program: Program, shares: int) -> tuple[Pack, ...]:
    """The columns' sums of all programs, to be summed up in one go."""
    names = tuple(o.name for o in program.sums)
    if len(names) < 2:
        return ()
    return (Pack(SUMS, names, (len(names), shares, program.columns), shares * program.columns),)


def derived(program: Program, wanted: tuple[str, ...]) -> Backward | str:
    """The backward programs for the gradients of these inputs, or why there are none."""
    wanted = tuple(n for n in wanted if n in program.by_name)  # not what is read for its shape
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
    if made.joined is not None and len(made.joined.reduced) == 1:
        if row_plans.sums_fit(made.joined):
            return (made.joined,)
        return tuple(p for p in apart(made.joined) if p is not None)
    return separate(made)


def separate(made: Backward) -> tuple[Program, ...]:
    """The rows' program, then those that sum along rows."""
    programs = (made.rows, made.columns, *made.shared)
    return tuple(p for p in programs if p is not None and p.outputs)


def backward_runner(
    program: Program, made: Backward, backend: Backend, packs: tuple[Pack, ...]
) -> Callable[[Mapping[str, Any]], dict[str, Tensor]]:
    """The gradients by input name."""
    programs = kernels(made) if backend.implementation == "triton" else separate(made)
    runners = [ProgramRunner(p, backend, loose_inputs(p, made, backend), packs) for p in programs]
    sums = next((tuple(o.name for o in p.sums) for p in programs if p.sums), ())
    sizes = [a.size for a in program.reduced]
    indexed = any(i.name == INDEX for p in programs for i in p.inputs)

    def run(values: Mapping[str, Any]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if indexed:
            index = torch.arange(program.columns, device=backend.device)
            found[INDEX] = index.reshape(sizes)
        for runner in runners:
            found |= runner({**values, **found} if found else values)
        return finished(made, found, values, sums)

    return run


def loose_inputs(program: Program, made: Backward, backend: Backend) -> tuple[str, ...]:
    """With packed summaries only the gradients of the outputs may lie as they like."""
    tensors = [i.name for i in program.inputs if not i.number]
    known = {i.name for i in made.forward.inputs} | set(made.saved) if backend.packed else set()
    return tuple(n for n in tensors if n not in known)


def finished(
    made: Backward,
    found: dict[str, Tensor],
    values: Mapping[str, Any],
    sums: tuple[str, ...],
) -> dict[str, Tensor]:
    """What is left to sum, in order, and the dtype of each input."""
    summed = SUMS in found
    if summed:
        total = found[SUMS].sum(1)
        dtypes = {values[n].dtype for n, output, _ in made.wanted if output in sums}
        total = total.to(dtypes.pop()) if len(dtypes) == 1 else total
        found |= zip(sums, total.unbind(), strict=True)
    answer: dict[str, Tensor] = {}
    for name, output, dims in made.wanted:
        grad = found[output]
        grad = grad.sum(dims) if dims and not (summed and output in sums) else grad
        answer[name] = grad.to(values[name].dtype)
    return answer


def differentiable(
    program: Program,
    backend: Backend,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    plain: Callable[[Mapping[str, Any]], list[Tensor]],
    meaning: Callable[[Mapping[str, Any]], list[Tensor]],
) -> Plan:
    """How to run `program` so that torch can differentiate it for the inputs `wanted`."""
    outputs = tuple(o.name for o in program.outputs)
    floating = tuple(o.name for o in program.outputs if "float" in o.dtype)
    eager = backend.implementation == "eager"
    made = "there are no elements" if eager else derived(program, wanted)
    if isinstance(made, str):
        return Plan(names, wanted, plain, outputs, floating, (), meaning, None)
    read = tuple(n for n in wanted if n in program.by_name)  # not what is read for its shape
    packed = backend.packed and backend.implementation == "triton"
    packs = summaries_packs(made.forward, made.saved) if packed else ()
    run_forward = ProgramRunner(
        made.forward, backend, loose_inputs(made.forward, made, backend), packs
    )
    run_backward = backward_runner(program, made, backend, packs)
    saved = tuple(p.name for p in packs) if packed else made.saved
    return Plan(
        names, read, lambda v: [*run_forward(v).values()], outputs, floating, saved, meaning,
        run_backward,
    )  # fmt: skip
