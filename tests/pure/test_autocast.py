"""Operations under torch.autocast: the results have the dtypes of torch's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fusedreduce import ops
from fusedreduce.ops.arguments import result_dtype
from fusedreduce.ops.rms_norm import AUTOCAST_WIDENS
from tests import chains
from tests.pure.test_ops_edges import CALLS, LASTS, X


class OnCuda:
    """A tensor's dtype and device, without its device."""

    device = torch.device("cuda")

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


def test_autocast_widens_results_on_cuda_alone() -> None:
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    assert [result_dtype(OnCuda(d)) for d in (half, single, double)] == [half, single, double]
    torch.set_autocast_enabled("cuda", True)
    try:
        assert [result_dtype(OnCuda(d)) for d in (half, single, double)] == [single, single, double]
        assert result_dtype(X.bfloat16()) == half
    finally:
        torch.set_autocast_enabled("cuda", False)


WIDENED = ("layer_norm", "group_norm", "cosine_similarity", "logsumexp", "softmax",
           "log_softmax", "linalg_vector_norm", "kl_div", "nll_loss")  # fmt: skip


def test_torch_widens_on_cuda_what_we_widen() -> None:
    """normalize divides by a linalg_vector_norm, cross_entropy ends in an nll_loss."""
    text = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    lists = [
        text[text.index(f"#define {name}(_)") :]
        for name in ("AT_FORALL_FP32", "AT_FORALL_FP32_SET_OPT_DTYPE")
    ]
    listed = {
        n for t in lists for n in re.findall(r"^ +_\((\w+)", t[: t.index("\n\n")], re.MULTILINE)
    }
    assert listed >= set(WIDENED)
    assert ("rms_norm" in listed) == AUTOCAST_WIDENS
    assert not listed & {"instance_norm", "batch_norm", "native_batch_norm", "var_mean"}


IMAGES = {
    "group_norm": (lambda n, x: n.group_norm(x, 2), F),
    "instance_norm": (lambda n, x: n.instance_norm(x), F),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*CALLS, *LASTS, *IMAGES])
def test_results_under_autocast_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    call, theirs = (CALLS | LASTS | IMAGES)[name]
    x = X.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = chains.flat(call(ops, x)), chains.flat(call(theirs, x))
    assert [t.dtype for t in got] == [t.dtype for t in wanted]
    (g,) = torch.autograd.grad(got, x, [torch.ones_like(t) for t in got])
    assert g.dtype == dtype


def test_losses_that_torch_lacks_are_float32_under_autocast() -> None:
    """As those that torch has: tests/pure/test_losses_as_torch.py."""
    p, labels = X.softmax(-1).bfloat16(), torch.zeros(2, 6, dtype=torch.int64)
    calls = (
        lambda: ops.js_div(p.log(), p.log()),
        lambda: ops.tvd(p, p, reduction="none"),
        lambda: ops.loss_head(p, labels, "entropy")["entropy"],
    )
    for call in calls:
        assert call().dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert call().dtype == torch.float32
