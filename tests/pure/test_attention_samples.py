"""PyTorch's own samples of scaled_dot_product_attention: values and gradients."""

from __future__ import annotations

import warnings

import pytest
import torch

import fusedreduce as fr
from tests.attention import causal, check

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    methods = pytest.importorskip(
        "torch.testing._internal.common_methods_invocations",
        reason="torch's own tests need the package expecttest",
        exc_type=ImportError,
    )

SDPA = next(o for o in methods.op_db if o.name == "nn.functional.scaled_dot_product_attention")


def unfused(q, k, v, mask=None, is_causal=False):
    x = q @ k.mT / q.shape[-1] ** 0.5
    x = x if mask is None else x + mask
    if is_causal:
        x = x.masked_fill(~causal(*x.shape[-2:]), -float("inf"))
    return x.softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_samples_of_torch(dtype) -> None:
    count = 0
    for s in SDPA.sample_inputs("cpu", dtype, requires_grad=True):
        if s.kwargs.get("dropout_p"):
            continue
        mask, is_causal = s.kwargs.get("attn_mask"), s.kwargs["is_causal"]
        tensors = [s.input, *s.args, *([] if mask is None else [mask])]
        got = fr.ops.scaled_dot_product_attention(s.input, *s.args, **s.kwargs)
        function = lambda *a, is_causal=is_causal: unfused(*a, is_causal=is_causal)
        check(got, function, tensors, s.kwargs, saturated=True)
        count += 1
    assert count > 10
