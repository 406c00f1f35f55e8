"""Results that depend on the reference itself, on one element, on products, on merges: each as a
fused function with its plain PyTorch formula. The rooms of gradients run it beside `chains.CASES`.
"""

from __future__ import annotations

import torch

import fusedreduce as fr
from fusedreduce.reductions import (
    CompensatedSum,
    Largest,
    LogSumExp,
    MaxAndSum,
    Product,
    ProductAndZeros,
    Smallest,
    Summary,
    Welford,
)
from tests.chains import Case, Tensors, random

INF = float("inf")


def picked(x, best):
    """The first element that attains `best`: ties go to one element, as fused ones do."""
    j = torch.arange(x.shape[-1], device=x.device)
    at = torch.where(x == best, j, x.shape[-1]).amin(-1, keepdim=True)
    return x.gather(-1, at)[..., 0]


def largest(x):
    return picked(x, x.detach().amax(-1, keepdim=True))


def smallest(x):
    return picked(x, x.detach().amin(-1, keepdim=True))


# ---- extremes ----------------------------------------------------------------------------------


def spread_of_extremes(x):
    low, high = fr.reduce(Smallest, x, outputs="value"), fr.reduce(Largest, x, outputs="value")
    return {"range": high - low, "product": high * low}


def scaled_by_largest(x, w):
    """Each row relative to its largest size, as in quantisation; then a column's weight."""
    return x / torch.amax(torch.abs(x), -1, keepdim=True) * w


def max_and_sum(x):
    return fr.reduce(MaxAndSum, x)


def max_and_sum_reference(x):
    m = largest(x)
    return {"m": m, "s": torch.exp(x - m[..., None]).sum(-1)}


def summary(x):
    r = fr.reduce(Summary, x)
    return r["max"] - r["mean"], r["var"] * r["min"]


def summary_reference(x):
    return largest(x) - x.mean(-1), x.var(-1, correction=0) * smallest(x)


class Gap(LogSumExp):
    """How far the largest stands above the average of the others' exponentials."""

    n = fr.Sum(lambda x: 1.0)
    definition = None

    def finish(m, s, n):
        return {"gap": m * s / n, "lse": m + torch.log(s)}


def gap(x):
    r = fr.reduce(Gap, x)
    return r["gap"] + r["lse"] * r["lse"]


def gap_reference(x):
    m = largest(x)
    s = torch.exp(x - m[..., None]).sum(-1)
    return m * s / x.shape[-1] + torch.logsumexp(x, -1) ** 2


# ---- other references --------------------------------------------------------------------------


class Drift(fr.Reduction):
    """The first element, and how far the row has moved from it."""

    r = fr.First(lambda x, w: x * w)
    n = fr.Sum(lambda x: 1.0)
    d1 = fr.Sum(lambda x, r: x - r)
    d = fr.Sum(lambda x, r: (x - r) ** 2)

    def finish(r, d):
        return {"first": r, "drift": d * r}


def drift(x, w):
    return fr.reduce(Drift, x, w=w)


def drift_reference(x, w):
    r = (x * w)[..., :1]
    return {"first": r[..., 0], "drift": ((x - r) ** 2).sum(-1) * r[..., 0]}


class Bound(fr.Reduction):
    """The running mean itself as a result, and a sum that is not flat along it."""

    n = fr.Sum(lambda x: 1.0)
    t = fr.Sum(lambda x: x)
    mean = fr.Reference(lambda n, t: t / n)
    e = fr.Sum(lambda x, mean: x - mean)
    e3 = fr.Sum(lambda x, mean: (x - mean) ** 3)
    e2 = fr.Sum(lambda x, mean: (x - mean) ** 2)

    def finish(n, mean, e3, e2):
        return {"mean": mean, "cube": e3 / n, "var": e2 / n}


def bound(x):
    r = fr.reduce(Bound, x)
    return r["mean"] * r["var"], r["cube"]


def bound_reference(x):
    mean = x.mean(-1, keepdim=True)
    return mean[..., 0] * x.var(-1, correction=0), ((x - mean) ** 3).mean(-1)


class Midway(LogSumExp):
    """A reference that no term reads, only `finish`: the mean under softmax, m + t / s."""

    t = fr.Sum(lambda x, m: (x - m) * torch.exp(x - m))
    mean = fr.Reference(lambda m, s, t: m + t / s)
    definition = None

    def finish(m, mean):
        return {"mean": mean, "above": m - mean}


def midway(x):
    return fr.reduce(Midway, x)


def midway_reference(x):
    mean = (torch.softmax(x, -1) * x).sum(-1)
    return {"mean": mean, "above": largest(x) - mean}


# ---- products ----------------------------------------------------------------------------------


def product(x):
    return fr.reduce(Product, x)


def product_and_zeros(x, w):
    r = fr.reduce(ProductAndZeros, x * w)
    return r["product"] + r["nonzero"]


def product_and_zeros_reference(x, w):
    y = x * w
    p = torch.where(y == 0, 1.0, y).prod(-1)
    return torch.where((y == 0).any(-1), 0.0, p) + p


# ---- general merges ----------------------------------------------------------------------------


class MergedLogSumExp(fr.Reduction):
    """log-sum-exp as a general merge: the maximum is what the sum is relative to."""

    m, s = fr.state(-INF, 0.0)

    def lift(x):
        return x, 1.0

    def merge(a, b):
        m = torch.maximum(a.m, b.m)
        return m, a.s * torch.exp(a.m - m) + b.s * torch.exp(b.m - m)

    def finish(m, s):
        return {"lse": m + torch.log(s), "s": s}


def welford(x, w):
    r = fr.reduce(Welford, x * w)
    return r["mean"], r["var"]


def welford_reference(x, w):
    y = x * w
    return y.mean(-1), y.var(-1, correction=0)


def merged_log_sum_exp(x):
    r = fr.reduce(MergedLogSumExp, x)
    return r["lse"], r["s"]


def merged_reference(x):
    return torch.logsumexp(x, -1), torch.exp(x - largest(x)[..., None]).sum(-1)


def compensated(x):
    return fr.reduce(CompensatedSum, x * x)


# ---- names and places --------------------------------------------------------------------------


class Weighed(fr.Reduction):
    """A term that is the same for all elements of a row."""

    t = fr.Sum(lambda x, w: w * w)
    u = fr.Sum(lambda x: x)

    def finish(t, u):
        return t * u


def weighed(x, w):
    return fr.reduce(Weighed, x, w=w[:, None])


def weighed_reference(x, w):
    return w * w * x.shape[-1] * x.sum(-1)


def centred_and_mean(x, w):
    """A result that is an output by itself and part of another one."""
    r = fr.reduce(fr.reductions.Moments, x, keepdim=True)
    return (x - r["mean"]) * w[:, None] * r["var"], r["mean"] * w[:, None]


def centred_reference(x, w):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * w[:, None] * x.var(-1, correction=0, keepdim=True), mean * w[:, None]


def shared_elements(x, y, w):
    """Three rows share the elements of x; y has its own, w is a column of all."""
    return fr.reduce(LogSumExp, (x[:, None, :] * y + w) * w)


def named_like_fields(x, m, s):
    """Arguments that are called as the fields of the declaration are."""
    r = fr.reduce(Gap, x, outputs="gap")
    return (r * m + fr.reduce(LogSumExp, x * s[:, None])) * s


def named_reference(x, m, s):
    e = torch.exp(x - largest(x)[..., None]).mean(-1)
    return (largest(x) * e * m + torch.logsumexp(x * s[:, None], -1)) * s


# ---- inputs ------------------------------------------------------------------------------------


def parts_of_a_row(x, w, v):
    """Numbers of one part of a row each, and numbers that all its parts share."""
    y = x * w[:, None] + v
    return y - torch.logsumexp(y, (1, 2), keepdim=True)


def rising(x):
    """Steep where it is smallest. x x - x is flat there: of 1025 values the smallest two may lie
    within a rounding of each other, and which one it is depends on how a product is rounded.
    """
    return x * x * x + x


def _x(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (random(rows, columns, dtype=dtype),)


def _tied(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return ((torch.randn(rows, columns, dtype=torch.float64) * 2).round().to(dtype),)


def _tied_and_column(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return *_tied(rows, columns, dtype), random(columns, dtype=dtype)


def _column(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return random(rows, columns, dtype=dtype), random(columns, dtype=dtype)


def _row(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return random(rows, columns, dtype=dtype), random(rows, dtype=dtype)


def _two_rows(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return *_row(rows, columns, dtype), random(rows, dtype=dtype)


def _zeros(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    """Rows without a zero, with one, with two; sizes about 1, so that no product is lost."""
    x = torch.exp(torch.randn(rows, columns, dtype=torch.float64) / columns**0.5)
    x *= torch.randint(0, 2, x.shape) * 2 - 1
    for r in range(rows):
        x[r, torch.randperm(columns)[: r % 3]] = 0.0
    return (x.to(dtype),)


def _zeros_and_column(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    w = torch.exp(torch.randn(columns, dtype=torch.float64) / columns**0.5)
    return *_zeros(rows, columns, dtype), w.to(dtype)


def _parts(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (
        random(rows, 3, columns, dtype=dtype), random(3, dtype=dtype), random(columns, dtype=dtype),
    )  # fmt: skip


def _shared(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return (
        *_column(rows, columns, dtype)[:1],
        random(rows, 3, columns, dtype=dtype),
        random(columns, dtype=dtype),
    )


CASES: tuple[Case, ...] = (
    Case("largest", lambda x: fr.reduce(Largest, x, outputs="value"), _tied, largest),
    Case("amin", lambda x: torch.amin(rising(x), -1), _x, lambda x: smallest(rising(x))),
    Case("spread_of_extremes", spread_of_extremes, _tied,
         lambda x: {"range": largest(x) - smallest(x), "product": largest(x) * smallest(x)}),
    Case("scaled_by_largest", scaled_by_largest, _tied_and_column,
         lambda x, w: x / largest(torch.abs(x))[:, None] * w, 2),
    Case("max_and_sum", max_and_sum, _tied, max_and_sum_reference),
    Case("summary", summary, _x, summary_reference),
    Case("gap", gap, _x, gap_reference),
    Case("drift", drift, _column, drift_reference),
    Case("bound", bound, _x, bound_reference),
    Case("midway", midway, _x, midway_reference),
    Case("product", product, _zeros, lambda x: x.prod(-1)),
    Case("product_and_zeros", product_and_zeros, _zeros_and_column, product_and_zeros_reference),
    Case("welford", welford, _column, welford_reference),
    Case("merged_log_sum_exp", merged_log_sum_exp, _x, merged_reference),
    Case("compensated", compensated, _x, lambda x: (x * x).sum(-1)),
    Case("weighed", weighed, _row, weighed_reference),
    Case("centred_and_mean", centred_and_mean, _row, centred_reference),
    Case("shared_elements", shared_elements, _shared,
         lambda x, y, w: torch.logsumexp((x[:, None, :] * y + w) * w, -1)),
    Case("parts_of_a_row", parts_of_a_row, _parts, parts_of_a_row),
    Case("one_row_of_all", lambda x, w: torch.logsumexp(x * w[:, None], (0, 1)), _row,
         lambda x, w: torch.logsumexp(x * w[:, None], (0, 1))),
    Case("named_like_fields", named_like_fields, _two_rows, named_reference),
)  # fmt: skip
