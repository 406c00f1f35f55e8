"""Declarations that the engine was not written for, as a hostile reader would state them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import fusedreduce as fr
from tests.laws.zoo import INF, declared, exps, log_sum_exp, lse, lse_definition, top

PROVED, LAWFUL, OPEN = "proved", "lawful merge", "open"


@dataclass(frozen=True)
class Unseen:
    """`verdict`: PROVED, LAWFUL (what it computes was not stated), OPEN, or refuted laws."""

    declaration: type[fr.Reduction]
    verdict: str | tuple[str, ...]

    @property
    def name(self) -> str:
        return self.declaration.__name__


# ---- parts ---------------------------------------------------------------------------------------


def one():
    return fr.Sum(lambda x: 1.0)


def general(name: str, fields: dict[str, Any], lift: Any, merge: Any, finish: Any, **more: Any):
    made = fr.state(*fields.values())
    made = made if isinstance(made, tuple) else (made,)
    body = dict(zip(fields, made, strict=True))
    return declared(name, **body, lift=lift, merge=merge, finish=finish, **more)


def log_mean_exp(name, finish):
    return lse(
        name,
        n=one(),
        finish=finish,
        definition=lambda x: torch.logsumexp(x, 0) - torch.log(torch.sum(torch.ones_like(x))),
    )


def weighted_values(name, term, correct=None):
    return declared(
        name,
        domain={"w": "positive"},
        m=top(),
        s=fr.Sum(lambda x, w, m: w * torch.exp(x - m)),
        o=fr.Sum(term, correct=correct),
        finish=lambda s, o: o / s,
        definition=lambda x, w, y: torch.sum(w * y * torch.exp(x)) / torch.sum(w * torch.exp(x)),
    )


def two_maxima(name, correct=None):
    return declared(
        name,
        p=fr.Max(lambda x: x),
        q=fr.Max(lambda y: y),
        s=fr.Sum(lambda x, y, p, q: torch.exp(x - p + y - q), correct=correct),
        finish=lambda p, q, s: p + q + torch.log(s),
        definition=lambda x, y: torch.logsumexp(x + y, 0),
    )


def both_ends(name, low=None):
    return declared(
        name,
        hi=fr.Max(lambda x: x),
        lo=low or fr.Min(lambda x: x),
        s=fr.Sum(lambda x, hi: torch.exp(x - hi)),
        t=fr.Sum(lambda x, lo: torch.exp(lo - x)),
        finish=lambda hi, lo, s, t: hi + torch.log(s) - lo + torch.log(t),
    )


def divergence(name, sign):
    return declared(
        name,
        p=fr.Max(lambda x: x),
        q=fr.Max(lambda y: y),
        s=fr.Sum(lambda x, p: torch.exp(x - p)),
        t=fr.Sum(lambda y, q: torch.exp(y - q)),
        d=fr.Sum(lambda x, y, p: (x - y) * torch.exp(x - p)),
        finish=lambda p, q, s, t, d: d / s - p - torch.log(s) + sign * (q + torch.log(t)),
        definition=lambda x, y: torch.sum(
            torch.softmax(x, 0) * (torch.log_softmax(x, 0) - torch.log_softmax(y, 0))
        ),
    )


def scaled_norm(name, neutral=1.0, power=4, root=0.25):
    return declared(
        name,
        k=fr.Max(lambda x: torch.abs(x), identity=0.0, neutral=neutral),
        q=fr.Sum(lambda x, k: (x / k) ** power),
        finish=lambda k, q: k * q**root,
        definition=lambda x: torch.sum(x**4) ** 0.25,
    )


def regression(name, finish):
    return declared(
        name,
        n=one(),
        r=fr.First(lambda x: x),
        d=fr.Sum(lambda x, r: x - r),
        mx=fr.Reference(lambda n, r, d: r + d / n),
        ty=fr.Sum(lambda y: y),
        my=fr.Reference(lambda n, ty: ty / n),
        ex=fr.Sum(lambda x, mx: x - mx),
        ey=fr.Sum(lambda y, my: y - my),
        sxx=fr.Sum(lambda x, mx: (x - mx) ** 2),
        sxy=fr.Sum(lambda x, y, mx, my: (x - mx) * (y - my)),
        finish=finish,
        definition=lambda x, y: {
            "slope": torch.sum((x - torch.mean(x)) * (y - torch.mean(y))),
            "spread": torch.sum((x - torch.mean(x)) ** 2),
        },
    )


def shifted_powers(name, highest, finish, **more):
    body: dict[str, Any] = {"n": one(), "r": fr.First(lambda x: x)}
    for k in range(1, highest + 1):
        body[f"d{k}"] = power_sum(k)
    return declared(name, **body, finish=finish, **more)


def power_sum(k):
    def term(x, r):
        return (x - r) ** k

    return fr.Sum(term)


def tilted(k):
    def term(x, m):
        return (x - m) ** k * torch.exp(x - m)

    return fr.Sum(term)


def brackets(name, identity=(0.0, 0.0), matched=torch.minimum):
    def merge(a, b):
        t = matched(a.left, b.right)
        return a.left + b.left - t, a.right + b.right - t

    return general(
        name,
        {"left": identity[0], "right": identity[1]},
        lambda x: (torch.where(x > 0, 1.0, 0.0), torch.where(x > 0, 0.0, 1.0)),
        merge,
        lambda left, right: {"unclosed": left, "unopened": right},
    )


def matrices(name, last):
    def merge(a, b):
        return (
            a.p * b.p + a.q * b.r,
            a.p * b.q + a.q * b.s,
            a.r * b.p + a.s * b.r,
            last(a, b),
        )

    return general(
        name,
        {"p": 1.0, "q": 0.0, "r": 0.0, "s": 1.0},
        lambda x, y, z, w: (x, y, z, w),
        merge,
        lambda p, s: {"trace": p + s},
    )


def ties(name, both):
    def merge(a, b):
        k = torch.where(a.m > b.m, a.k, torch.where(a.m < b.m, b.k, both(a.k, b.k)))
        return torch.maximum(a.m, b.m), k

    return general(
        name,
        {"m": -INF, "k": 0.0},
        lambda x: (x, 1.0),
        merge,
        lambda m, k: {"largest": m, "times": k},
        definition=lambda x: {
            "largest": torch.amax(x),
            "times": torch.sum(torch.where(x == torch.amax(x), 1.0, 0.0)),
        },
    )


def runs(name, across):
    """The longest run of positive elements."""

    def merge(a, b):
        pre = torch.where(a.pre == a.n, a.n + b.pre, a.pre)
        suf = torch.where(b.suf == b.n, b.n + a.suf, b.suf)
        return a.n + b.n, pre, suf, torch.maximum(torch.maximum(a.best, b.best), across(a, b))

    def lift(x):
        up = torch.where(x > 0, 1.0, 0.0)
        return 1.0, up, up, up

    fields = {"n": 0.0, "pre": 0.0, "suf": 0.0, "best": 0.0}
    return general(name, fields, lift, merge, lambda best: best, definition=longest_run)


def longest_run(x):
    best, here = 0.0, 0.0
    for i in range(len(x)):
        here = torch.where(x[i] > 0, here + 1.0, 0.0)
        best = torch.maximum(here, best) if i else here
    return best


def counted_mean(name, weight):
    def merge(a, b):
        n = a.n + b.n
        return n, a.mean + (b.mean - a.mean) * weight(a.n, b.n, n)

    return general(
        name,
        {"n": 0.0, "mean": 0.0},
        lambda x: (1.0, x),
        merge,
        lambda mean: mean,
        definition=lambda x: torch.mean(x),
    )


def single(name, identity, lift, merge, **more):
    return general(name, {"p": identity}, lift, merge, lambda p: p, **more)


def entropy_of_counts(name, sign):
    return declared(
        name,
        domain={"w": "positive"},
        n=fr.Sum(lambda w: w),
        e=fr.Sum(lambda w: w * torch.log(w)),
        finish=lambda n, e: torch.log(n) + sign * e / n,
        definition=lambda w: -torch.sum(w / torch.sum(w) * torch.log(w / torch.sum(w))),
    )


def moments(name, finish, definition):
    return declared(
        name,
        n=one(),
        t=fr.Sum(lambda x: x),
        mean=fr.Reference(lambda n, t: t / n),
        q=fr.Sum(lambda x, mean: (x - mean) ** 2),
        e=fr.Sum(lambda x, mean: x - mean),
        finish=finish,
        definition=definition,
    )


def mean_var(x):
    return {"mean": torch.mean(x), "var": torch.var(x, unbiased=False)}


def exact_lse(name, correct):
    return lse(name, s=exps(correct), definition=lse_definition)


# ---- what holds ----------------------------------------------------------------------------------

TRUE = (
    Unseen(log_mean_exp("LogMeanExp", lambda m, s, n: m + torch.log(s / n)), PROVED),
    Unseen(weighted_values("WeightedValues", lambda x, w, y, m: w * y * torch.exp(x - m)), PROVED),
    Unseen(two_maxima("TwoMaxima"), PROVED),
    Unseen(both_ends("BothEnds"), PROVED),
    Unseen(divergence("Divergence", 1.0), PROVED),
    Unseen(scaled_norm("FourNorm"), PROVED),
    Unseen(regression("Regression", lambda sxx, sxy, n, ex, ey: {
        "slope": sxy - ex * ey / n, "spread": sxx - ex * ex / n}), PROVED),
    Unseen(shifted_powers("EightPowers", 8, lambda n, d8: d8 / n), PROVED),
    Unseen(
        lse("TiltedMoments", e1=tilted(1), e2=tilted(2), e3=tilted(3), e4=tilted(4),
            finish=lambda s, e4: e4 / s),
        PROVED,
    ),
    Unseen(brackets("Brackets"), LAWFUL),
    Unseen(matrices("Matrices", lambda a, b: a.r * b.q + a.s * b.s), LAWFUL),
    Unseen(ties("Ties", lambda a, b: a + b), OPEN),
    Unseen(runs("Runs", lambda a, b: a.suf + b.pre), OPEN),
    Unseen(counted_mean("CountedMean", lambda a, b, n: torch.where(n > 0, b / n, 0.0)), PROVED),
    Unseen(
        single("Hypotenuse", 0.0, lambda x: torch.abs(x),
               lambda a, b: torch.sqrt(a.p * a.p + b.p * b.p),
               definition=lambda x: torch.sqrt(torch.sum(x * x))),
        PROVED,
    ),
    Unseen(
        single("Parallel", INF, lambda x: x, lambda a, b: 1 / (1 / a.p + 1 / b.p),
               domain={"x": "positive"}, definition=lambda x: 1 / torch.sum(1 / x)),
        PROVED,
    ),
    Unseen(
        single("Survival", 0.0, lambda x: x, lambda a, b: a.p + b.p - a.p * b.p), LAWFUL
    ),
    Unseen(single("Parity", False, lambda x: x > 0, lambda a, b: a.p ^ b.p), LAWFUL),
    Unseen(single("Union", 0, lambda x: x, lambda a, b: a.p | b.p, domain={"x": "int"}), OPEN),
    Unseen(
        general("RollingHash", {"p": 1.0, "v": 0.0}, lambda x: (31.0, x),
                lambda a, b: (a.p * b.p, a.v * b.p + b.v), lambda v: v),
        LAWFUL,
    ),
    Unseen(
        general("Discounted", {"k": 1.0, "v": 0.0}, lambda x: (0.9, 0.1 * x),
                lambda a, b: (a.k * b.k, a.v * b.k + b.v), lambda v: v),
        LAWFUL,
    ),
    Unseen(
        general("Hull", {"lo": INF, "hi": -INF}, lambda x: (x, x),
                lambda a, b: (torch.minimum(a.lo, b.lo), torch.maximum(a.hi, b.hi)),
                lambda lo, hi: hi - lo, definition=lambda x: torch.amax(x) - torch.amin(x)),
        PROVED,
    ),
    Unseen(
        lse("Masked", s=fr.Sum(lambda x, y, m: torch.where(y > 0, torch.exp(x - m), 0.0)),
            definition=lambda x, y: torch.log(torch.sum(torch.where(y > 0, torch.exp(x), 0.0)))),
        PROVED,
    ),
    Unseen(
        declared("Clamped", s=fr.Sum(lambda x: torch.clamp(x, 0.0, 1.0)), finish=lambda s: s,
                 definition=lambda x: torch.sum(torch.clamp(x, 0.0, 1.0))),
        PROVED,
    ),
    Unseen(
        declared("Odd", domain={"x": "int"}, s=fr.Sum(lambda x: x % 2), n=one(),
                 finish=lambda s, n: s / n, definition=lambda x: torch.sum(x % 2) / x.shape[0]),
        PROVED,
    ),
    Unseen(entropy_of_counts("CountEntropy", -1.0), PROVED),
    Unseen(
        declared("BaseTwo", m=top(), s=fr.Sum(lambda x, m: torch.exp2(x - m)),
                 finish=lambda m, s: m + torch.log2(s),
                 definition=lambda x: torch.log2(torch.sum(torch.exp2(x)))),
        PROVED,
    ),
    Unseen(
        declared("Roots", domain={"x": "nonnegative"},
                 k=fr.Max(lambda x: x, identity=0.0, neutral=1.0),
                 s=fr.Sum(lambda x, k: torch.sqrt(x / k)),
                 finish=lambda k, s: torch.sqrt(k) * s,
                 definition=lambda x: torch.sum(torch.sqrt(x))),
        PROVED,
    ),
    Unseen(
        declared("LogCosh", k=fr.Max(lambda x: torch.abs(x)),
                 s=fr.Sum(lambda x, k: torch.exp(x - k) + torch.exp(-x - k)),
                 finish=lambda k, s: k + torch.log(s),
                 definition=lambda x: torch.log(torch.sum(2 * torch.cosh(x)))),
        PROVED,
    ),
    Unseen(
        declared("Cold", m=fr.Max(lambda x: x * 3.0), s=fr.Sum(lambda x, m: torch.exp(3.0 * x - m)),
                 finish=lambda m, s: (m + torch.log(s)) / 3.0,
                 definition=lambda x: torch.logsumexp(3.0 * x, 0) / 3.0),
        PROVED,
    ),
    Unseen(
        declared("Products", m=fr.Max(lambda x, y: x * y),
                 s=fr.Sum(lambda x, y, m: torch.exp(x * y - m)),
                 finish=log_sum_exp, definition=lambda x, y: torch.logsumexp(x * y, 0)),
        PROVED,
    ),
    Unseen(
        declared("Gaussian", m=fr.Max(lambda x: -x * x),
                 s=fr.Sum(lambda x, y, m: y * torch.exp(-x * x - m)),
                 finish=lambda m, s: torch.exp(m) * s,
                 definition=lambda x, y: torch.sum(y * torch.exp(-x * x))),
        PROVED,
    ),
    Unseen(
        declared("Nested", n=one(), r=fr.First(lambda x: x), d=fr.Sum(lambda x, r: x - r),
                 mean=fr.Reference(lambda n, r, d: r + d / n),
                 e=fr.Sum(lambda x, mean: x - mean),
                 close=fr.Reference(lambda n, mean, e: mean + e / n),
                 q=fr.Sum(lambda x, close: (x - close) ** 2),
                 f=fr.Sum(lambda x, close: x - close),
                 finish=lambda n, q, f: (q - f * f / n) / n,
                 definition=lambda x: torch.var(x, unbiased=False)),
        PROVED,
    ),
    Unseen(moments("Unbiased", lambda n, q, e: (q - e * e / n) / (n - 1),
                   lambda x: torch.var(x)), PROVED),
    Unseen(fr.join(two_maxima("JoinedMaxima"), scaled_norm("JoinedNorm")), PROVED),
)  # fmt: skip


# ---- what does not -------------------------------------------------------------------------------

FALSE = (
    Unseen(log_mean_exp("ForgetsCount", lambda m, s, n: m + torch.log(s)), ("definition",)),
    Unseen(weighted_values("ForgetsWeight", lambda x, w, y, m: y * torch.exp(x - m)),
           ("definition",)),
    Unseen(
        weighted_values("OldForNew", lambda x, w, y, m: w * y * torch.exp(x - m),
                        lambda o, old, new: o * torch.exp(new.m - old.m)),
        ("faithfulness", "meaning", "definition"),
    ),
    Unseen(
        two_maxima("CrossedMaxima", lambda s, old, new: s * torch.exp(old.p - new.p)),
        ("faithfulness", "meaning", "definition"),
    ),
    Unseen(both_ends("WrongEnd", fr.Max(lambda x: x)), ("absence",)),
    Unseen(divergence("WrongSign", -1.0), ("definition",)),
    Unseen(scaled_norm("WrongNeutral", neutral=0.0), ("absence", "meaning")),
    Unseen(scaled_norm("WrongPower", power=2), ("definition",)),
    Unseen(regression("OneOutput", lambda sxx, sxy, n, ex, ey: {
        "slope": sxy - ex * ey / n, "spread": sxx * (1 + 1e-6)}), ("definition",)),
    Unseen(
        shifted_powers("NoSecond", 1, lambda n, q: q / n,
                       q=fr.Sum(lambda x, r: (x - r) ** 3)),
        ("faithfulness",),
    ),
    Unseen(lse("NoTilt", q=tilted(2), finish=lambda s, q: q / s), ("faithfulness",)),
    Unseen(brackets("OpenBracket", identity=(1.0, 0.0)), ("identity",)),
    Unseen(brackets("Unmatched", matched=torch.maximum), ("identity",)),
    Unseen(matrices("Transposed", lambda a, b: a.q * b.r + a.s * b.s), ("associativity",)),
    Unseen(ties("OneTie", torch.maximum), ("definition",)),
    Unseen(runs("NoRunAcross", lambda a, b: a.suf), ("definition",)),
    Unseen(counted_mean("EqualCounts", lambda a, b, n: 0.5), ("identity", "associativity")),
    Unseen(
        counted_mean("OtherSide", lambda a, b, n: torch.where(n > 0, a / n, 0.0)),
        ("identity", "associativity", "definition"),
    ),
    Unseen(
        single("ParallelZero", 0.0, lambda x: x, lambda a, b: 1 / (1 / a.p + 1 / b.p),
               domain={"x": "positive"}),
        ("identity",),
    ),
    Unseen(single("KeepsLeft", 0.0, lambda x: x, lambda a, b: a.p), ("identity",)),
    Unseen(single("KeepsRight", 0.0, lambda x: x, lambda a, b: b.p), ("identity",)),
    Unseen(
        single("LargestForSum", -INF, lambda x: x, lambda a, b: torch.maximum(a.p, b.p),
               definition=lambda x: torch.sum(x)),
        ("definition",),
    ),
    Unseen(
        single("AbsoluteSum", 0.0, lambda x: x, lambda a, b: torch.abs(a.p) + torch.abs(b.p),
               definition=lambda x: torch.sum(torch.abs(x))),
        ("identity", "definition"),
    ),
    Unseen(
        general("Backwards", {"k": 1.0, "v": 0.0}, lambda x: (0.9, 0.1 * x),
                lambda a, b: (a.k * b.k, a.v + a.v * b.k + b.v), lambda v: v),
        ("associativity",),
    ),
    Unseen(entropy_of_counts("CountEntropySign", 1.0), ("definition",)),
    Unseen(
        lse("Slightly", definition=lambda x: torch.logsumexp(x, 0) + 1e-6), ("definition",)
    ),
    Unseen(
        exact_lse("SlightlySlow", lambda s, old, new: s * torch.exp((old.m - new.m) * 0.999999)),
        ("faithfulness", "meaning", "definition"),
    ),
    Unseen(
        exact_lse("ShortMoves", lambda s, old, new: torch.where(
            new.m - old.m < 1, s * torch.exp(old.m - new.m), s * 0.36787944117144233)),
        ("faithfulness", "meaning", "definition"),
    ),
    Unseen(
        exact_lse("FarMoves", lambda s, old, new: torch.where(
            new.m - old.m < 9, s * torch.exp(old.m - new.m), 0.0)),
        ("faithfulness", "meaning"),
    ),
    Unseen(
        lse("FarMask", s=fr.Sum(lambda x, m: torch.where(x < 50, torch.exp(x - m), 0.0)),
            definition=lse_definition),
        ("definition",),
    ),
    Unseen(
        declared("ValueForIdentity", domain={"x": "nonnegative"},
                 k=fr.Max(lambda x: x, identity=0.0), s=fr.Sum(lambda x, k: torch.exp(x - k)),
                 finish=lambda k, s: k + torch.log(s), definition=lse_definition),
        ("absence", "meaning", "definition"),
    ),
    Unseen(
        declared("NoCountToRead", t=fr.Sum(lambda x: x), r=fr.Reference(lambda t: t),
                 s=fr.Sum(lambda x, r: torch.exp(x - r)),
                 finish=lambda r, s: r + torch.log(s), definition=lse_definition),
        ("absence", "meaning"),
    ),
    Unseen(
        declared("Span", lo=fr.Min(lambda x: x), hi=fr.Max(lambda x: x), n=one(),
                 s=fr.Sum(lambda x, lo, hi: (x - lo) / (hi - lo)), finish=lambda n, s: s / n),
        ("meaning",),
    ),
    Unseen(
        declared("SmallestProduct", m=fr.Min(lambda x, y: x * y),
                 s=fr.Sum(lambda x, y, m: torch.exp(x * y - m)), finish=log_sum_exp),
        ("absence",),
    ),
    Unseen(
        declared("SmallestCube", m=fr.Min(lambda x: x**3),
                 s=fr.Sum(lambda x, m: torch.exp(x**3 - m)), finish=log_sum_exp),
        ("absence",),
    ),
    Unseen(
        declared("Logistic", m=top(), s=fr.Sum(lambda x, m: 1 / (1 + torch.exp(m - x))),
                 finish=lambda s: s),
        ("faithfulness",),
    ),
    Unseen(moments("BiasedForUnbiased", lambda n, q, e: (q - e * e / n) / n,
                   lambda x: torch.var(x)), ("definition",)),
    Unseen(moments("ShiftedFinish", lambda n, t, q, e: {"mean": t / n + 1e-6, "var": q / n},
                   mean_var), ("definition",)),
    Unseen(fr.join(lse("JoinedForgets", finish=lambda m, s: torch.log(s),
                       definition=lse_definition), two_maxima("JoinedTwo")), ("definition",)),
    Unseen(
        declared("ZeroForReals", m=fr.Max(lambda x: x, identity=0.0), finish=lambda m: m),
        ("identity",),
    ),
    Unseen(
        declared("OneForReals", m=fr.Min(lambda x: x * x, identity=100.0), finish=lambda m: m),
        ("identity",),
    ),
    Unseen(
        general("LiftTwice", {"n": 0.0, "t": 0.0}, lambda x: (1.0, x + x),
                lambda a, b: (a.n + b.n, a.t + b.t), lambda n, t: t / n,
                definition=lambda x: torch.mean(x)),
        ("definition",),
    ),
)  # fmt: skip
