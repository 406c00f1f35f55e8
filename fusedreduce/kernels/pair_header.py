"""The first lines of a printed pair kernel: what, from what, what was proved, the plan."""

from __future__ import annotations

from collections.abc import Sequence

from fusedreduce.ir.show import show
from fusedreduce.kernels.header import LINES, cut, state_lines
from fusedreduce.pair import Pair
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.program import Stage

TITLES = {"forward": "forward", "keys": "backward of k and v", "queries": "backward of q",
          "tables": "backward of a table by pair",
          "diagonals": "backward of a table by distance"}  # fmt: skip


def header(
    pair: Pair,
    plan: PairPlan,
    title: str,
    certificates: Sequence[str] = (),
    formulas: Sequence[tuple[str, str]] = (),
) -> str:
    """At most twelve comment lines; the same text on every machine."""
    lines = [
        f"{title} / pairs / {TITLES[plan.direction]} / {pair.dtype}, q and k {pair.D} wide"
        + (f", v {pair.DV}" if pair.DV else ""),
        "",
        f"Printed by fusedreduce from {pair.record.name}. Change that, not this file.",
        "  score = q[b, h, i] . k[b, h // group, j]",
    ]
    lines += [f"  {n} = {show(e)}" for n, e in pair.operands]
    if pair.mask is not None:
        lines.append(f"  counts where {show(pair.mask)}")
    read = [(n, e) for n, e in pair.first if e.op != "const"] if plan.direction == "forward" else []
    lines += [f"  {n} = {show(e)} of an element before the keys, whose v is 0" for n, e in read]
    stage = Stage("pair", pair.record, (), 0)
    lines += [f"  state   {line}" for line in state_lines(stage)][:2]
    end = [f"  proved  {c.replace(': proved', '', 1)}" for c in certificates[:1]]
    end.append(f"  plan    {plan.describe()}")
    shown = list(formulas) or [(r.name, show(r.expr)) for r in pair.results]
    lines += [f"  {n} = {text}" for n, text in shown][: max(LINES - len(lines) - len(end), 0)]
    return "".join(f"# {cut(line)}".rstrip() + "\n" for line in [*lines, *end])
