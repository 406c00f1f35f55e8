"""The table of broken variants: every shipped reduction, spoilt in ways that a law must refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import fusedreduce as fr
from fusedreduce import reductions as r

INF = float("inf")


@dataclass(frozen=True)
class Broken:
    """A shipped reduction with some parts replaced, what is wrong with it, the law that refuses."""

    R: type[fr.Reduction]
    how: str
    law: str
    changes: dict[str, Any]

    @property
    def declaration(self) -> type[fr.Reduction]:
        return stated(self.R, **self.changes)


def stated(R: type[fr.Reduction], **changes: Any) -> type[fr.Reduction]:
    """R with some parts replaced, and with its definition if that is not shipped."""
    definition = {"definition": STATED[R]} if R in STATED else {}
    return type(R.__name__, (R,), definition | changes)


class ArgmaxByHand(fr.Reduction):
    """Argmax as a general form: the kind `fr.ArgMax` leaves nothing to spoil."""

    v, at = fr.state(-INF, INF)
    domain = {"k": "index"}

    def lift(x, k):
        return x, k

    def merge(a, b):
        first = (a.v > b.v) | ((a.v == b.v) & (a.at < b.at))
        return torch.where(first, a.v, b.v), torch.where(first, a.at, b.at)

    def finish(at):
        return at


class ArgminByHand(ArgmaxByHand):
    v, at = fr.state(INF, INF)

    def merge(a, b):
        first = (a.v < b.v) | ((a.v == b.v) & (a.at < b.at))
        return torch.where(first, a.v, b.v), torch.where(first, a.at, b.at)


# Definitions that need to know the order or the rank of elements: checked on few, so not shipped.


def composed(a, c):
    y = c[0]
    for i in range(1, len(a)):
        y = a[i] * y + c[i]
    return {"slope": torch.prod(a), "shift": y}


def best_slice(x):
    best = x[0]
    for i in range(len(x)):
        for k in range(i + 1, len(x) + 1):
            best = torch.maximum(best, torch.sum(x[i:k]))
    return best


def of_losses(x):
    ok = torch.isfinite(x)
    mean = torch.sum(torch.where(ok, x, 0.0)) / torch.sum(ok)
    largest = torch.amax(torch.where(ok, x, -INF))
    return {"mean": mean, "last": x[-1], "largest": largest, "nonfinite": torch.sum(~ok)}


def top_two(x):
    first = torch.amax(x)
    below = torch.amax(torch.where(x == first, -INF, x))
    return {"first": first, "second": torch.where(torch.sum(x == first) > 1, first, below)}


STATED = {
    r.AffineComposition: composed,
    r.MaxSubarray: best_slice,
    r.LossStatistics: of_losses,
    r.TopTwo: top_two,
}


def two(*identities: float) -> dict[str, Any]:
    v, at = fr.state(*identities)
    return dict(v=v, at=at)


def larger(name: str, a: Any, b: Any) -> Any:
    return torch.maximum(getattr(a, name), getattr(b, name))


def exps(correct: Any) -> fr.Sum:
    return fr.Sum(lambda x, m: torch.exp(x - m), correct=correct)


def upside_down(s, old, new):
    return s * torch.exp(new.m - old.m)


def halved(s, old, new):
    return s * torch.exp((old.m - new.m) / 2)


def doubled(s, old, new):
    return s * torch.exp(2 * (old.m - new.m))


def without_shift(t, old, new):
    return t * torch.exp(old.m - new.m)


def wrong_way(t, old, new):
    return (t - old.s * (old.m - new.m)) * torch.exp(old.m - new.m)


def shifted_exps(correct: Any) -> fr.Sum:
    return fr.Sum(lambda x, m: (x - m) * torch.exp(x - m), correct=correct)


def chan(a, b):
    """n, the merged mean, what d^2 is multiplied by n of one side, both m2."""
    n = a.n + b.n
    w = torch.where(n > 0, b.n / n, 0.0)
    d = b.mean - a.mean
    return n, a.mean + d * w, d * d * w, a.m2 + b.m2


def wrong_weight(a, b):
    n, mean, square, m2 = chan(a, b)
    return n, mean, m2 + square * b.n


def no_cross_term(a, b):
    n, mean, _, m2 = chan(a, b)
    return n, mean, m2


def mean_of_means(a, b):
    n, _, square, m2 = chan(a, b)
    return n, (a.mean + b.mean) / 2, m2 + square * a.n


def no_crossing(a, b):
    best = torch.maximum(a.best, b.best)
    head, tail = torch.maximum(a.head, a.total + b.head), torch.maximum(b.tail, a.tail + b.total)
    return a.total + b.total, head, tail, best


def first_instead_of_last(a, b):
    last, largest = torch.where(a.n > 0, a.last, b.last), larger("largest", a, b)
    return a.n + b.n, a.total + b.total, last, largest, a.nonfinite + b.nonfinite


def averaged_totals(a, b):
    last, largest = torch.where(b.n > 0, b.last, a.last), larger("largest", a, b)
    return a.n + b.n, (a.total + b.total) / 2, last, largest, a.nonfinite + b.nonfinite


def difference(a, b):
    return a.s - b.s, a.lost + b.lost


# Each line: the reduction, how it is spoilt, the law that must refuse it, the parts replaced.
ROWS: tuple[tuple[Any, ...], ...] = (
    (r.Total, "every element twice", "definition", dict(total=fr.Sum(lambda x: 2 * x))),
    (r.Total, "sizes", "definition", dict(total=fr.Sum(lambda x: torch.abs(x)))),
    (r.Mean, "the sum", "definition", dict(finish=lambda total: total)),
    (r.Mean, "n - 1", "definition", dict(finish=lambda n, total: total / (n - 1))),
    (r.Product, "a sum", "definition", dict(p=fr.Sum(lambda x: x))),
    (r.Product, "skips zeros", "definition",
     dict(p=fr.Prod(lambda x: torch.where(x == 0, 1.0, x)))),
    (r.ProductAndZeros, "zeros forgotten", "definition",
     dict(finish=lambda p, zeros: {"product": p, "nonzero": p, "zeros": zeros})),
    (r.ProductAndZeros, "zeros multiplied", "definition", dict(p=fr.Prod(lambda x: x))),
    (r.CompensatedSum, "every element twice", "definition", dict(lift=lambda x: (2 * x, 0.0))),
    (r.CompensatedSum, "a difference", "associativity", dict(merge=difference)),
    (r.Largest, "identity 0", "identity", dict(m=fr.Max(lambda x: x, identity=0.0))),
    (r.Largest, "the smallest", "definition", dict(m=fr.Min(lambda x: x))),
    (r.Smallest, "identity 0", "identity", dict(m=fr.Min(lambda x: x, identity=0.0))),
    (r.Smallest, "the largest", "definition", dict(m=fr.Max(lambda x: x))),
    (ArgmaxByHand, "identity 0", "identity", two(0.0, INF)),
    (ArgmaxByHand, "place of the other", "identity",
     dict(merge=lambda a, b: (larger("v", a, b), torch.where(a.v > b.v, b.at, a.at)))),
    (ArgminByHand, "identity -inf", "identity", two(-INF, INF)),
    (ArgminByHand, "place of the other", "identity",
     dict(merge=lambda a, b: (
         torch.minimum(a.v, b.v), torch.where(a.v < b.v, b.at, a.at)))),
    (r.TopTwo, "drops the runner-up", "definition",
     dict(merge=lambda a, b: (larger("first", a, b), larger("second", a, b)))),
    (r.TopTwo, "identity 0", "identity",
     dict(zip(("first", "second"), fr.state(0.0, 0.0), strict=True))),
    (r.AnyOf, "all", "definition", dict(found=fr.All(lambda x: x != 0))),
    (r.AnyOf, "positive only", "definition", dict(found=fr.Any(lambda x: x > 0))),
    (r.AllOf, "any", "definition", dict(ok=fr.Any(lambda x: x != 0))),
    (r.AllOf, "positive only", "definition", dict(ok=fr.All(lambda x: x > 0))),
    (r.LogSumExp, "correction upside down", "faithfulness", dict(s=exps(upside_down))),
    (r.LogSumExp, "finish forgets m", "definition", dict(finish=lambda s: torch.log(s))),
    (r.LogSumExp, "the smallest as reference", "absence", dict(m=fr.Min(lambda x: x))),
    (r.MaxAndSum, "correction halved", "faithfulness", dict(s=exps(halved))),
    (r.MaxAndSum, "no reference", "definition", dict(s=fr.Sum(lambda x: torch.exp(x)))),
    (r.SoftmaxSum, "output not corrected", "faithfulness",
     dict(o=fr.Sum(lambda x, m, v: torch.exp(x - m) * v,
                   correct=lambda o, old, new: o + 0 * old.m * new.m))),
    (r.SoftmaxSum, "not divided", "definition",
     dict(finish=lambda m, s, o: {"out": o, "lse": m + torch.log(s)})),
    (r.SoftmaxSumEntropy, "correction without its shift", "faithfulness",
     dict(t=shifted_exps(without_shift))),
    (r.SoftmaxSumEntropy, "the logit of the sum", "definition",
     dict(finish=lambda m, s, o, t: {"out": o / s, "lse": m + torch.log(s),
                                     "entropy": torch.log(s) - t / s,
                                     "max_logit": m + torch.log(s)})),
    (r.WeightedLogSumExp, "weights forgotten", "definition", dict(s=exps(None))),
    (r.WeightedLogSumExp, "the smallest as reference", "absence",
     dict(m=fr.Min(lambda x, w: torch.where(w == 0, INF, x)))),
    (r.SignedLogSumExp, "signs lost", "definition",
     dict(s=fr.Sum(lambda x, w, m: torch.abs(w) * torch.exp(x - m)))),
    (r.SignedLogSumExp, "correction doubled", "faithfulness",
     dict(s=fr.Sum(lambda x, w, m: w * torch.exp(x - m), correct=doubled))),
    (r.SoftmaxEntropy, "correction without its shift", "faithfulness",
     dict(t=shifted_exps(without_shift))),
    (r.SoftmaxEntropy, "shifted the wrong way", "faithfulness", dict(t=shifted_exps(wrong_way))),
    (r.CrossEntropy, "not moved", "faithfulness",
     dict(e=fr.Sum(lambda x, w, c: w * (x - c), correct=lambda e, old, new: e + 0 * old.c))),
    (r.CrossEntropy, "moved by the elements", "faithfulness",
     dict(e=fr.Sum(lambda x, w, c: w * (x - c), correct=lambda e, old, new: e + old.c - new.c))),
    (r.CrossEntropy, "finish forgets c", "definition",
     dict(finish=lambda m, s, u, e: {"loss": torch.log(s) * u - e + m * u})),
    (r.SoftMin, "correction upside down", "faithfulness",
     dict(s=fr.Sum(lambda x, m: torch.exp(m - x),
                   correct=lambda s, old, new: s * torch.exp(old.m - new.m)))),
    (r.SoftMin, "the largest as reference", "absence", dict(m=fr.Max(lambda x: x))),
    (r.Moments, "squares not moved", "meaning",
     dict(e2=fr.Sum(lambda x, mean: (x - mean) ** 2, correct=lambda e2, old, new: e2))),
    (r.Moments, "n - 1", "definition",
     dict(finish=lambda n, mean, e2: {"mean": mean, "var": e2 / (n - 1)})),
    (r.Welford, "wrong weight", "definition", dict(merge=wrong_weight)),
    (r.Welford, "no cross term", "definition", dict(merge=no_cross_term)),
    (r.Welford, "mean of means", "associativity", dict(merge=mean_of_means)),
    (r.HigherMoments, "cubes not moved", "meaning",
     dict(e3=fr.Sum(lambda x, mean: (x - mean) ** 3, correct=lambda e3, old, new: e3))),
    (r.HigherMoments, "excess", "definition",
     dict(finish=lambda n, mean, e2, e3, e4: {
         "mean": mean, "var": e2 / n, "skewness": e3 / n / (e2 / n) ** 1.5,
         "kurtosis": n * e4 / (e2 * e2) - 3})),
    (r.WeightedMoments, "elements counted", "faithfulness", dict(n=fr.Sum(lambda x: 1.0))),
    (r.WeightedMoments, "not divided by the weights", "definition",
     dict(finish=lambda mean, e2: {"mean": mean, "var": e2})),
    (r.Summary, "extremes swapped", "definition",
     dict(low=fr.Max(lambda x: x), high=fr.Min(lambda x: x))),
    (r.Summary, "identity 0", "identity", dict(high=fr.Max(lambda x: x, identity=0.0))),
    (r.Covariance, "products not moved", "meaning",
     dict(exy=fr.Sum(lambda x, y, mx, my: (x - mx) * (y - my),
                     correct=lambda exy, old, new: exy))),
    (r.Covariance, "n - 1", "definition", dict(finish=lambda n, exy: exy / (n - 1))),
    (r.Correlation, "roots forgotten", "definition",
     dict(finish=lambda exy, exx, eyy: exy / exx / eyy)),
    (r.Correlation, "x twice", "definition", dict(eyy=fr.Sum(lambda x, mx: (x - mx) ** 2))),
    (r.CosineSimilarity, "corrected for one stream", "faithfulness",
     dict(d=fr.Sum(lambda x, y, kx, ky: (x / kx) * (y / ky),
                   correct=lambda d, old, new: d * (old.kx / new.kx)))),
    (r.CosineSimilarity, "roots forgotten", "definition",
     dict(finish=lambda qx, qy, d: torch.where((qx == 0) | (qy == 0), 0.0, d / (qx * qy)))),
    (r.EuclideanNorm, "ratio not squared", "faithfulness",
     dict(q=fr.Sum(lambda x, k: (x / k) ** 2,
                   correct=lambda q, old, new: q * (old.k / new.k)))),
    (r.EuclideanNorm, "identity 1", "identity",
     dict(k=fr.Max(lambda x: torch.abs(x), identity=1.0))),
    (r.PNorm, "squared ratio", "faithfulness",
     dict(q=fr.Sum(lambda x, k: (torch.abs(x) / k) ** 3,
                   correct=lambda q, old, new: q * (old.k / new.k) ** 2))),
    (r.PNorm, "no root", "definition", dict(finish=lambda k, q: k * q)),
    (r.GeometricMean, "left in logs", "definition", dict(finish=lambda n, total: total / n)),
    (r.GeometricMean, "not divided", "definition", dict(finish=lambda total: torch.exp(total))),
    (r.HarmonicMean, "upside down", "definition", dict(finish=lambda n, total: total / n)),
    (r.HarmonicMean, "arithmetic", "definition", dict(total=fr.Sum(lambda x: x))),
    (r.AffineComposition, "the other order", "definition",
     dict(merge=lambda a, b: (a.slope * b.slope, a.slope * b.shift + a.shift))),
    (r.AffineComposition, "shift not scaled", "definition",
     dict(merge=lambda a, b: (a.slope * b.slope, a.shift + b.shift))),
    (r.AffineComposition, "identity 0", "identity", dict(zip(
        ("slope", "shift"), fr.state(0.0, 0.0), strict=True))),
    (r.MaxSubarray, "nothing across the halves", "definition", dict(merge=no_crossing)),
    (r.MaxSubarray, "identity 0", "identity", dict(zip(
        ("total", "head", "tail", "best"), fr.state(0.0, 0.0, 0.0, 0.0), strict=True))),
    (r.LossStatistics, "the first for the last", "definition",
     dict(merge=first_instead_of_last)),
    (r.LossStatistics, "totals averaged", "associativity", dict(merge=averaged_totals)),
)  # fmt: skip

BROKEN = tuple(Broken(*row) for row in ROWS)
BY_HAND = {r.Argmax: ArgmaxByHand, r.Argmin: ArgminByHand}
