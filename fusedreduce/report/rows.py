"""A row reduction as text: implementation, plans, bytes, what the compiler says of its kernels."""

from __future__ import annotations

from functools import partial

from fusedreduce import pipeline
from fusedreduce.derivative import derived, kernels
from fusedreduce.kernels.rows import print_rows
from fusedreduce.pipeline import Printed
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import layout
from fusedreduce.plan.memory import size
from fusedreduce.plan.rows import BYTES
from fusedreduce.program import Program
from fusedreduce.report.target import Target, lines, machine, target_of, why
from fusedreduce.request import choose, grads_of
from fusedreduce.run import launch
from fusedreduce.run.compiled import row_needs
from fusedreduce.runner import Noted


def text(call: Noted, architecture: str | None = None) -> str:
    """One noted call; nothing is launched."""
    to = target_of(call.values, architecture)
    traced = call.runner.traced(call.values, call.trust)
    program = traced.program
    if any(a.size == 0 for a in program.axes):
        nothing = lines([("runs", "eager: there is nothing to reduce")])
        return "\n".join([f"{program.name}:", *nothing])
    printed = pipeline.print_traced(traced, call.values)
    chosen = "eager" if call.impl == "eager" else choose(call.impl, to.device)
    own = pipeline.describe(printed).splitlines()
    runs = [("runs", why(chosen, call.impl, to)), memory(printed), ("kernel", kernel(printed, to))]
    return "\n".join([own[0], *lines(runs), *own[1:], *backward(call, program, to)])


def memory(printed: Printed) -> tuple[str, str]:
    """What an unfused chain makes between two operations, beside what the kernel makes: nothing."""
    program = printed.traced.program
    tensor = program.rows * program.columns * BYTES[program.state]
    return "memory", f"no tensor between operations; unfused, each is {size(tensor)}"


def kernel(printed: Printed, to: Target) -> str:
    program = printed.traced.program
    made = (printed.kernel, printed.plan, printed.layout)
    return machine(partial(row_needs, program, *made, to.number), to)


def backward(call: Noted, program: Program, to: Target) -> list[str]:
    """The kernels for the gradients that the arguments ask for."""
    wanted = grads_of(call.values)
    if not wanted:
        return []
    made = derived(program, wanted)
    if isinstance(made, str):
        return lines([("backward", made)])
    told: list[tuple[str, str]] = []
    for p in kernels(made):
        lay = layout(p, launch.program_strides(p, call.values))
        plan = row_plans.plan(p, lay)
        printed = print_rows(p, plan, lay, p.name)
        told.append(("backward", f"{plan.describe()}; {plan.bytes_moved:,} bytes"))
        needs = partial(row_needs, p, printed, plan, lay, to.number)
        told.append(("", machine(needs, to)))
    return lines(told)
