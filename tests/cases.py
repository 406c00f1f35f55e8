"""THE table: declarations on rows that are known to break them, each with its plain formula.

Every room runs it: eager and tiles in `pure`, printed kernels in `interpreter` and `gpu`. The rows
lie along the last dimension (for SoftmaxSum's `v`, the one before it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from fusedreduce.declare import Max, Reduction, Reference, Sum
from fusedreduce.reductions import (
    AllOf,
    AnyOf,
    Largest,
    LogSumExp,
    Mean,
    Moments,
    Product,
    Smallest,
    SoftmaxSum,
    Total,
    Welford,
)

Tensors = dict[str, Tensor]
INF = float("inf")
NAN = float("nan")
LENGTHS = (1, 2, 3, 17, 127, 255, 1000, 1023, 1024, 1025, 50257, 0)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LONG = 1300  # columns of the hard rows: more than a thousand, no multiple of anything


class Entropy(LogSumExp):
    """The shifted entropy: a term that is 0 times infinity where an element is absent."""

    t = Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: (t + old.s * (old.m - new.m)) * torch.exp(old.m - new.m),
    )
    definition = None

    def finish(m, s, t):
        return {"entropy": torch.log(s) - t / s, "lse": m + torch.log(s)}


class Spread(Reduction):
    """Variance of x under softmax(x): its bound reference t / s has no value before an element."""

    m = Max(lambda x: x)
    s = Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )
    t = Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: (t + old.s * (old.m - new.m)) * torch.exp(old.m - new.m),
    )
    mean = Reference(lambda m, s, t: m + t / s)
    e = Sum(
        lambda x, m, mean: (x - mean) * torch.exp(x - m),
        correct=lambda e, old, new: (e + old.s * (old.mean - new.mean)) * torch.exp(old.m - new.m),
    )
    e2 = Sum(
        lambda x, m, mean: (x - mean) * (x - mean) * torch.exp(x - m),
        correct=lambda e2, old, new: (
            (e2 + (old.mean - new.mean) * (2.0 * old.e + old.s * (old.mean - new.mean)))
            * torch.exp(old.m - new.m)
        ),
    )

    def finish(s, e, e2):
        return (e2 - e * e / s) / s


# ---- the plain formulas ------------------------------------------------------------------------


def weights(x: Tensor) -> Tensor:
    """softmax, and 0 for a row in which everything is absent."""
    return torch.where((x == -INF).all(-1, keepdim=True), 0.0, torch.softmax(x, -1))


def weighted_by_softmax(x: Tensor, v: Tensor) -> Tensors:
    out = torch.where((weights(x) == 0)[..., None], 0.0, weights(x)[..., None] * v)
    return {"out": out.sum(-2), "lse": torch.logsumexp(x, -1)}


def moments(x: Tensor) -> Tensors:
    mean = x.mean(-1, keepdim=True)
    return {"mean": mean[..., 0], "var": (x - mean).square().mean(-1)}


def merged_moments(x: Tensor) -> Tensors:
    """The mean of nothing is the identity's: 0."""
    return moments(x) | ({} if x.shape[-1] else {"mean": x.sum(-1)})


def entropy(x: Tensor) -> Tensors:
    p = torch.softmax(x, -1)
    log_p = torch.where(x == -INF, 0.0, torch.log_softmax(x, -1))
    return {"entropy": -(p * log_p).sum(-1), "lse": torch.logsumexp(x, -1)}


def spread(x: Tensor) -> Tensors:
    p = torch.softmax(x, -1)
    y = torch.where(x == -INF, 0.0, x - x.amax(-1, keepdim=True))
    mean = (p * y).sum(-1, keepdim=True)
    return {"": (p * (y - mean).square()).sum(-1)}


def extreme(pick: Callable[..., tuple[Tensor, Tensor]], x: Tensor) -> Tensors:
    value, index = pick(x, -1)
    return {"value": value, "index": index}


@dataclass(frozen=True)
class Meaning:
    """A declaration and its formula in plain PyTorch, over the operands by name."""

    R: type[Reduction]
    formula: Callable[..., Tensors]
    operands: tuple[str, ...] = ("x",)


LOG_SUM_EXP = Meaning(LogSumExp, lambda x: {"": torch.logsumexp(x, -1)})
SOFTMAX_SUM = Meaning(SoftmaxSum, weighted_by_softmax, ("x", "v"))
MOMENTS = Meaning(Moments, moments)
WELFORD = Meaning(Welford, merged_moments)
ENTROPY = Meaning(Entropy, entropy)
SPREAD = Meaning(Spread, spread)
LARGEST = Meaning(Largest, lambda x: extreme(torch.max, x))
SMALLEST = Meaning(Smallest, lambda x: extreme(torch.min, x))
TOTAL = Meaning(Total, lambda x: {"": x.sum(-1)})
MEAN = Meaning(Mean, lambda x: {"": x.double().mean(-1)})
PRODUCT = Meaning(Product, lambda x: {"": x.prod(-1)})
ANY_OF = Meaning(AnyOf, lambda x: {"": (x != 0).any(-1)})
ALL_OF = Meaning(AllOf, lambda x: {"": (x != 0).all(-1)})

CORE = (LOG_SUM_EXP, SOFTMAX_SUM, MOMENTS, WELFORD)
SHIFTED = (LOG_SUM_EXP, SOFTMAX_SUM, ENTROPY, SPREAD)
PLAIN = (LARGEST, SMALLEST, TOTAL, MEAN, PRODUCT, ANY_OF, ALL_OF)


# ---- the rows ----------------------------------------------------------------------------------


def normal(columns: int, rows: int = 3) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.randn(rows, columns, generator=g, dtype=torch.float64)


def with_values(places: Mapping[int, float]) -> Callable[[torch.Generator], Tensor]:
    """Random rows; the middle one has these values at these places."""

    def make(g: torch.Generator) -> Tensor:
        x = normal(LONG)(g)
        for place, value in places.items():
            x[1, place] = value
        return x

    return make


def scaled(offset: float, spread: float) -> Callable[[torch.Generator], Tensor]:
    return lambda g: normal(LONG)(g) * spread + offset


def absent_rows(g: torch.Generator) -> Tensor:
    x = normal(LONG)(g)
    x[1] = -INF
    return x


def first_thousand_absent(g: torch.Generator) -> Tensor:
    x = normal(LONG)(g)
    x[:, :1000] = -INF
    return x


def constant(value: float) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.full((3, LONG), value, dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """One declaration on one kind of rows in one dtype."""

    meaning: Meaning
    rows: str
    make: Callable[[torch.Generator], Tensor]
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        short = str(self.dtype).removeprefix("torch.")
        return f"{self.meaning.R.__name__}-{self.rows}-{short}"

    @property
    def R(self) -> type[Reduction]:
        return self.meaning.R

    def operands(self) -> Tensors:
        """The same ones at every call."""
        generator = torch.Generator().manual_seed(crc32(self.name.encode()))
        x = self.make(generator)
        v = torch.randn(*x.shape, 5, generator=generator, dtype=torch.float64)
        made = {"x": x, "v": v}
        return {n: made[n].to(self.dtype) for n in self.meaning.operands}

    def expected(self, dtype: torch.dtype) -> Tensors:
        """The formula, computed in `dtype` when the operands are floats."""
        given = {n: t.to(dtype) if t.is_floating_point() else t for n, t in self.operands().items()}
        return self.meaning.formula(**given)

    def check(self, results: Mapping[str, Tensor], k: float = 2.0) -> None:
        """Error at most k times that of the formula in the state's dtype, plus 16 units of it."""
        state = torch.float64 if self.dtype == torch.float64 else torch.float32
        wanted, plain = self.expected(torch.float64), self.expected(state)
        assert list(results) == list(self.R.record.outputs), self.name
        for output, right in wanted.items():
            check(results[output], right, plain[output], state, k, f"{self.name} {output}")


def check(
    got: Tensor, right: Tensor, plain: Tensor, state: torch.dtype, k: float, what: str
) -> None:
    """The accuracy rule on one tensor, and half a unit of its own dtype where that is narrower."""
    assert got.shape == right.shape, (what, got.shape, right.shape)
    if not got.is_floating_point():
        assert torch.equal(got.to(right.dtype), right), (what, got, right)
        return
    rounded = right.to(got.dtype)
    strange = ~torch.isfinite(rounded)
    alike = (got == rounded) | (torch.isnan(rounded) & ~torch.isfinite(got)) | torch.isnan(got)
    assert alike[strange].all(), (what, got, right)
    error, right = (got.double() - right.double()).abs()[~strange], right.double()[~strange]
    if not right.numel():
        return
    scale = max(1e-3, float(right.abs().max()))
    unit = torch.finfo(got.dtype).eps / 2 if got.dtype != state else 0.0
    unfused = (plain.double()[~strange] - right).abs().nan_to_num(INF)
    allowed = k * float(unfused.max()) + (16 * torch.finfo(state).eps + unit) * scale
    assert float(error.max()) <= allowed, (what, float(error.max()), allowed)


def _lengths() -> list[Case]:
    return [Case(m, str(n), normal(n)) for m in CORE for n in LENGTHS]


HARD: Mapping[str, Callable[[torch.Generator], Tensor]] = {
    "all_minus_inf": absent_rows,
    "first_thousand_minus_inf": first_thousand_absent,
    "one_minus_inf": with_values({700: -INF}),
    "plus_inf": with_values({700: INF}),
    "nan": with_values({700: NAN}),
    "both_inf": with_values({3: INF, 700: -INF}),
    "lowest": constant(float(torch.finfo(torch.float32).min)),
    "near_minus_1000": scaled(-1000.0, 3.0),
    "mean_1e6": scaled(1e6, 1e-2),
    "outlier_first": with_values({0: 1e4}),
}


def _table() -> tuple[Case, ...]:
    cases = _lengths()
    cases += [
        Case(m, name, make)
        for m in (*CORE, ENTROPY, SPREAD)
        for name, make in HARD.items()
        if (m, name) != (WELFORD, "mean_1e6")  # loses the digits there: what Moments is for
    ]
    cases += [Case(m, "dtype", normal(300), d) for m in (*CORE, *PLAIN) for d in FLOATS]
    cases += [
        Case(m, "integers", lambda g: torch.randint(-9, 9, (3, 300), generator=g), d)
        for m in (LARGEST, SMALLEST, TOTAL, MEAN, ANY_OF)
        for d in (torch.int8, torch.int64)
    ]
    cases += [
        Case(m, "booleans", lambda g: torch.rand(3, 300, generator=g) > 0.5, torch.bool)
        for m in (TOTAL, ANY_OF, ALL_OF)
    ]
    cases += [
        Case(m, name, HARD[name]) for m in (LARGEST, SMALLEST) for name in ("nan", "all_minus_inf")
    ]
    return tuple(cases)


CASES = _table()
