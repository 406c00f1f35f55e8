"""Fused functions of the losses, each with its plain PyTorch reference: the table of every room."""

from __future__ import annotations

import math
from typing import Any

import torch

from fusedreduce.ops.cross_entropy_rows import label_rows, probability_rows
from fusedreduce.ops.js_div import mixed, one_sided
from fusedreduce.ops.kl_div import elements, rows
from fusedreduce.ops.loss_head import OUTPUTS, head_rows
from fusedreduce.ops.tvd import distance
from tests.chains import Case, Tensors, random

IGNORED = -100


# ---- labels ------------------------------------------------------------------------------------


def capped(x: torch.Tensor, cap: float | None, scale: float | None) -> torch.Tensor:
    x = x if scale is None else x * scale
    return x if cap is None else torch.tanh(x / cap) * cap


def label_reference(x, target, weight, smoothing, z, cap, scale, ignored, count) -> dict[str, Any]:
    x = capped(x, cap, scale)
    log_p, counted = torch.log_softmax(x, 1), target != ignored
    at = torch.where(counted, target, 0)
    w = torch.ones(x.shape[1], dtype=x.dtype, device=x.device) if weight is None else weight
    loss = -log_p.gather(1, at.unsqueeze(1)).squeeze(1) * w[at]
    if smoothing is not None:
        each = log_p * w.reshape(-1, *[1] * (x.dim() - 2))
        loss = (1.0 - smoothing) * loss - smoothing / x.shape[1] * each.sum(1)
    found = {"loss": torch.where(counted, loss, 0.0)}
    if z is not None:
        found["z_loss"] = torch.where(counted, z * torch.logsumexp(x, 1) ** 2, 0.0)
    if count is not None:
        found = {name: rows / count for name, rows in found.items()}
    if weight is not None:
        found["share"] = torch.where(counted, weight[at], 0.0)
    return found


def labels(rows: int, columns: int, *more: int) -> torch.Tensor:
    target = torch.randint(0, columns, (rows, *more))
    target[1::3] = IGNORED
    return target


def label_case(
    name: str, *options: Any, weighted: bool = False, image: bool = False, mean: bool = False
) -> Case:
    def inputs(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
        more = (3,) if image else ()
        weight = random(columns, dtype=dtype).abs() + 0.1 if weighted else None
        x = 3 * random(rows, columns, *more, dtype=dtype)
        target = labels(rows, columns, *more)
        count = torch.tensor(7) if mean else None
        return x, target, weight, *options, IGNORED, count

    return Case(name, label_rows.fn, inputs, label_reference)


# ---- probabilities -----------------------------------------------------------------------------


def probability_reference(x, target, weight, smoothing, z, cap, scale) -> dict[str, Any]:
    x = capped(x, cap, scale)
    t = target if smoothing is None else (1.0 - smoothing) * target + smoothing / x.shape[1]
    w = t if weight is None else t * weight
    found = {"loss": -(w * torch.log_softmax(x, 1)).sum(1)}
    return found if z is None else found | {"z_loss": z * torch.logsumexp(x, 1) ** 2}


def probability_case(name: str, *options: Any, weighted: bool = False) -> Case:
    def inputs(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
        t = torch.softmax(random(rows, columns, dtype=dtype), -1)
        weight = random(columns, dtype=dtype).abs() + 0.1 if weighted else None
        return 3 * random(rows, columns, dtype=dtype), t, weight, *options

    return Case(name, probability_rows.fn, inputs, probability_reference)


# ---- the head ----------------------------------------------------------------------------------


def head_reference(x, target, wanted, z, cap, scale, ignored) -> dict[str, Any]:
    x = capped(x, cap, scale)
    log_p, counted = torch.log_softmax(x, -1), target != ignored
    at = torch.where(counted, target, 0)
    picked = torch.where(counted, log_p.gather(-1, at[..., None])[..., 0], 0.0)
    lse = torch.logsumexp(x, -1)
    loss = -picked if z is None else torch.where(counted, z * lse * lse - picked, 0.0)
    entropy = torch.where(counted, -(log_p.exp() * log_p).sum(-1), 0.0)
    right = counted & (x.argmax(-1) == target)
    every = {"loss": loss, "log_prob": picked, "entropy": entropy, "accuracy": right}
    return {n: every[n] for n in wanted}


def head_case(name: str, wanted: tuple[str, ...], *options: Any) -> Case:
    def inputs(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
        target = labels(rows, columns)
        return 3 * random(rows, columns, dtype=dtype), target, wanted, *options, IGNORED

    return Case(name, head_rows.fn, inputs, head_reference)


# ---- two distributions -------------------------------------------------------------------------


def logs(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return tuple(torch.log_softmax(random(rows, columns, dtype=dtype), -1) for _ in "qp")


def probabilities(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return tuple(torch.softmax(random(rows, columns, dtype=dtype), -1) for _ in "qp")


def summed(terms: torch.Tensor, counted: Any, dtype: Any) -> torch.Tensor:
    terms = terms if counted is None else torch.where(counted[..., None], terms, 0.0)
    return terms.sum(-1) if dtype is None else terms


def mixed_reference(q, p, counted, dtype, beta, log_beta, log_rest) -> torch.Tensor:
    m = torch.logaddexp(p + math.log(beta), q + math.log1p(-beta))
    return summed(beta * p.exp() * (p - m) + (1 - beta) * q.exp() * (q - m), counted, dtype)


def kl_reference(x, t, log_target) -> torch.Tensor:
    return t.exp() * (t - x) if log_target else torch.xlogy(t, t) - t * x


def pair_case(
    name: str, fn: Any, pair: Any, reference: Any, *more: Any, keep: bool = False
) -> Case:
    def inputs(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
        counted = None if keep else labels(rows, columns) != IGNORED
        return *pair(rows, columns, dtype), counted, dtype if keep else None, *more

    return Case(name, fn, inputs, reference)


BETA = (0.3, math.log(0.3), math.log1p(-0.3))
CASES = (
    label_case("labels", None, None, None, None),
    label_case("labels, mean", None, 1e-2, None, None, mean=True),
    label_case("labels of images", None, None, None, None, weighted=True, image=True),
    label_case("labels smoothed", 0.1, None, None, None),
    label_case("labels, all options", 0.1, 1e-2, 20.0, 0.5, weighted=True),
    probability_case("probabilities", None, None, None, None),
    probability_case("probabilities, all options", 0.1, 1e-2, 20.0, 0.5, weighted=True),
    head_case("head", OUTPUTS, None, None, None),
    head_case("head, all options", OUTPUTS, 1e-2, 20.0, 0.5),
    head_case("head, entropy", ("entropy",), None, None, None),
    Case("kl_div rows", rows.fn,
         lambda r, c, d: (logs(r, c, d)[0], probabilities(r, c, d)[0], False, "sum"),
         lambda x, t, log_target, by: kl_reference(x, t, log_target).sum(-1)),
    Case("kl_div mean", rows.fn, lambda r, c, d: (*logs(r, c, d), True, "mean"),
         lambda x, t, log_target, by: kl_reference(x, t, log_target).mean(-1) / len(x)),
    Case("kl_div elements", elements.fn, lambda r, c, d: (*logs(r, c, d), True, d),
         lambda x, t, log_target, dtype: kl_reference(x, t, log_target)),
    pair_case("js_div", mixed.fn, logs, mixed_reference, *BETA),
    pair_case("js_div elements", mixed.fn, logs, mixed_reference, *BETA, keep=True),
    pair_case("reverse kl", one_sided.fn, logs,
              lambda a, b, counted, dtype: summed(a.exp() * (a - b), counted, dtype)),
    pair_case("tvd", distance.fn, probabilities,
              lambda p, q, counted, dtype: summed(0.5 * (p - q).abs(), counted, dtype)),
)  # fmt: skip
