"""The kernels of the losses compile for sm_80, sm_90a and sm_100a within the device's limits."""

from __future__ import annotations

import pytest
import torch

from fusedreduce import derivative, pipeline
from fusedreduce.derivative import derived
from fusedreduce.plan.device import MAX_REGISTERS, device
from tests import chains, losses, printing
from tests.compile.aot import compile_for
from tests.compile.test_backward import printed
from tests.compile.test_rows import check, meta_inputs

CHOSEN = ("labels", "labels, all options", "probabilities, all options", "head, all options",
          "js_div", "kl_div rows")  # fmt: skip
each = pytest.mark.parametrize(
    "case", [c for c in losses.CASES if c.name in CHOSEN], ids=lambda c: c.name
)


@each
@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_forward(case: chains.Case, strategy: str, capability: int) -> None:
    check(case, strategy, (64, 1000), torch.bfloat16, capability)


@each
@pytest.mark.parametrize("columns", [32000, 151936])
def test_forward_of_a_vocabulary(case: chains.Case, columns: int) -> None:
    check(case, None, (64, columns), torch.bfloat16, 90)


@each
@pytest.mark.parametrize(("columns", "capability"), [(1000, 80), (4096, 90), (32000, 90)])
def test_backward(case: chains.Case, columns: int, capability: int) -> None:
    with torch.device("meta"):
        args = meta_inputs(case, 512, columns, torch.bfloat16)
    task, values = printing.fused(case.fn, args)
    program = pipeline.trace_task(task, values, trust=False).program
    made = derived(program, (program.inputs[0].name,))
    assert not isinstance(made, str), made
    for p in derivative.kernels(made):
        found = compile_for(printed(p), capability)
        assert found.shared <= device(divmod(capability, 10)).shared_bytes, (p.name, found)
        assert found.registers <= MAX_REGISTERS, (p.name, found)
        assert found.stack <= 128, f"{p.name} spills: {found}"
