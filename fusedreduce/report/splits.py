"""Split keys as text: over how many programs, and the row kernel that merges their states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fusedreduce.kernels.rows import PrintedKernel, print_rows
from fusedreduce.pair import Pair
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import Layout, layout
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Program
from fusedreduce.report.target import Target, machine
from fusedreduce.run import launch
from fusedreduce.run.compiled import row_needs
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_splits import merging_program, number_of_splits


@dataclass(frozen=True)
class Merging:
    """The row kernel that merges the states of so many splits."""

    splits: int
    program: Program
    plan: RowPlan
    layout: Layout
    kernel: PrintedKernel

    def described(self, to: Target) -> list[tuple[str, str]]:
        needs = partial(row_needs, self.program, self.kernel, self.plan, self.layout, to.number)
        return [
            ("", f"keys of a block of queries split over {self.splits} programs"),
            ("merge", f"of their states: {self.plan.describe()}; {self.plan.bytes_moved:,} bytes"),
            ("", machine(needs, to)),
        ]


def merging_of(pair: Pair, inputs: PairInputs, plan: PairPlan) -> Merging | None:
    """None where keys are not split."""
    splits = number_of_splits(inputs, plan)
    if splits == 1:
        return None
    width = (pair.DV,) if pair.vectors else ()
    program = merging_program(pair, (*inputs.rows, splits, *width))
    lay = layout(program, launch.program_strides(program, {}))
    row_plan = row_plans.plan(program, lay)
    kernel = print_rows(program, row_plan, lay, program.name)
    return Merging(splits, program, row_plan, lay, kernel)
