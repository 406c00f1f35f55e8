"""The table of shipped reductions: rows that are hard for each, and its plain two-pass formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fusedreduce import reductions

Tensors = dict[str, Tensor]
INF, NAN = float("inf"), float("nan")
LONG = 1300


# ---- the rows: x, from which the other operands are made -----------------------------------------


def normal(columns: int, scale: float = 1.0, offset: float = 0.0) -> Callable[..., Tensor]:
    return lambda g: offset + scale * torch.randn(3, columns, generator=g, dtype=torch.float64)


def constant(value: float) -> Callable[..., Tensor]:
    return lambda g: torch.full((3, LONG), value, dtype=torch.float64)


def with_values(*values: float) -> Callable[..., Tensor]:
    def make(g: torch.Generator) -> Tensor:
        x = normal(LONG)(g)
        x[1, : len(values)] = torch.tensor(values, dtype=torch.float64)
        return x

    return make


def absent(g: torch.Generator) -> Tensor:
    x = normal(LONG)(g)
    x[1], x[2, :700] = -INF, -INF
    return x


ROWS: Mapping[str, Callable[..., Tensor]] = {
    "random": normal(LONG),
    "one": normal(1),
    "two": normal(2),
    "equal": constant(0.5),
    "zeros": constant(0.0),
    "zeros_first": lambda g: torch.cat([constant(0.0)(g)[:, :300], normal(LONG)(g)], 1),
    "mean_1e6": normal(LONG, 1e-2, 1e6),
    "outlier_first": with_values(1e4),
    "absent": absent,
    "huge": normal(LONG, 1e30),
    "tiny": normal(LONG, 1e-30),
    "some_zeros": with_values(0.0, 0.0),
    "positive": lambda g: torch.exp(normal(LONG)(g)),
    "not_finite": with_values(NAN, 1.0, INF, -INF),
}
USUAL = ("random", "one", "two", "equal", "zeros")
SHIFTED = (*USUAL, "mean_1e6", "absent")
SPREAD = (*USUAL, "zeros_first", "mean_1e6", "outlier_first")
SCALED = (*USUAL, "zeros_first", "outlier_first", "huge", "tiny")
POSITIVE = ("positive", "equal")


def operands(rows: str, sources: Mapping[str, str], dtype: torch.dtype) -> Tensors:
    """The same ones at every call, by operand name; `sources` says what each is made of."""
    g = torch.Generator().manual_seed(len(rows))
    x = ROWS[rows](g)
    noise = torch.randn(x.shape, generator=g, dtype=torch.float64)
    finite = torch.where(torch.isfinite(x), x, 0.0)
    counts = torch.randint(0, 4, x.shape, generator=g).double()
    counts[:, -1] = 1.0
    made = {
        "x": x,
        "noise": noise,
        "related": 0.5 * finite + noise * finite.abs().amax(-1, True),
        "near 1": 1.0 + 0.1 * torch.tanh(finite),
        "counts": counts,
        "signed": counts - 1.5,
        "vectors": torch.randn(*x.shape, 4, generator=g, dtype=torch.float64),
    }
    return {n: made[source].to(dtype) for n, source in sources.items()}


# ---- the plain formulas --------------------------------------------------------------------------


def central(x: Tensor, p: int) -> Tensor:
    return (x - x.mean(-1, keepdim=True)).pow(p).mean(-1)


def moments(x: Tensor) -> Tensors:
    return {"mean": x.mean(-1), "var": central(x, 2)}


def higher(x: Tensor) -> Tensors:
    v = central(x, 2)
    return moments(x) | {"skewness": central(x, 3) / v**1.5, "kurtosis": central(x, 4) / v**2}


def weighted_moments(x: Tensor, w: Tensor) -> Tensors:
    total = w.sum(-1)
    mean = (w * x).sum(-1) / total
    return {"mean": mean, "var": (w * (x - mean[..., None]).square()).sum(-1) / total}


def summary(x: Tensor) -> Tensors:
    return {"min": x.amin(-1), "max": x.amax(-1)} | moments(x)


def covariance(x: Tensor, y: Tensor) -> Tensor:
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean(-1)


def correlation(x: Tensor, y: Tensor) -> Tensors:
    return {"": covariance(x, y) / central(x, 2).sqrt() / central(y, 2).sqrt()}


def norm(x: Tensor, p: float) -> Tensor:
    k = x.abs().amax(-1, keepdim=True)
    inside = torch.where(k == 0, 0.0, x / k).abs()
    return k[..., 0] * inside.pow(p).sum(-1).pow(1 / p)


def cosine(x: Tensor, y: Tensor) -> Tensors:
    def unit(t: Tensor) -> Tensor:
        return t / norm(t, 2)[..., None].clamp_min(1e-300)

    return {"": (unit(x.double()) * unit(y.double())).sum(-1)}


def weighted_lse(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """log |sum w exp(x)| and its sign."""
    m = torch.where(w == 0, -INF, x).amax(-1, keepdim=True)
    total = (w * torch.exp(torch.where(w == 0, -INF, x) - m.nan_to_num(0, 0, 0))).sum(-1)
    return m[..., 0] + total.abs().log(), total.sign()


def softmax_sum(x: Tensor, v: Tensor) -> Tensors:
    p = torch.softmax(x, -1).nan_to_num(0)
    return {"out": (p[..., None] * v).sum(-2), "lse": torch.logsumexp(x, -1)}


def entropy(x: Tensor) -> Tensors:
    p, log_p = torch.softmax(x, -1), torch.log_softmax(x, -1)
    found = -torch.where(p == 0, 0.0, p * log_p).sum(-1)
    return {"entropy": found.nan_to_num(0), "lse": torch.logsumexp(x, -1)}


def softmax_sum_entropy(x: Tensor, v: Tensor) -> Tensors:
    return softmax_sum(x, v) | entropy(x) | {"max_logit": x.amax(-1)}


def cross_entropy(x: Tensor, w: Tensor) -> Tensors:
    log_p = torch.log_softmax(x, -1)
    found = -torch.where(w == 0, 0.0, w * log_p).sum(-1)
    return {"loss": found, "lse": torch.logsumexp(x, -1)}


def max_and_sum(x: Tensor) -> Tensors:
    m = x.amax(-1, keepdim=True)
    return {"m": m[..., 0], "s": torch.exp(x - m).sum(-1)}


def affine(a: Tensor, c: Tensor) -> Tensors:
    y = torch.zeros_like(c[..., 0])
    for step in range(a.shape[-1]):
        y = a[..., step] * y + c[..., step]
    return {"slope": a.prod(-1), "shift": y}


def best_slice(x: Tensor) -> Tensors:
    ends = x.cumsum(-1)
    starts = torch.cat([torch.zeros_like(x[..., :1]), ends[..., :-1]], -1).cummin(-1).values
    return {"": (ends - starts).amax(-1)}


def top_two(x: Tensor) -> Tensors:
    wide = torch.cat([x, torch.full_like(x[..., :1], -INF)], -1)
    first, second = wide.topk(2, -1).values.unbind(-1)
    return {"first": first, "second": second}


def losses(x: Tensor) -> Tensors:
    ok = x.isfinite()
    mean = torch.where(ok, x, 0.0).sum(-1) / ok.sum(-1)
    largest = torch.where(ok, x, -INF).amax(-1)
    return {"mean": mean, "last": x[..., -1], "largest": largest, "nonfinite": (~ok).sum(-1)}


def without_zeros(x: Tensor) -> Tensors:
    nonzero, zeros = torch.where(x == 0, 1.0, x).prod(-1), (x == 0).sum(-1)
    return {"product": x.prod(-1), "nonzero": nonzero, "zeros": zeros}


def bare(formula: Callable[..., Tensor]) -> Callable[..., Tensors]:
    return lambda *args: {"": formula(*args)}


@dataclass(frozen=True)
class Meaning:
    formula: Callable[..., Tensors]
    rows: tuple[str, ...]
    operands: Mapping[str, str] = field(default_factory=lambda: {"x": "x"})


XY, XW = {"x": "x", "y": "related"}, {"x": "x", "w": "counts"}
r = reductions
MEANINGS: Mapping[type, Meaning] = {
    r.Total: Meaning(bare(lambda x: x.sum(-1)), USUAL),
    r.Mean: Meaning(bare(lambda x: x.mean(-1)), USUAL),
    r.Product: Meaning(bare(lambda x: x.prod(-1)), ("positive", "two", "one", "some_zeros")),
    r.ProductAndZeros: Meaning(without_zeros, ("two", "one", "zeros", "zeros_first", "some_zeros")),
    r.CompensatedSum: Meaning(bare(lambda x: x.sum(-1)), (*SPREAD, "huge")),
    r.Largest: Meaning(lambda x: dict(zip(("value", "index"), x.max(-1), strict=True)), USUAL),
    r.Smallest: Meaning(lambda x: dict(zip(("value", "index"), x.min(-1), strict=True)), USUAL),
    r.Argmax: Meaning(bare(lambda x: x.argmax(-1)), (*USUAL, "absent", "not_finite")),
    r.Argmin: Meaning(bare(lambda x: x.argmin(-1)), (*USUAL, "absent", "not_finite")),
    r.TopTwo: Meaning(top_two, (*USUAL, "absent", "huge")),
    r.AnyOf: Meaning(bare(lambda x: (x != 0).any(-1)), (*USUAL, "some_zeros")),
    r.AllOf: Meaning(bare(lambda x: (x != 0).all(-1)), (*USUAL, "some_zeros")),
    r.LogSumExp: Meaning(bare(lambda x: torch.logsumexp(x, -1)), SHIFTED),
    r.MaxAndSum: Meaning(max_and_sum, SHIFTED),
    r.SoftmaxSum: Meaning(softmax_sum, SHIFTED, {"x": "x", "v": "vectors"}),
    r.SoftmaxSumEntropy: Meaning(softmax_sum_entropy, SHIFTED, {"x": "x", "v": "vectors"}),
    r.WeightedLogSumExp: Meaning(bare(lambda x, w: weighted_lse(x, w)[0]), SHIFTED, XW),
    r.SignedLogSumExp: Meaning(
        lambda x, w: dict(zip(("log_abs", "sign"), weighted_lse(x, w), strict=True)),
        SHIFTED,
        {"x": "x", "w": "signed"},
    ),
    r.SoftmaxEntropy: Meaning(entropy, SHIFTED),
    r.CrossEntropy: Meaning(cross_entropy, (*SHIFTED, "outlier_first"), XW),
    r.SoftMin: Meaning(bare(lambda x: -torch.logsumexp(-x, -1)), (*USUAL, "mean_1e6")),
    r.Moments: Meaning(moments, SPREAD),
    r.Welford: Meaning(moments, (*USUAL, "outlier_first")),
    r.HigherMoments: Meaning(higher, SPREAD),
    r.WeightedMoments: Meaning(weighted_moments, SPREAD, XW),
    r.Summary: Meaning(summary, SPREAD),
    r.Covariance: Meaning(bare(covariance), SPREAD, XY),
    r.Correlation: Meaning(correlation, SPREAD, XY),
    r.CosineSimilarity: Meaning(cosine, SCALED, XY),
    r.EuclideanNorm: Meaning(bare(lambda x: norm(x, 2.0)), SCALED),
    r.PNorm: Meaning(bare(lambda x: norm(x, 3.0)), SCALED),
    r.GeometricMean: Meaning(bare(lambda x: x.log().mean(-1).exp()), (*POSITIVE, "zeros")),
    r.HarmonicMean: Meaning(bare(lambda x: 1 / (1 / x).mean(-1)), (*POSITIVE, "zeros")),
    r.AffineComposition: Meaning(affine, (*USUAL, "outlier_first"), {"a": "near 1", "c": "noise"}),
    r.MaxSubarray: Meaning(best_slice, (*USUAL, "outlier_first")),
    r.LossStatistics: Meaning(losses, (*USUAL, "not_finite")),
}
CASES = [(R, rows) for R, meaning in MEANINGS.items() for rows in meaning.rows]
