"""Every printed backward compiles for sm_80, sm_90a and sm_100a within the device's limits."""

from __future__ import annotations

import pytest
import torch

from fusedreduce import derivative, pipeline
from fusedreduce.derivative import derived
from fusedreduce.kernels.rows import print_rows
from fusedreduce.pipeline import Printed, Traced
from fusedreduce.plan import rows
from fusedreduce.plan.device import MAX_REGISTERS, device
from fusedreduce.plan.layout import layout
from fusedreduce.program import Program
from fusedreduce.run import launch
from tests import chains, printing, references
from tests.compile.aot import compile_for
from tests.compile.test_rows import meta_inputs


def printed(program: Program) -> Printed:
    """A program printed for contiguous tensors of its shapes."""
    tensors = {
        i.name: torch.empty(
            launch.output_shape(program, i), dtype=getattr(torch, i.dtype), device="meta"
        )
        for i in program.inputs
        if not i.number
    }
    lay = layout(program, launch.program_strides(program, tensors))
    plan = rows.plan(program, lay)
    kernel = print_rows(program, plan, lay, program.name)
    return Printed(Traced(program, None, ()), plan, lay, kernel)


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(
    ("columns", "dtype"), [(1000, torch.bfloat16), (4096, torch.bfloat16), (2048, torch.float32)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("case", [*chains.CASES, *references.CASES], ids=lambda c: c.name)
def test_compiles(case: chains.Case, columns: int, dtype: torch.dtype, capability: int) -> None:
    if case.name == "group_norm":
        columns //= 15  # its row is 15 times as long
    with torch.device("meta"):
        args = meta_inputs(case, 512, columns, dtype)
    task, values = printing.fused(case.fn, args)
    program = pipeline.trace_task(task, values, trust=False).program
    floating = tuple(i.name for i in program.inputs if i.kind == "float" and not i.number)
    made = derived(program, floating)
    if isinstance(made, str):
        pytest.skip(f"recomputed by the unfused function: {made}")
    for p in derivative.kernels(made):
        found = compile_for(printed(p), capability)
        limits = device(divmod(capability, 10))
        assert found.shared <= limits.shared_bytes, (p.name, found)
        assert found.registers <= MAX_REGISTERS, (p.name, found)
        assert found.stack <= 128, f"{p.name} spills: {found}"
