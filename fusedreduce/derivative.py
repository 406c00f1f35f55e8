"""Differentiable runs: the forward that saves summaries, the backward programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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


@dataclass(frozen=True)
class Backend:
    """Who runs the programs, and where.

    packed   summaries lie in few tensors, and the inputs' strides are those of the first call
    """

    implementation: str
    origin: str
    device: torch.device
    packed: bool


@dataclass(frozen=True)
class Sums:
    """Partial sums of one program, of one shape: summed up along dimensions of it, in one go."""

    members: tuple[str, ...]
    after: tuple[int, ...]

    @property
    def packed(self) -> bool:
        return len(self.members) > 1

    @property
    def name(self) -> str:
        return f"sums {' '.join(self.members)}"

    def pack(self, program: Program, shares: int) -> Pack:
        shape = launch.shape_of(program, self.members[0], shares)
        return Pack(self.name, self.members, (len(self.members), *shape), prod(shape))


@dataclass
class ProgramRunner:
    """Runs one program. A launch is kept for each pattern of strides.

    loose    the inputs whose strides may differ from call to call
    packs    tensors of the program that lie in one of another name
    sums     outputs to be summed up afterwards
    """

    program: Program
    backend: Backend
    loose: tuple[str, ...]
    packs: tuple[Pack, ...] = ()
    sums: tuple[Sums, ...] = ()
    launches: dict[Any, launch.Launch] = field(default_factory=dict)

    def __call__(self, values: Mapping[str, Any]) -> list[Tensor]:
        """The outputs in order; those of a pack are one."""
        if self.backend.implementation == "tiles":
            return tiles.run(self.program, values)
        key = tuple([values[n].stride() for n in self.loose])
        ready = self.launches.get(key)
        if ready is None:
            ready = self.launches[key] = self.prepare(values)
        return ready(values)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the outputs, or of the packs that hold them."""
        held = {m: p.name for p in self.packs for m in p.members}
        held |= {m: s.name for s in self.sums if s.packed for m in s.members}
        return tuple(dict.fromkeys(held.get(o.name, o.name) for o in self.program.outputs))

    def prepare(self, values: Mapping[str, Any]) -> launch.Launch:
        program = self.program
        lay = layout(program, launch.program_strides(program, values))
        plan = row_plans.plan(program, lay)
        kernel = print_rows(program, plan, lay, program.name)
        packs = (*self.packs, *(s.pack(program, plan.shares) for s in self.sums if s.packed))
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
    triton = backend.implementation == "triton"
    programs = kernels(made) if triton else separate(made)
    sums = {p: sums_of(p, made) if triton else () for p in programs}
    runners = [
        ProgramRunner(p, backend, loose_inputs(p, made, backend), packs, sums[p]) for p in programs
    ]
    finish = Finish.of(program, made, [s for p in programs for s in sums[p] if s.packed])
    sizes = [a.size for a in program.reduced]
    indexed = any(i.name == INDEX for p in programs for i in p.inputs)

    def run(values: Mapping[str, Any]) -> dict[str, Tensor]:
        if indexed:
            index = torch.arange(program.columns, device=backend.device).reshape(sizes)
            values = {**values, INDEX: index}
        found: dict[str, Tensor] = {}
        for runner in runners:
            made = runner({**values, **found} if found else values)
            found |= zip(runner.names, made, strict=True)
        return finish(found)

    return run


def sums_of(program: Program, made: Backward) -> tuple[Sums, ...]:
    """The outputs of a program that are summed up afterwards, by shape and dimensions."""
    after = {output: dims for _, output, dims in made.wanted}
    groups: dict[Any, list[str]] = {}
    for o in program.outputs:
        if dims := after.get(o.name):
            groups.setdefault((launch.output_shape(program, o), dims), []).append(o.name)
    return tuple(Sums(tuple(members), dims) for (_, dims), members in groups.items())


def loose_inputs(program: Program, made: Backward, backend: Backend) -> tuple[str, ...]:
    """With packed summaries only the gradients of the outputs may lie as they like."""
    tensors = [i.name for i in program.inputs if not i.number]
    known = {i.name for i in made.forward.inputs} | set(made.saved) if backend.packed else set()
    return tuple(n for n in tensors if n not in known)


@dataclass(frozen=True)
class Finish:
    """What is left to sum, in order, and the dtype of each input.

    packed   (tensor of several sums, dimensions to sum along, their one dtype if there is one,
             outputs)
    alone    (input, output, dimensions to sum along, dtype)
    """

    packed: tuple[tuple[str, tuple[int, ...], torch.dtype | None, tuple[str, ...]], ...]
    alone: tuple[tuple[str, str, tuple[int, ...], torch.dtype], ...]

    @classmethod
    def of(cls, program: Program, made: Backward, packed: Sequence[Sums]) -> Finish:
        dtypes = {o: getattr(torch, program.by_name[n].dtype) for n, o, _ in made.wanted}
        groups = []
        for s in packed:
            wished = {dtypes[m] for m in s.members}
            one = wished.pop() if len(wished) == 1 else None
            groups.append((s.name, tuple(d + 1 for d in s.after), one, s.members))
        done = {m for s in packed for m in s.members}
        alone = ((n, o, () if o in done else dims, dtypes[o]) for n, o, dims in made.wanted)
        return cls(tuple(groups), tuple(alone))

    def __call__(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """NOTE a conversion that changes nothing costs a microsecond all the same."""
        for name, dims, dtype, members in self.packed:
            total = found[name].sum(dims)
            if dtype is not None and total.dtype != dtype:
                total = total.to(dtype)
            found |= zip(members, total.unbind(), strict=True)
        answer: dict[str, Tensor] = {}
        for name, output, dims, dtype in self.alone:
            grad = found[output].sum(dims) if dims else found[output]
            answer[name] = grad if grad.dtype == dtype else grad.to(dtype)
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
    return Plan(names, read, run_forward, outputs, floating, saved, meaning, run_backward)
