"""Every printed row kernel compiles for sm_80, sm_90a and sm_100a within the device's limits."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.plan.device import MAX_REGISTERS, device
from tests import chains, printing
from tests.compile.aot import compile_for

CAPABILITIES = (80, 90, 100)
BY_NAME = {c.name: c for c in chains.CASES}


def check(case: chains.Case, strategy: str | None, shape: tuple[int, int], dtype: torch.dtype,
          capability: int) -> None:  # fmt: skip
    with torch.device("meta"):
        args = tuple(a.to("meta") if isinstance(a, torch.Tensor) else a
                     for a in meta_inputs(case, *shape, dtype))  # fmt: skip
    made = printing.print_kernel(*printing.fused(case.fn, args), strategy)
    found = compile_for(made, capability)
    limits = device(divmod(capability, 10))
    assert found.shared <= limits.shared_bytes, found
    assert found.registers <= MAX_REGISTERS, found
    assert found.stack <= 64, f"{case.name} spills: {found}"


def meta_inputs(case: chains.Case, rows: int, columns: int, dtype: torch.dtype) -> chains.Tensors:
    """Arguments without numbers: only shapes and dtypes count here."""
    few = case.inputs(4, 4, dtype)
    small = case.inputs(4, 8, dtype)
    answer = []
    for a, b in zip(few, small, strict=True):
        if not isinstance(a, torch.Tensor):
            answer.append(a)
            continue
        shape = [columns if m != n else rows if m == 4 else m
                 for m, n in zip(a.shape, b.shape, strict=True)]  # fmt: skip
        answer.append(torch.empty(shape, dtype=a.dtype, device="meta"))
    return tuple(answer)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("name", BY_NAME)
def test_compiles(name: str, strategy: str, capability: int) -> None:
    columns = 100 if name == "group_norm" else 1000  # its row is 15 times as long
    check(BY_NAME[name], strategy, (64, columns), torch.bfloat16, capability)


@pytest.mark.parametrize("name", BY_NAME)
def test_compiles_in_float64(name: str) -> None:
    check(BY_NAME[name], None, (64, 1000), torch.float64, 90)


@pytest.mark.parametrize("columns", [1, 100, 1024, 4096, 8192, 32768, 131072])
@pytest.mark.parametrize(
    "name", ["log_sum_exp", "softmax", "layer_norm", "group_norm", "rms_norm_residual", "loss_head"]
)
def test_shipped_plans_do_not_spill(name: str, columns: int) -> None:
    check(BY_NAME[name], None, (64, columns), torch.bfloat16, 90)


@pytest.mark.smoke
def test_smoke() -> None:
    """One kernel, for other versions of Triton."""
    check(BY_NAME["layer_norm"], "block", (64, 1000), torch.bfloat16, 90)
