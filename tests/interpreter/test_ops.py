"""Every operation of fr.ops as a printed kernel in the interpreter, forward and backward."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.plan import rows as plans
from tests import chains, gradients, ops, printing

both = pytest.mark.parametrize("strategy", printing.STRATEGIES)
each_case = pytest.mark.parametrize("case", ops.CASES, ids=lambda c: c.name)


@both
@each_case
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [(3, 17, torch.float32), (2, 40, torch.bfloat16)], ids=str
)
def test_values(
    case: chains.Case, rows: int, columns: int, dtype: torch.dtype, strategy: str
) -> None:
    torch.manual_seed(0)
    args = case.inputs(rows, columns, dtype)
    chains.check(printing.run(*printing.fused(case.fn, args), strategy), case, args)


@both
@each_case
def test_gradients(case: chains.Case, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans.plan
    monkeypatch.setattr(plans, "plan", lambda p, lay, s=None: plan(p, lay, s or strategy))
    torch.manual_seed(0)
    gradients.check(case, case.inputs(3, 17, torch.float32), impl="triton")


@pytest.mark.parametrize("name", ["layer_norm", "instance_norm", "cosine_similarity"])
def test_called_by_itself(name: str) -> None:
    """`impl` goes through the public function."""
    from fusedreduce import ops as public

    x = torch.randn(3, 6, 5)
    calls = {
        "layer_norm": lambda impl: public.layer_norm(x, (5,), x[0, 0], x[0, 1], impl=impl),
        "instance_norm": lambda impl: public.instance_norm(
            x, torch.zeros(6), torch.ones(6), impl=impl
        ),
        "cosine_similarity": lambda impl: public.cosine_similarity(x, x[0], impl=impl),
    }
    torch.testing.assert_close(calls[name]("triton"), calls[name]("tiles"))
