"""Fused functions that the normal form must hold, each with its plain PyTorch reference and inputs.

Every room runs this table: tiles in `pure`, the printed kernel in `interpreter`, `compile`, `gpu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce.reductions import LogSumExp, Mean, Moments, SoftmaxSum, Total

Tensors = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """One fused function.

    fn         the function, unfused
    inputs     (rows, columns, dtype) -> arguments
    reference  the same in plain PyTorch, on float64 copies of the arguments
    """

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[int, int, torch.dtype], Tensors]
    reference: Callable[..., Any]
    smallest: int = 1  # columns it makes sense for
    smooth: Callable[..., Any] | None = None  # a reference that torch differentiates throughout


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


# ---- softmax and its family --------------------------------------------------------------------


def log_sum_exp(x):
    return fr.reduce(LogSumExp, x)


def softmax(x):
    return torch.softmax(x, -1)


def log_softmax_first_axis(x):
    return torch.log_softmax(x, 0)


def softmax_with_sink(x, sink):
    """One virtual element a row: the off-by-one softmax when sink is 0."""
    lse = fr.reduce(LogSumExp, x, keepdim=True)
    return torch.exp(x - torch.logaddexp(lse, sink[:, None]))


def sink_reference(x, sink):
    return torch.softmax(torch.cat([x, sink[:, None]], -1), -1)[:, :-1]


def weighted_values(x, v):
    return fr.reduce(SoftmaxSum, x, v=v)


def weighted_reference(x, v):
    p = torch.softmax(x, -1)
    return {"out": torch.einsum("mn,mnd->md", p, v), "lse": torch.logsumexp(x, -1)}


# ---- norms -------------------------------------------------------------------------------------


def layer_norm(x, weight, bias, eps):
    r = fr.reduce(Moments, x, keepdim=True)
    return (x - r["mean"]) * torch.rsqrt(r["var"] + eps) * weight + bias


def rms_norm_residual(x, residual, weight, eps):
    """Llama's: the sum is normalised unrounded, and goes on as the next residual."""
    h = x + residual
    scale = torch.rsqrt(fr.reduce(Mean, h * h, keepdim=True) + eps)
    return weight * (h * scale).to(x.dtype), h


def rms_reference(x, residual, weight, eps):
    h = x + residual
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)), h


def group_norm(x, weight, bias):
    n, c, h, w = x.shape
    g = x.reshape(n, 2, c // 2, h, w)
    r = fr.reduce(Moments, g, dim=(2, 3, 4), keepdim=True)
    y = (g - r["mean"]) * torch.rsqrt(r["var"] + 1e-5)
    y = y * weight.reshape(2, c // 2, 1, 1) + bias.reshape(2, c // 2, 1, 1)
    return y.reshape(n, c, h, w)


def image(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    x = random(rows, 6, 5, columns, dtype=dtype)
    return x, random(6, dtype=dtype), random(6, dtype=dtype)


# ---- losses ------------------------------------------------------------------------------------


class Picked(LogSumExp):
    """From one pass for cross-entropy: log-sum-exp, the logit of the target, sums of logits."""

    picked = fr.Sum(lambda x, j, target: torch.where(j == target, x, 0.0))
    total = fr.Sum(lambda x: x)
    weight = fr.Sum(lambda w, j, target: torch.where(j == target, w, 0.0))
    weights = fr.Sum(lambda w: w)
    weighted = fr.Sum(lambda x, w: x * w)
    definition = None

    def finish(m, s, picked, weight, weights, weighted):
        return {
            "loss": (torch.log(s) - (picked - m)) * weight,
            "smooth": (torch.log(s) + m) * weights - weighted,
            "lse": torch.log(s) + m,
        }


def cross_entropy(logits, target, weight, smoothing, z, cap, scale):
    """Class weights, ignore_index -100, label smoothing, z-loss apart, softcap and logit scale."""
    x = torch.tanh(logits * scale / cap) * cap
    r = fr.reduce(Picked, x, target=target[:, None], w=weight)
    loss = (1.0 - smoothing) * r["loss"] + smoothing / logits.shape[-1] * r["smooth"]
    counted = target != -100
    return torch.where(counted, loss, 0.0), torch.where(counted, z * r["lse"] * r["lse"], 0.0)


def cross_entropy_reference(logits, target, weight, smoothing, z, cap, scale):
    x = torch.tanh(logits * scale / cap) * cap
    loss = F.cross_entropy(
        x, target, weight, reduction="none", label_smoothing=smoothing, ignore_index=-100
    )
    lse = torch.logsumexp(x, -1)
    return loss, torch.where(target != -100, z * lse * lse, 0.0)


def cross_entropy_smooth(logits, target, weight, smoothing, z, cap, scale):
    """The same by hand: torch's own does not differentiate class weights."""
    x = torch.tanh(logits * scale / cap) * cap
    lse = torch.logsumexp(x, -1)
    log_p, w = x - lse[:, None], weight.expand_as(x)
    at = target.clamp(min=0)[:, None]
    picked = -(log_p * w).gather(-1, at)[:, 0]
    loss = (1.0 - smoothing) * picked - smoothing / x.shape[-1] * (log_p * w).sum(-1)
    counted = target != -100
    return torch.where(counted, loss, 0.0), torch.where(counted, z * lse * lse, 0.0)


def cross_entropy_inputs(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    target = torch.randint(0, columns, (rows,))
    target[::3] = -100
    weight = random(columns, dtype=dtype).abs() + 0.1
    return random(rows, columns, dtype=dtype), target, weight, 0.1, 1e-3, 30.0, 0.5


def js_divergence(p_logits, q_logits):
    """Two stages: log-sum-exp of both, then the sum over the mixture, formed in log space."""
    p = p_logits - fr.reduce(LogSumExp, p_logits, keepdim=True)
    q = q_logits - fr.reduce(LogSumExp, q_logits, keepdim=True)
    m = torch.logaddexp(p, q) - math.log(2.0)
    return fr.reduce(Total, 0.5 * (torch.exp(p) * (p - m) + torch.exp(q) * (q - m)))


def js_reference(p_logits, q_logits):
    p, q = torch.log_softmax(p_logits, -1), torch.log_softmax(q_logits, -1)
    m = torch.logaddexp(p, q) - math.log(2.0)
    return 0.5 * ((p.exp() * (p - m)).sum(-1) + (q.exp() * (q - m)).sum(-1))


class Entropy(LogSumExp):
    """Softmax entropy: log-sum-exp and the shifted sum of x exp(x)."""

    t = fr.Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: (t + old.s * (old.m - new.m)) * torch.exp(old.m - new.m),
    )
    definition = None

    def finish(m, s, t):
        return {"lse": m + torch.log(s), "entropy": torch.log(s) - t / s}


def loss_head(logits, target):
    """Loss, log-probability, entropy and the best class from one read of the logits."""
    head = fr.join(Entropy, fr.reductions.Largest, Target)
    r = fr.reduce(head, logits, target=target[:, None])
    log_p = r["Target"] - r["Entropy"]["lse"]
    return {
        "loss": -log_p,
        "entropy": r["Entropy"]["entropy"],
        "right": r["Largest"]["index"] == target,
    }


class Target(fr.Reduction):
    """The logit of the target class."""

    t = fr.Sum(lambda x, j, target: torch.where(j == target, x, 0.0))

    def finish(t):
        return t


def loss_head_reference(logits, target):
    log_p = torch.log_softmax(logits, -1)
    return {
        "loss": -log_p.gather(-1, target[:, None])[:, 0],
        "entropy": -(log_p.exp() * log_p).sum(-1),
        "right": logits.argmax(-1) == target,
    }


def cosine(a, b):
    ab = fr.reduce(Total, a * b)
    return ab / torch.sqrt(fr.reduce(Total, a * a) * fr.reduce(Total, b * b))


def three_stages(x):
    """Each stage reads the one before: mean, then spread, then the cube of what is left."""
    centred = x - torch.mean(x, -1, keepdim=True)
    scale = torch.sqrt(torch.mean(centred * centred, -1, keepdim=True) + 1.0)
    z = centred / scale
    return torch.mean(z * z * z, -1), z


def three_stages_reference(x):
    centred = x - x.mean(-1, keepdim=True)
    z = centred / (centred.pow(2).mean(-1, keepdim=True) + 1.0).sqrt()
    return z.pow(3).mean(-1), z


def _x(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (random(rows, columns, dtype=dtype),)


def _two(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return random(rows, columns, dtype=dtype), random(rows, columns, dtype=dtype)


def _labels(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return random(rows, columns, dtype=dtype), torch.randint(0, columns, (rows,))


def _norm(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return random(rows, columns, dtype=dtype), *(random(columns, dtype=dtype) for _ in "wb"), 1e-5


def _residual(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (*_two(rows, columns, dtype), random(columns, dtype=dtype), 1e-6)


CASES = (
    Case("log_sum_exp", log_sum_exp, _x, lambda x: torch.logsumexp(x, -1)),
    Case("softmax", softmax, _x, lambda x: torch.softmax(x, -1)),
    Case("log_softmax_first_axis", log_softmax_first_axis, _x, lambda x: torch.log_softmax(x, 0)),
    Case("softmax_with_sink", softmax_with_sink,
         lambda r, c, d: (random(r, c, dtype=d), random(r, dtype=d)), sink_reference),
    Case("weighted_values", weighted_values,
         lambda r, c, d: (random(r, c, dtype=d), random(r, c, 5, dtype=d)), weighted_reference),
    Case("layer_norm", layer_norm, _norm,
         lambda x, w, b, e: F.layer_norm(x, x.shape[-1:], w, b, e)),
    Case("rms_norm_residual", rms_norm_residual, _residual, rms_reference),
    Case("group_norm", group_norm, image, lambda x, w, b: F.group_norm(x, 2, w, b), 2),
    Case("cross_entropy", cross_entropy, cross_entropy_inputs, cross_entropy_reference,
         smooth=cross_entropy_smooth),
    Case("js_divergence", js_divergence, _two, js_reference),
    Case("loss_head", loss_head, _labels, loss_head_reference),
    Case("cosine", cosine, _two, lambda a, b: F.cosine_similarity(a, b, -1)),
    Case("three_stages", three_stages, _x, three_stages_reference),
)  # fmt: skip


def flat(result: Any) -> list[torch.Tensor]:
    """The tensors of a result in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [t for v in values for t in flat(v)]


def doubled(args: Tensors) -> Tensors:
    return tuple(
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    )


def check(got: Any, case: Case, args: Tensors, k: float = 2.0) -> None:
    """error <= k x the error of plain PyTorch at the same precision, plus a floor.

    The floor is 16 eps(state) max(1e-3, max |reference|), and a unit of the result's dtype.
    """
    wanted, plain = flat(case.reference(*doubled(args))), flat(case.reference(*args))
    results = flat(got)
    assert len(results) == len(wanted)
    for result, reference, unfused in zip(results, wanted, plain, strict=True):
        assert result.shape == reference.shape, (case.name, result.shape, reference.shape)
        if not result.is_floating_point():
            assert torch.equal(result, reference), case.name
            continue
        state = torch.float64 if result.dtype == torch.float64 else torch.float32
        scale = max(1e-3, float(reference.abs().max()) if reference.numel() else 0.0)
        floor = 16 * torch.finfo(state).eps * scale + torch.finfo(result.dtype).eps * scale
        error = float((result.double() - reference).abs().max()) if result.numel() else 0.0
        eager = float((unfused.double() - reference).abs().max()) if result.numel() else 0.0
        assert error <= k * eager + floor, (case.name, error, eager, floor)
