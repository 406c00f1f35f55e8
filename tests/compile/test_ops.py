"""Printed operations compile for sm_80, sm_90a, sm_100a, forward and backward, without spills."""

from __future__ import annotations

import pytest
import torch

from tests import chains, ops
from tests.compile import test_backward, test_rows

FORWARD = [c for c in ops.CASES if c.name not in ("softmax_first_axis", "logsumexp_all")]
BACKWARD = [
    c for c in ops.CASES
    if c.name in ("layer_norm", "rms_norm_residual", "rms_norm_gemma", "instance_norm", "normalize",
                  "group_norm", "cosine_similarity", "var_mean", "softmin")
]  # fmt: skip


def columns_of(case: chains.Case) -> int:
    return 100 if case.name in ops.IMAGES else 1000


@pytest.mark.parametrize("strategy", ["block", "loop"])
@pytest.mark.parametrize("case", FORWARD, ids=lambda c: c.name)
def test_forward(case: chains.Case, strategy: str) -> None:
    test_rows.check(case, strategy, (64, columns_of(case)), torch.bfloat16, 90)


@pytest.mark.parametrize("capability", [80, 100])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm_residual", "cosine_similarity"])
def test_other_devices(name: str, capability: int) -> None:
    test_rows.check(ops.BY_NAME[name], None, (64, 4096), torch.bfloat16, capability)


@pytest.mark.parametrize("case", BACKWARD, ids=lambda c: c.name)
def test_backward_compiles(case: chains.Case) -> None:
    test_backward.test_compiles(case, columns_of(case), torch.bfloat16, 90)
