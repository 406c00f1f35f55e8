"""THE table of the laws room: declarations that hold, broken ones and the laws that refuse them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import fusedreduce as fr

INF = float("inf")


def declared(name: str, **body: Any) -> type[fr.Reduction]:
    """A declaration from its body, as the class statement would make it."""
    return type(name, (fr.Reduction,), body)


# ---- parts ---------------------------------------------------------------------------------------


def top():
    return fr.Max(lambda x: x)


def exps(correct=lambda s, old, new: s * torch.exp(old.m - new.m)):
    return fr.Sum(lambda x, m: torch.exp(x - m), correct=correct)


def log_sum_exp(m, s):
    return m + torch.log(s)


def lse_definition(x):
    return torch.logsumexp(x, 0)


def entropy(m, s, e):
    return {"entropy": torch.log(s) - e / s, "lse": m + torch.log(s), "max": m}


def entropy_definition(x):
    p = torch.softmax(x, 0)
    return {"entropy": -torch.sum(p * torch.log_softmax(x, 0)), "max": torch.amax(x)}


def shifted(correct=None):
    return fr.Sum(lambda x, m: (x - m) * torch.exp(x - m), correct=correct)


def moments_definition(x):
    mu = torch.mean(x)
    return {"mean": mu, "var": torch.mean((x - mu) ** 2)}


def mean_and_var(n, mean, m2):
    return {"mean": mean, "var": m2 / n}


def chan(a, b):
    n = a.n + b.n
    w = torch.where(n > 0, b.n / n, 0.0)
    d = b.mean - a.mean
    return n, a.mean + d * w, a.m2 + b.m2 + d * d * a.n * w


def welford(name, merge, **more):
    n, mean, m2 = fr.state(0.0, 0.0, 0.0)
    body = dict(
        n=n, mean=mean, m2=m2, lift=lambda x: (1.0, x, 0.0), merge=merge, finish=mean_and_var
    )
    return declared(name, **{**body, "definition": moments_definition, **more})


def pebay(a, b):
    n = a.n + b.n
    d = b.mean - a.mean
    q = torch.where(n > 0, d / n, 0.0)
    m2 = a.m2 + b.m2 + d * q * a.n * b.n
    m3 = a.m3 + b.m3 + d * q * q * a.n * b.n * (a.n - b.n) + 3 * q * (a.n * b.m2 - b.n * a.m2)
    m4 = (
        a.m4
        + b.m4
        + d * q * q * q * a.n * b.n * (a.n * a.n - a.n * b.n + b.n * b.n)
        + 6 * q * q * (a.n * a.n * b.m2 + b.n * b.n * a.m2)
        + 4 * q * (a.n * b.m3 - b.n * a.m3)
    )
    return n, a.mean + q * b.n, m2, m3, m4


def pebay_wrong(a, b):
    n, mean, m2, m3, m4 = pebay(a, b)
    q = torch.where(n > 0, (b.mean - a.mean) / n, 0.0)
    return n, mean, m2, m3, m4 - 8 * q * (a.n * b.m3 - b.n * a.m3)


def central(x, p):
    return torch.sum((x - torch.mean(x)) ** p)


def fourth_moments(name, merge):
    n, mean, m2, m3, m4 = fr.state(0.0, 0.0, 0.0, 0.0, 0.0)
    return declared(
        name,
        n=n,
        mean=mean,
        m2=m2,
        m3=m3,
        m4=m4,
        lift=lambda x: (1.0, x, 0.0, 0.0, 0.0),
        merge=merge,
        finish=lambda m2, m3, m4: {"m2": m2, "m3": m3, "m4": m4},
        definition=lambda x: {"m2": central(x, 2), "m3": central(x, 3), "m4": central(x, 4)},
    )


def norm(name, merge):
    k, q = fr.state(0.0, 0.0)
    return declared(
        name,
        k=k,
        q=q,
        lift=lambda x: (torch.abs(x), torch.where(torch.abs(x) > 0, 1.0, 0.0)),
        merge=merge,
        finish=lambda k, q: k * torch.sqrt(q),
        definition=lambda x: torch.sqrt(torch.sum(x * x)),
    )


def scaled(a, b):
    k = torch.maximum(a.k, b.k)
    safe = torch.where(k > 0, k, 1.0)
    ra, rb = a.k / safe, b.k / safe
    return k, a.q * ra * ra + b.q * rb * rb


def scaled_wrong(a, b):
    k = torch.maximum(a.k, b.k)
    safe = torch.where(k > 0, k, 1.0)
    return k, a.q * (a.k / safe) + b.q * (b.k / safe)


def three_norm():
    def merge(a, b):
        k = torch.maximum(a.k, b.k)
        safe = torch.where(k > 0, k, 1.0)
        return k, a.q * (a.k / safe) ** 3 + b.q * (b.k / safe) ** 3

    k, q = fr.state(0.0, 0.0)
    return declared(
        "ThreeNorm",
        k=k,
        q=q,
        lift=lambda x: (x, 1.0),
        merge=merge,
        domain={"x": "positive"},
        finish=lambda k, q: k * q ** (1 / 3),
        definition=lambda x: torch.sum(x**3) ** (1 / 3),
    )


def arg_max(name, left, **more):
    def merge(a, b):
        first = left(a, b)
        return torch.where(first, a.v, b.v), torch.where(first, a.at, b.at)

    v, at = fr.state(-INF, INF)
    return declared(
        name,
        v=v,
        at=at,
        lift=lambda x, k: (x, k),
        merge=merge,
        domain={"k": "index"},
        finish=lambda v, at: {"value": v, "at": at},
        **more,
    )


def by_value_and_place(a, b):
    return (a.v > b.v) | ((a.v == b.v) & (a.at < b.at))


def first_and_second(x):
    """Of one, two, three or more elements, by an insertion."""
    first, second = x[0], x[0] - INF
    for i in range(1, len(x)):
        first, second = (
            torch.maximum(first, x[i]),
            torch.maximum(second, torch.minimum(first, x[i])),
        )
    return {"first": first, "second": second}


def second_of_both(a, b):
    return torch.maximum(torch.minimum(a.v1, b.v1), torch.maximum(a.v2, b.v2))


def top_two(name, second, **more):
    def merge(a, b):
        return torch.maximum(a.v1, b.v1), second(a, b)

    v1, v2 = fr.state(-INF, -INF)
    return declared(
        name,
        v1=v1,
        v2=v2,
        lift=lambda x: (x, -INF),
        merge=merge,
        finish=lambda v1, v2: {"first": v1, "second": v2},
        **more,
    )


def best_slice(x):
    best = None
    for i in range(len(x)):
        for j in range(i + 1, len(x) + 1):
            total = torch.sum(x[i:j])
            best = total if best is None else torch.maximum(best, total)
    return {"best": best}


def kadane(name, crossing=True, identity=-INF):
    def merge(a, b):
        best = torch.maximum(a.best, b.best)
        if crossing:
            best = torch.maximum(best, a.suf + b.pre)
        return (
            a.total + b.total,
            torch.maximum(a.pre, a.total + b.pre),
            torch.maximum(b.suf, b.total + a.suf),
            best,
        )

    total, pre, suf, best = fr.state(0.0, identity, identity, identity)
    return declared(
        name,
        total=total,
        pre=pre,
        suf=suf,
        best=best,
        lift=lambda x: (x, x, x, x),
        merge=merge,
        finish=lambda best: {"best": best},
        definition=best_slice,
    )


def one_state(name, identity, merge, **more):
    body = dict(p=fr.state(identity), lift=lambda x: x, merge=merge, finish=lambda p: p)
    return declared(name, **{**body, **more})


def quaternion(name, sign):
    def merge(a, b):
        return (
            a.w * b.w - a.x1 * b.x1 - a.y1 * b.y1 - a.z1 * b.z1,
            a.w * b.x1 + a.x1 * b.w + a.y1 * b.z1 - a.z1 * b.y1,
            a.w * b.y1 - a.x1 * b.z1 + a.y1 * b.w + a.z1 * b.x1,
            a.w * b.z1 + sign * (a.x1 * b.y1 - a.y1 * b.x1) + a.z1 * b.w,
        )

    w, x1, y1, z1 = fr.state(1.0, 0.0, 0.0, 0.0)
    return declared(
        name,
        w=w,
        x1=x1,
        y1=y1,
        z1=z1,
        lift=lambda p, q, r, s: (p, q, r, s),
        merge=merge,
        finish=lambda w: w,
    )


def rotation(name, sign):
    def turn_sine(p, old, new):
        step = old.r - new.r
        return p * torch.cos(step) + sign * old.q * torch.sin(step)

    def turn_cosine(q, old, new):
        step = old.r - new.r
        return q * torch.cos(step) - sign * old.p * torch.sin(step)

    return declared(
        name,
        r=fr.First(lambda x: x),
        p=fr.Sum(lambda x, r: torch.sin(x - r), correct=turn_sine),
        q=fr.Sum(lambda x, r: torch.cos(x - r), correct=turn_cosine),
        finish=lambda p, q: torch.sqrt(p * p + q * q),
    )


def lse(name, **changes):
    return declared(name, **{"m": top(), "s": exps(), "finish": log_sum_exp, **changes})


# ---- declarations that hold ----------------------------------------------------------------------


class LogSumExp(fr.Reduction):
    m = top()
    s = exps()
    finish = log_sum_exp
    definition = lse_definition


class SoftmaxSum(LogSumExp):
    v = fr.Payload()
    empty = {"out": 0.0, "lse": -INF}
    o = fr.Sum(
        lambda x, m, v: torch.exp(x - m) * v,
        correct=lambda o, old, new: o * torch.exp(old.m - new.m),
    )

    def finish(m, s, o):
        return {"out": o / s, "lse": m + torch.log(s)}

    def definition(x, v):
        return {"out": torch.sum(torch.softmax(x, 0) * v), "lse": torch.logsumexp(x, 0)}


class Moments(fr.Reduction):
    n = fr.Sum(lambda x: 1.0)
    r = fr.First(lambda x: x)
    d1 = fr.Sum(lambda x, r: x - r)
    mean = fr.Reference(lambda n, r, d1: r + d1 / n)
    e1 = fr.Sum(lambda x, mean: x - mean)
    e2 = fr.Sum(lambda x, mean: (x - mean) ** 2)
    definition = moments_definition

    def finish(n, mean, e1, e2):
        return {"mean": mean + e1 / n, "var": (e2 - e1 * e1 / n) / n}


class ShortWelford(fr.Reduction):
    """Its correction drops a term that is 0 at the mean: unfaithful elsewhere, right there."""

    n = fr.Sum(lambda x: 1.0)
    total = fr.Sum(lambda x: x)
    mean = fr.Reference(lambda n, total: total / n)
    m2 = fr.Sum(
        lambda x, mean: (x - mean) ** 2,
        correct=lambda m2, old, new: m2 + old.n * (old.mean - new.mean) ** 2,
    )
    finish = mean_and_var
    definition = moments_definition


class LongWelford(ShortWelford):
    m2 = fr.Sum(lambda x, mean: (x - mean) ** 2)


class Covariance(fr.Reduction):
    n, mx, my, c = fr.state(0.0, 0.0, 0.0, 0.0)

    def lift(x, y):
        return 1.0, x, y, 0.0

    def merge(a, b):
        n = a.n + b.n
        w = torch.where(n > 0, b.n / n, 0.0)
        dx, dy = b.mx - a.mx, b.my - a.my
        return n, a.mx + dx * w, a.my + dy * w, a.c + b.c + dx * dy * a.n * w

    def finish(n, c):
        return c / n

    def definition(x, y):
        return torch.mean((x - torch.mean(x)) * (y - torch.mean(y)))


class WeightedWelford(fr.Reduction):
    n, mean, m2 = fr.state(0.0, 0.0, 0.0)
    domain = {"w": "positive"}
    merge = chan
    finish = mean_and_var

    def lift(x, w):
        return w, x, 0.0 * x

    def definition(x, w):
        mu = torch.sum(w * x) / torch.sum(w)
        return {"mean": mu, "var": torch.sum(w * (x - mu) ** 2) / torch.sum(w)}


class SignedLogSumExp(fr.Reduction):
    m, s = fr.state(-INF, 0.0)

    def lift(x, g):
        return x, g

    def merge(a, b):
        m = torch.maximum(a.m, b.m)
        return m, a.s * torch.exp(a.m - m) + b.s * torch.exp(b.m - m)

    def finish(m, s):
        return torch.exp(m) * s

    def definition(x, g):
        return torch.sum(g * torch.exp(x))


class SoftMin(fr.Reduction):
    m = fr.Min(lambda x: x)
    s = fr.Sum(lambda x, m: torch.exp(m - x))

    def finish(m, s):
        return m - torch.log(s)

    def definition(x):
        return -torch.logsumexp(-x, 0)


class Joined(fr.Reduction):
    """Smallest, largest, mean and variance."""

    lo = fr.Min(lambda x: x)
    hi = fr.Max(lambda x: x)
    n = fr.Sum(lambda x: 1.0)
    total = fr.Sum(lambda x: x)
    mean = fr.Reference(lambda n, total: total / n)
    m2 = fr.Sum(lambda x, mean: (x - mean) ** 2)

    def finish(lo, hi, n, mean, m2):
        return {"lo": lo, "hi": hi, "mean": mean, "var": m2 / n}

    def definition(x):
        return {"lo": torch.amin(x), "hi": torch.amax(x), **moments_definition(x)}


class ScaledNorm(fr.Reduction):
    """The 2-norm in the corrected form, relative to the largest size."""

    k = fr.Max(lambda x: torch.abs(x), identity=0.0, neutral=1.0)
    q = fr.Sum(lambda x, k: (x / k) ** 2)

    def finish(k, q):
        return k * torch.sqrt(q)


class Hyperbolic(fr.Reduction):
    r = fr.First(lambda x: x)
    p = fr.Sum(lambda x, r: torch.cosh(x - r))
    q = fr.Sum(lambda x, r: torch.sinh(x - r))

    def finish(p, q):
        return p * p - q * q


class LogRatio(fr.Reduction):
    domain = {"x": "positive"}
    r = fr.Max(lambda x: x, identity=0.0, neutral=1.0)
    n = fr.Sum(lambda x: 1.0)
    g = fr.Sum(lambda x, r: torch.log(x / r))

    def finish(r, n, g):
        return torch.log(r) + g / n

    def definition(x):
        return torch.mean(torch.log(x))


class CompensatedSum(fr.Reduction):
    s, c = fr.state(0.0, 0.0)

    def lift(x):
        return x, 0.0

    def merge(a, b):
        s = a.s + b.s
        v = s - a.s
        return s, a.c + b.c + ((a.s - (s - v)) + (b.s - v))

    def finish(s, c):
        return s + c

    def definition(x):
        return torch.sum(x)


class AnyAndAll(fr.Reduction):
    some, every = fr.state(False, True)

    def lift(x):
        return x > 0, x > 1

    def merge(a, b):
        return a.some | b.some, a.every & b.every

    def finish(some, every):
        return {"some": some, "every": every}


class GeometricMean(fr.Reduction):
    n, l = fr.state(0.0, 0.0)
    domain = {"x": "positive"}

    def lift(x):
        return 1.0, torch.log(x)

    def merge(a, b):
        return a.n + b.n, a.l + b.l

    def finish(n, l):
        return torch.exp(l / n)

    def definition(x):
        return torch.exp(torch.mean(torch.log(x)))


class HarmonicMean(fr.Reduction):
    n, inverse = fr.state(0.0, 0.0)
    domain = {"x": "positive"}

    def lift(x):
        return 1.0, 1 / x

    def merge(a, b):
        return a.n + b.n, a.inverse + b.inverse

    def finish(n, inverse):
        return n / inverse

    def definition(x):
        return x.shape[0] / torch.sum(1 / x)


class Affine(fr.Reduction):
    slope, shift = fr.state(1.0, 0.0)

    def lift(x, y):
        return x, y

    def merge(a, b):
        return b.slope * a.slope, b.slope * a.shift + b.shift

    def finish(slope, shift):
        return {"slope": slope, "shift": shift}


class ComplexProduct(fr.Reduction):
    re, im = fr.state(1.0, 0.0)

    def lift(x, y):
        return x, y

    def merge(a, b):
        return a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re

    def finish(re, im):
        return {"re": re, "im": im}


class LogAddExp(fr.Reduction):
    l = fr.state(-INF)

    def lift(x):
        return x

    def merge(a, b):
        return torch.logaddexp(a.l, b.l)

    def finish(l):
        return l

    definition = lse_definition


@dataclass(frozen=True)
class Case:
    """A declaration that holds. `open` names laws that the engine only checks."""

    declaration: type[fr.Reduction]
    commutative: bool | None = True
    open: tuple[str, ...] = ()


class SoftmaxEntropy(fr.Reduction):
    m = top()
    s = exps()
    e = shifted()
    finish = entropy
    definition = entropy_definition


class SoftmaxVariance(fr.Reduction):
    m = top()
    s = exps()
    e = shifted()
    q = fr.Sum(lambda x, m: (x - m) ** 2 * torch.exp(x - m))

    def finish(s, e, q):
        return q / s - (e / s) ** 2

    def definition(x):
        p = torch.softmax(x, 0)
        mu = torch.sum(p * x)
        return torch.sum(p * (x - mu) ** 2)


class WeightedLogSumExp(fr.Reduction):
    m = top()
    s = fr.Sum(lambda x, m, w: w * torch.exp(x - m))
    finish = log_sum_exp
    domain = {"w": "positive"}

    def definition(x, w):
        return torch.log(torch.sum(w * torch.exp(x)))


HOLD = (
    Case(LogSumExp),
    Case(SoftmaxSum),
    Case(Moments),
    Case(welford("Welford", chan)),
    Case(WeightedLogSumExp),
    Case(SoftmaxEntropy),
    Case(SoftmaxVariance),
    Case(ShortWelford),
    Case(LongWelford),
    Case(fourth_moments("Pebay", pebay)),
    Case(Covariance),
    Case(WeightedWelford),
    Case(norm("TwoNorm", scaled)),
    Case(three_norm()),
    Case(SoftMin),
    Case(arg_max("ArgMaxByPlace", by_value_and_place)),
    Case(top_two("TopTwo", second_of_both)),
    Case(Joined),
    Case(Affine, commutative=False),
    Case(kadane("Kadane"), commutative=False, open=("definition",)),
    Case(SignedLogSumExp),
    Case(rotation("Rotation", 1.0)),
    Case(Hyperbolic),
    Case(LogRatio),
    Case(CompensatedSum),
    Case(LogAddExp),
    Case(AnyAndAll),
    Case(GeometricMean),
    Case(HarmonicMean),
    Case(ComplexProduct),
    Case(quaternion("Quaternion", 1.0), commutative=False),
    Case(ScaledNorm),
    Case(fr.join(LogSumExp, Moments)),
    Case(fr.join(SoftmaxEntropy, SoftmaxSum, Joined)),
)


# ---- broken declarations -------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """A declaration that must be refused, and laws that must be among those refuted."""

    declaration: type[fr.Reduction]
    laws: tuple[str, ...]


def wrong_weight(a, b):
    n, mean, _ = chan(a, b)
    w = torch.where(n > 0, b.n / n, 0.0)
    d = b.mean - a.mean
    return n, mean, a.m2 + b.m2 + d * d * b.n * w


def no_cross_term(a, b):
    n, mean, _ = chan(a, b)
    return n, mean, a.m2 + b.m2


def mean_of_means(a, b):
    n, _, m2 = chan(a, b)
    return n, (a.mean + b.mean) / 2, m2


def unguarded(a, b):
    n = a.n + b.n
    d = b.mean - a.mean
    return n, a.mean + d * b.n / n, a.m2 + b.m2 + d * d * a.n * b.n / n


def with_entropy(name, correct):
    return declared(name, m=top(), s=exps(), e=shifted(correct), finish=entropy)


def corrected_by(name, correct):
    return lse(name, s=exps(correct))


def wrong_shift(e, old, new):
    return (e - old.s * (old.m - new.m)) * torch.exp(old.m - new.m)


UNFAITHFUL = ("faithfulness", "meaning")
BROKEN = (
    Broken(corrected_by("Inverted", lambda s, old, new: s * torch.exp(new.m - old.m)), UNFAITHFUL),
    Broken(corrected_by("Unused", lambda s, old, new: s + 0 * old.m * new.m), UNFAITHFUL),
    Broken(
        corrected_by("Halved", lambda s, old, new: s * torch.exp((old.m - new.m) / 2)), UNFAITHFUL
    ),
    Broken(
        corrected_by("Tiny", lambda s, old, new: s * torch.exp((old.m - new.m) * (1 + 1e-9))),
        UNFAITHFUL,
    ),
    Broken(
        corrected_by("Added", lambda s, old, new: s + (old.m - new.m)),
        ("faithfulness", "additivity", "meaning"),
    ),
    Broken(lse("MinReference", m=fr.Min(lambda x: x)), ("absence",)),
    Broken(
        lse("Forgets", finish=lambda m, s: torch.log(s), definition=lse_definition),
        ("definition",),
    ),
    Broken(with_entropy("NoShift", lambda e, old, new: e * torch.exp(old.m - new.m)), UNFAITHFUL),
    Broken(with_entropy("ShiftSign", wrong_shift), UNFAITHFUL),
    Broken(welford("WrongWeight", wrong_weight), ("associativity", "definition")),
    Broken(welford("NoCrossTerm", no_cross_term), ("definition",)),
    Broken(welford("MeanOfMeans", mean_of_means), ("identity", "associativity")),
    Broken(welford("Unguarded", unguarded), ("identity",)),
    Broken(fourth_moments("PebaySign", pebay_wrong), ("associativity", "definition")),
    Broken(norm("NotSquared", scaled_wrong), ("definition",)),
    Broken(kadane("NoCrossing", crossing=False), ("definition",)),
    Broken(kadane("KadaneZero", identity=0.0), ("identity",)),
    Broken(
        top_two("DropsSecond", lambda a, b: torch.maximum(a.v2, b.v2), definition=first_and_second),
        ("definition",),
    ),
    Broken(
        one_state("MeanOfPairs", 0.0, lambda a, b: (a.p + b.p) / 2), ("identity", "associativity")
    ),
    Broken(one_state("Subtraction", 0.0, lambda a, b: a.p - b.p), ("identity", "associativity")),
    Broken(quaternion("QuaternionSign", -1.0), ("associativity",)),
    Broken(one_state("ProductZero", 0.0, lambda a, b: a.p * b.p), ("identity",)),
    Broken(one_state("MaxZero", 0.0, lambda a, b: torch.maximum(a.p, b.p)), ("identity",)),
    Broken(
        declared("MaxFieldZero", m=fr.Max(lambda x: x, identity=0.0), finish=lambda m: m),
        ("identity",),
    ),
    Broken(rotation("RotationSign", -1.0), UNFAITHFUL),
    Broken(
        declared("NoCompanion", m=top(), e=fr.Sum(lambda x, m: (x - m) ** 2), finish=lambda e: e),
        ("faithfulness",),
    ),
    Broken(
        declared(
            "NoForm", m=top(), e=fr.Sum(lambda x, m: torch.sigmoid(x - m)), finish=lambda e: e
        ),
        ("faithfulness",),
    ),
)
