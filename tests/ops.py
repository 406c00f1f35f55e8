"""Every operation of fr.ops beside torch's: one row an operation and a way to call it.

The rows are those of `chains`, so every room runs them as it runs fused functions; called inside a
fused function an operation is part of that kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusedreduce import ops
from tests.chains import Case, Tensors, random


def one(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (random(rows, columns, dtype=dtype),)


def two(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return random(rows, columns, dtype=dtype), random(rows, columns, dtype=dtype)


def norm(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (*one(rows, columns, dtype), random(columns, dtype=dtype), random(columns, dtype=dtype))


def folded(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    """Two normalised dimensions."""
    shape = (3, columns)
    return random(rows, *shape, dtype=dtype) + 1.0, *(random(*shape, dtype=dtype) for _ in "wb")


def residual(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (*two(rows, columns, dtype), random(columns, dtype=dtype))


def image(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return random(rows, 6, 5, columns, dtype=dtype), *(random(6, dtype=dtype) for _ in "wb")


def channels_last(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    x, *given = image(rows, columns, dtype)
    return x.contiguous(memory_format=torch.channels_last), *given


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rms_reference(x: Any, h: Any, w: Any) -> Any:
    return rms(x + h, 1e-6) * w, x + h


def running_reference(x: Any, mean: Any, var: Any) -> Any:
    return F.instance_norm(x, mean, var.abs() + 0.5, use_input_stats=False)


def running_smooth(x: Any, mean: Any, var: Any) -> Any:
    """The same by hand: torch's own does not differentiate running statistics."""
    scale = torch.rsqrt(var.abs() + 0.5 + 1e-5)[:, None, None]
    return (x - mean[:, None, None]) * scale


CASES = (
    Case("softmax", lambda x: ops.softmax(x, -1), one, lambda x: torch.softmax(x, -1)),
    Case("softmax_first_axis", lambda x: ops.softmax(x, 0), one, lambda x: torch.softmax(x, 0)),
    Case("softmin", lambda x: ops.softmin(x, 1), one, lambda x: F.softmin(x, 1)),
    Case("log_softmax", lambda x: ops.log_softmax(x, -1), one, lambda x: torch.log_softmax(x, -1)),
    Case("logsumexp", lambda x: ops.logsumexp(x, -1), one, lambda x: torch.logsumexp(x, -1)),
    Case("logsumexp_all", lambda x: ops.logsumexp(x, (0, 1), keepdim=True), one,
         lambda x: torch.logsumexp(x, (0, 1), keepdim=True)),
    Case("layer_norm", lambda x, w, b: ops.layer_norm(x, x.shape[-1:], w, b), norm,
         lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)),
    Case("layer_norm_weight", lambda x, w, b: ops.layer_norm(x, x.shape[-2:], w), folded,
         lambda x, w, b: F.layer_norm(x, x.shape[-2:], w)),
    Case("layer_norm_bias", lambda x, w, b: ops.layer_norm(x, x.shape[-1:], None, b, 0.1), norm,
         lambda x, w, b: F.layer_norm(x, x.shape[-1:], None, b, 0.1)),
    Case("rms_norm", lambda x, w, b: ops.rms_norm(x, x.shape[-1:], w), norm,
         lambda x, w, b: torch.rms_norm(x, x.shape[-1:], w)),
    Case("rms_norm_residual", lambda x, h, w: ops.rms_norm(x, x.shape[-1:], w, 1e-6, residual=h),
         residual, rms_reference),
    Case("rms_norm_llama", lambda x, w, b: ops.rms_norm(x, x.shape[-1:], w, 1e-6, casting="llama"),
         norm, lambda x, w, b: w * rms(x.double(), 1e-6).to(x.dtype)),
    Case("rms_norm_gemma", lambda x, w, b: ops.rms_norm(x, x.shape[-1:], w, 1e-6, casting="gemma"),
         norm, lambda x, w, b: (rms(x.double(), 1e-6) * (1 + w.double())).to(x.dtype)),
    Case("group_norm", lambda x, w, b: ops.group_norm(x, 2, w, b), image,
         lambda x, w, b: F.group_norm(x, 2, w, b)),
    Case("group_norm_channels_last", lambda x, w, b: ops.group_norm(x, 2, w, b), channels_last,
         lambda x, w, b: F.group_norm(x, 2, w, b)),
    Case("group_norm_plain", lambda x, w, b: ops.group_norm(x, 3), image,
         lambda x, w, b: F.group_norm(x, 3)),
    Case("instance_norm", lambda x, w, b: ops.instance_norm(x, weight=w, bias=b), image,
         lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    Case("instance_norm_running",
         lambda x, m, v: ops.instance_norm(x, m, torch.abs(v) + 0.5, use_input_stats=False),
         image, running_reference, smooth=running_smooth),
    Case("var_mean", lambda x: ops.var_mean(x, -1), one, lambda x: torch.var_mean(x, -1), 2),
    Case("var_mean_all", lambda x: ops.var_mean(x, correction=0), one,
         lambda x: torch.var_mean(x, correction=0)),
    Case("normalize", lambda x: ops.normalize(x), one, F.normalize),
    Case("normalize_1", lambda x: ops.normalize(x, 1.0), one, lambda x: F.normalize(x, 1.0)),
    Case("normalize_3", lambda x: ops.normalize(x, 3, -1, 0.5), one,
         lambda x: F.normalize(x, 3, -1, 0.5)),
    Case("normalize_inf", lambda x: ops.normalize(x, float("inf"), 0), one,
         lambda x: F.normalize(x, float("inf"), 0)),
    Case("cosine_similarity", lambda a, b: ops.cosine_similarity(a, b, -1), two,
         lambda a, b: F.cosine_similarity(a, b, -1)),
)  # fmt: skip
BY_NAME = {c.name: c for c in CASES}
IMAGES = tuple(c.name for c in CASES if c.inputs in (image, channels_last))  # rows of many columns
