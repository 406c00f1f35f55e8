"""The first lines of a printed kernel: what, from which declaration, what was proved, the plan."""

from __future__ import annotations

from collections.abc import Sequence

from fusedreduce.ir.show import show
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Program, Stage

LINES, LONGEST = 12, 96


def header(program: Program, plan: RowPlan, title: str, certificates: Sequence[str]) -> str:
    """At most twelve comment lines; the same text on every machine."""
    dtypes = ", ".join(dict.fromkeys(i.dtype for i in program.inputs if not i.number))
    declarations = ", ".join(dict.fromkeys(s.record.name for s in program.stages))
    lines = [f"{title} / rows / forward / {dtypes}", ""]
    if declarations:
        lines.append(f"Printed by fusedreduce from {declarations}. Change that, not this file.")
    else:
        lines.append("Printed by fusedreduce. Change the function, not this file.")
    states = dict.fromkeys(line for s in program.stages for line in state_lines(s))
    lines += [f"  state   {line}" for line in [*states][:2]]
    end = [f"  proved  {c.replace(': proved', '', 1)}" for c in certificates[:2]]
    end.append(f"  plan    {plan.describe()}")
    end.append(f"  moves   {traffic(program, plan)}")
    lines += [f"  {line}" for line in formulas(program)[: LINES - len(lines) - len(end)]]
    return "".join(f"# {cut(line)}".rstrip() + "\n" for line in [*lines, *end])


def formulas(program: Program) -> list[str]:
    """Each stage's results, then the outputs that are more than such a result."""
    lines = []
    for s in program.stages:
        lines += [f"{s.result(o)} = {show(e)}" for o, e in s.record.finish]
    return lines + [f"{o.name} = {show(o.expr)}" for o in program.outputs]


def cut(line: str) -> str:
    return line if len(line) <= LONGEST else line[: LONGEST - 4] + " ..."


def state_lines(stage: Stage) -> list[str]:
    """m: Max of x;  s: Sum of exp(x - m)"""
    lines: list[str] = []
    for f in stage.record.fields:
        what = f"{f.kind} of {show(f.term)}" if f.term is not None else f"identity {f.identity}"
        part = f"{f.name}: {what}"
        if lines and len(lines[-1]) + len(part) < LONGEST - 13:
            lines[-1] += f";  {part}"
        else:
            lines.append(part)
    return lines


def traffic(program: Program, plan: RowPlan) -> str:
    reads = [i.name for i in program.inputs if not i.number]
    writes = [o.name for o in program.outputs]
    times = "once" if plan.passes == 1 else "once a pass"
    return f"reads {', '.join(reads)} {times}, writes {', '.join(writes)}"
