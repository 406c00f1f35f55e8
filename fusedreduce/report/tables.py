"""Gradients of captured tensors and operands as text: which kernel sums each, or that tiles do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.expr import Expr, var
from fusedreduce.ir.show import show
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.pair import Pair
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.report.target import Target
from fusedreduce.run import pair_kernels, pair_table_kernels
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_table_gradients import by_kernels

TITLES = {"forward": "forward", "queries": "d q", "keys": "d k, d v"}
HOW = {
    "queries": "beside d q", "keys": "beside d k, d v",
    "tables": "by pair, in a kernel of its own", "diagonals": "by distance, in a kernel of its own",
}  # fmt: skip


@dataclass(frozen=True)
class TableGradients:
    """Those of one call; `derived` is None where no kernel sums any."""

    derived: PairBackward | None
    inputs: PairInputs
    to: Target

    @property
    def printed(self) -> frozenset[str]:
        return frozenset() if self.derived is None else by_kernels(self.derived, self.inputs)

    @property
    def left(self) -> list[str]:
        """The tables whose gradients come from tiles."""
        tables = () if self.derived is None else self.derived.tables
        return list(dict.fromkeys(r.table for r, _ in tables if r.table not in self.printed))

    @property
    def told(self) -> list[tuple[str, str]]:
        how: dict[str, dict[str, None]] = {}
        for s in () if self.derived is None else self.derived.table_sums:
            if s.read.table in self.printed:
                how.setdefault(s.read.table, {})[HOW[s.direction]] = None
        return [("table", f"the gradient of {n} is summed {' and '.join(ways)}")
                for n, ways in how.items()]  # fmt: skip

    def kernels(self) -> Iterator[tuple[str, PrintedKernel, PairPlan, Pair]]:
        """A title, the kernel, its plan and pair, of the sums that have kernels of their own."""
        b = self.derived
        for s in () if b is None else b.table_sums:
            if s.direction in pair_table_kernels.DIRECTIONS and s.read.table in self.printed:
                assert b is not None
                plan = pair_kernels.plan_of(b.forward, s.direction, self.to.capability)
                laid = pair_table_kernels.blocks_of(b.forward, self.inputs, plan)
                precise = pair_kernels.precision(b.forward)
                made = pair_table_kernels.table_printed(b, s, plan, laid, precise)
                yield f"d {s.read.table}", made, plan, b.forward


def plainly(node: Expr) -> Expr | None:
    """An element of a table as a user writes it: without strides."""
    if node.op != "read":
        return None
    name, indices = ir_tables.split(node)
    return var(f"{name}[{', '.join(show(e) for e in indices.values())}]" if indices else name)
