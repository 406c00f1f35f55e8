"""The printed backward in the interpreter, for every floating argument of every fused function."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.plan import rows
from tests import chains, gradients, printing, references


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("case", [*chains.CASES, *references.CASES], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("count", "columns", "dtype"), [(3, 17, torch.float64), (4, 70, torch.float32)], ids=str
)
def test_gradients(
    case: chains.Case, count: int, columns: int, dtype: torch.dtype, strategy: str, monkeypatch
) -> None:
    plan = rows.plan
    monkeypatch.setattr(rows, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    torch.manual_seed(0)
    gradients.check(case, case.inputs(count, columns, dtype), impl="triton")


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm_residual", "cross_entropy"])
@pytest.mark.parametrize(("count", "columns"), [(5, 70), (3, 64)])
def test_columns_that_are_owned_by_programs(
    name: str, count: int, columns: int, monkeypatch
) -> None:
    """Rows too long for the columns' sums: the rows' sums first, then parts of the columns."""
    monkeypatch.setattr(rows, "OWNED_BLOCK", 16)
    monkeypatch.setattr(rows, "sums_fit", lambda program: False)
    torch.manual_seed(0)
    case = next(c for c in chains.CASES if c.name == name)
    gradients.check(case, case.inputs(count, columns, torch.float32), impl="triton")
