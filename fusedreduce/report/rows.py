"""A row reduction as text: implementation, plan, bytes, what the compiler says of its kernel."""

from __future__ import annotations

from fusedreduce import pipeline
from fusedreduce.pipeline import Printed
from fusedreduce.plan.memory import size
from fusedreduce.plan.rows import BYTES
from fusedreduce.report.target import Target, lines, machine, target_of, why
from fusedreduce.request import choose
from fusedreduce.run.compiled import row_needs
from fusedreduce.runner import Noted


def text(call: Noted, architecture: str | None = None) -> str:
    """One noted call; nothing is launched."""
    to = target_of(call.values, architecture)
    runner = call.runner
    traced = runner.traced(call.values, call.trust)
    if any(a.size == 0 for a in traced.program.axes):
        name = traced.program.name
        return "\n".join([f"{name}:", *lines([("runs", "eager: there is nothing to reduce")])])
    printed = pipeline.print_traced(traced, call.values)
    chosen = "eager" if call.impl == "eager" else choose(call.impl, to.device)
    own = pipeline.describe(printed).splitlines()
    runs = [("runs", why(chosen, call.impl, to)), *memory(printed), ("kernel", kernel(printed, to))]
    return "\n".join([own[0], *lines(runs), *own[1:]])


def memory(printed: Printed) -> list[tuple[str, str]]:
    """What an unfused chain makes between two operations, beside what the kernel makes: nothing."""
    program = printed.traced.program
    tensor = program.rows * program.columns * BYTES[program.state]
    return [("memory", f"no tensor between operations; unfused, each is {size(tensor)}")]


def kernel(printed: Printed, to: Target) -> str:
    program = printed.traced.program
    return machine(
        lambda: row_needs(program, printed.kernel, printed.plan, printed.layout, to.number), to
    )
