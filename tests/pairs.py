"""Pair reductions that every room runs: declarations, scores, masks, and how they become a `Pair`.

A score and a mask are written once, as functions of the tables and numbers that they use: `t.bias`
is a tensor for the meaning, and while the pair is built what records its reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce import pipeline, reductions, trace
from fusedreduce.declare.restrict import restricted
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.expr import const, names, var
from fusedreduce.pair import INDICES, Pair, Read, Result, Table, finished, is_vector, result_kind
from fusedreduce.program import typed
from fusedreduce.reductions import LogSumExp, Moments, SoftmaxEntropy, SoftmaxSum, Welford
from fusedreduce.run import eager
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.trace.value import Traced

Sizes = SimpleNamespace  # B H Hk Sq Sk D DV


def sizes(Sq=5, Sk=7, B=2, H=2, group=1, D=8, DV=8) -> Sizes:
    return Sizes(Sq=Sq, Sk=Sk, B=B, H=H, Hk=H // group, D=D, DV=DV)


# ---- declarations --------------------------------------------------------------------------------


class Count(fr.Reduction):
    """How many keys a query sees."""

    n = fr.Sum(lambda x: 1)

    def finish(n):
        return n


class Top(fr.Reduction):
    """The largest score and its key."""

    m = fr.Max(lambda x: x)
    at = fr.ArgMax(lambda x: x)

    def finish(m, at):
        return {"top": m, "at": at}


class Weighted(fr.Reduction):
    """Softmax attention with a temperature a row and a weight a key."""

    v = fr.Payload()
    domain = {"tau": "positive", "w": "positive"}
    empty = {"out": 0.0, "lse": float("-inf")}
    m = fr.Max(lambda x, tau: x / tau)
    s = fr.Sum(
        lambda x, tau, w, m: w * torch.exp(x / tau - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )
    o = fr.Sum(
        lambda x, tau, w, m, v: w * torch.exp(x / tau - m) * v,
        correct=lambda o, old, new: o * torch.exp(old.m - new.m),
    )

    def finish(m, s, o):
        return {"out": o / s, "lse": m + torch.log(s)}


class Gated(fr.Reduction):
    """Attention without a softmax: a gate a key, nothing to correct."""

    v = fr.Payload()
    o = fr.Sum(lambda x, v: torch.sigmoid(x) * v)

    def finish(o):
        return o


class Average(fr.Reduction):
    """The mean of the values of the keys that a query sees."""

    v = fr.Payload()
    empty = {"": 0.0}
    n = fr.Sum(lambda x: 1.0)
    o = fr.Sum(lambda v: v)

    def finish(n, o):
        return o / n


class Odds(fr.Reduction):
    """A product, and whether any and all scores are positive."""

    p = fr.Prod(lambda x: torch.sigmoid(x))
    some = fr.Any(lambda x: x > 0)
    every = fr.All(lambda x: x > 0)

    def finish(p, some, every):
        return {"p": p, "some": some, "every": every}


# ---- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """score, mask: of the tables and numbers; tables, operands: (sizes) -> float64 or else."""

    name: str
    R: Any
    outputs: tuple[str, ...]
    score: Callable[[Any], Any] | None = None
    mask: Callable[[Any], Any] | None = None
    tables: Mapping[str, Callable[[Sizes], Tensor]] = field(default_factory=dict)
    operands: Mapping[str, Callable[[Sizes], Tensor]] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> Tensor:
    return 0.5 + torch.rand(shape, dtype=torch.float64)


BOTH = ("out", "lse")
WEIGHTS = {"tau": lambda z: positive(z.B, z.H, z.Sq), "w": lambda z: positive(z.B, z.H, z.Sk)}

MASKS: dict[str, Callable[[Any], Any]] = {
    "causal": lambda t: lambda b, h, i, j: i >= j,
    "window": lambda t: lambda b, h, i, j: (i - j <= 2) & (j - i <= 1),
    "some rows": lambda t: lambda b, h, i, j: (i % 3 != 0) & (i >= 0 * j),
    "some keys": lambda t: lambda b, h, i, j: (j % 2 == 0) & (j <= i + 9),
    "by head": lambda t: lambda b, h, i, j: (j + h + b) % 3 > 0,
    "none": lambda t: lambda b, h, i, j: i < 0,
    "table": lambda t: lambda b, h, i, j: t.seen[i, j],
    "documents": lambda t: lambda b, h, i, j: t.of_q[b, i] == t.of_k[b, j],
}
MASK_TABLES = {
    "table": {"seen": lambda z: torch.rand(z.Sq, z.Sk) > 0.6},
    "documents": {
        "of_q": lambda z: torch.randint(3, (z.B, z.Sq)),
        "of_k": lambda z: torch.randint(3, (z.B, z.Sk)),
    },
}
SCORES: dict[str, tuple[Callable[[Any], Any], Mapping[str, Any]]] = {
    "softcap": (lambda t: lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0), {}),
    "alibi": (lambda t: lambda s, b, h, i, j: s + t.slopes[h] * (j - i),
              {"slopes": lambda z: random(z.H)}),
    "per head": (lambda t: lambda s, b, h, i, j: s * t.gain[h], {"gain": lambda z: random(z.H)}),
    "per row": (lambda t: lambda s, b, h, i, j: s * t.gain[b, i],
                {"gain": lambda z: random(z.B, z.Sq)}),
    "bias": (lambda t: lambda s, b, h, i, j: s + t.bias[i, j],
             {"bias": lambda z: random(z.Sq, z.Sk)}),
    "bias of heads": (lambda t: lambda s, b, h, i, j: s + t.bias[0, h, i, j],
                      {"bias": lambda z: random(1, z.H, z.Sq, z.Sk)}),
    "relative": (lambda t: lambda s, b, h, i, j: s + t.bias[h, i - j],
                 {"bias": lambda z: random(z.H, z.Sq + z.Sk)}),
    "hidden": (lambda t: lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")), {}),
}  # fmt: skip

DECLARED = [
    Case("softmax", SoftmaxSum, BOTH),
    Case("softmax out", SoftmaxSum, ("out",)),
    Case("softmax lse", SoftmaxSum, ("lse",)),
    Case("log-sum-exp", LogSumExp, ("",)),
    Case("entropy", SoftmaxEntropy, ("entropy", "lse")),
    Case("moments", Moments, ("mean", "var")),
    Case("welford", Welford, ("mean", "var")),
    Case("count", Count, ("",)),
    Case("top", Top, ("top", "at")),
    Case("weighted", Weighted, BOTH, operands=WEIGHTS),
    Case("gated", Gated, ("",)),
    Case("average", Average, ("",)),
    Case("odds", Odds, ("p", "some", "every")),
]
SHIPPED = [
    Case(
        name, R, R.record.outputs, SCORES["softcap"][0],
        operands=dict.fromkeys(R.record.operands[1:], lambda z: positive(z.B, z.H, z.Sk)),
    )
    for name, R in vars(reductions).items()
    if isinstance(R, type) and issubclass(R, fr.Reduction)
]  # fmt: skip
SCALED = {"scale": 0.3}


def scaled(t: Any) -> Any:
    return lambda s, b, h, i, j: s * t.scale


def masked(case: Case, mask: str) -> Case:
    return Case(
        f"{case.name}, {mask}", case.R, case.outputs, scaled, MASKS[mask],
        MASK_TABLES.get(mask, {}), case.operands, SCALED,
    )  # fmt: skip


def scored(case: Case, score: str, mask: str | None = None) -> Case:
    fn, tables = SCORES[score]
    more = MASK_TABLES.get(mask or "", {})
    return Case(
        f"{case.name}, {score}, {mask}", case.R, case.outputs, fn,
        None if mask is None else MASKS[mask], {**tables, **more}, case.operands,
    )  # fmt: skip


# ---- arguments -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arguments:
    """Tensors of one call; floats in one dtype, tables and operands by name."""

    q: Tensor
    k: Tensor
    v: Tensor
    tables: Mapping[str, Tensor]
    operands: Mapping[str, Tensor]
    q_offset: int = 0
    k_offset: int = 0

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Arguments:
        def many(ts: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {n: fn(t) if t.is_floating_point() else t for n, t in ts.items()}

        return Arguments(
            fn(self.q), fn(self.k), fn(self.v), many(self.tables), many(self.operands),
            self.q_offset, self.k_offset,
        )  # fmt: skip

    def floats(self, payload: bool) -> dict[str, Tensor]:
        """What can get a gradient, by name."""
        found = {"q": self.q, "k": self.k} | ({"v": self.v} if payload else {})
        tables = {**self.tables, **self.operands}
        return found | {n: t for n, t in tables.items() if t.is_floating_point()}


def arguments(case: Case, z: Sizes, dtype: torch.dtype, **offsets: int) -> Arguments:
    def of(make: Callable[[Sizes], Tensor]) -> Tensor:
        t = make(z)
        return t.to(dtype) if t.is_floating_point() else t

    return Arguments(
        random(z.B, z.H, z.Sq, z.D).to(dtype),
        random(z.B, z.Hk, z.Sk, z.D).to(dtype),
        random(z.B, z.Hk, z.Sk, z.DV).to(dtype),
        {n: of(f) for n, f in case.tables.items()},
        {n: of(f) for n, f in case.operands.items()},
        **offsets,
    )


# ---- from a case to a pair -----------------------------------------------------------------------


class Reader:
    """A table while a function is traced: an element of it is a read."""

    def __init__(self, name: str, table: Tensor, reads: list[Read]) -> None:
        self.name, self.table, self.reads = name, table, reads

    def __getitem__(self, at: Any) -> Traced:
        at = at if isinstance(at, tuple) else (at,)
        indices = tuple(a.expr if isinstance(a, Traced) else const(a) for a in at)
        node = ir_tables.element(self.name, indices)
        if node not in [r.node for r in self.reads]:
            _, at = ir_tables.split(node)  # negative ones wrapped
            whole = tuple(at.get(d, const(0)) for d in range(self.table.ndim))
            self.reads.append(Read(node, self.name, whole))
        return Traced(node, kind(self.table))


def kind(t: Tensor) -> Any:
    return "float" if t.is_floating_point() else "bool" if t.dtype == torch.bool else "int"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pair_of(case: Case, a: Arguments) -> Pair:
    """The normal form, as the public functions build it."""
    record, _ = pipeline.certified(case.R.record, trust=True)
    reads: list[Read] = []
    every = {**a.tables, **a.operands}
    t = SimpleNamespace(**{n: Reader(n, x, reads) for n, x in every.items()})
    for n in case.numbers:
        setattr(t, n, trace.scalar(n, "float"))
    at = [Traced(var(n), "int") for n in INDICES]
    seen = list(at)
    if a.q_offset or a.k_offset:
        seen[2:] = [
            at[2] + trace.scalar("q_offset", "int"),
            at[3] + trace.scalar("k_offset", "int"),
        ]
    x: Any = trace.scalar("score", "float")
    x = x if case.score is None else case.score(t)(x, *seen)
    mask = None if case.mask is None else case.mask(t)(*seen)
    row, key = (at[0], at[1], at[2]), (at[0], at[1], at[3])
    operands = {n: getattr(t, n)[row if n == "tau" else key].expr for n in case.operands}
    if record.operands:
        operands = {record.operands[0]: trace.to_expr(x, "the score")[0]} | operands
    kinds = dict.fromkeys(("b", "h", "i"), "int")
    record = typed(record, kinds | dict.fromkeys((*record.operands, *record.payloads), "float"))
    record = restricted(record, frozenset(case.outputs))
    state = "float64" if a.q.dtype == torch.float64 else "float32"
    used = names(*operands.values(), *([] if mask is None else [mask.expr]))
    return Pair(
        name="".join(c if c.isalnum() else "_" for c in case.name),
        record=record,
        operands=tuple(operands.items()),
        mask=None if mask is None else mask.expr,
        tables=tuple(Table(n, x.ndim, dtype_name(x.dtype)) for n, x in every.items() if n in used),
        reads=tuple(reads),
        numbers=tuple(n for n in case.numbers if n in used),
        results=tuple(_result(record, o, a.q.dtype, state) for o in case.outputs),
        dtype=dtype_name(a.q.dtype),
        state=state,
        D=a.q.shape[3],
        DV=a.v.shape[3] if record.payloads else 0,
    )


def _result(record: Any, output: str, dtype: torch.dtype, state: str) -> Result:
    expr = finished(record, output)
    read = names(dict(record.finish)[output])
    vector = any(is_vector(record, record.by_name[n]) for n in read if n in record.by_name)
    known = {"float": state, "int": "int64", "bool": "bool"}[result_kind(record, expr)]
    return Result(output or "value", expr, dtype_name(dtype) if vector else known, vector)


def inputs_of(case: Case, a: Arguments, pair: Pair) -> PairInputs:
    every = {**a.tables, **a.operands}
    used = {t.name for t in pair.tables}
    return PairInputs(
        a.q, a.k, a.v if pair.DV else None, {n: t for n, t in every.items() if n in used},
        {n: case.numbers[n] for n in pair.numbers}, a.q_offset, a.k_offset,
    )  # fmt: skip


# ---- runs ----------------------------------------------------------------------------------------

Tensors = dict[str, Tensor]


def meaning(case: Case, a: Arguments) -> Tensors:
    t = SimpleNamespace(**a.tables, **case.numbers)
    found = eager.pair(
        case.R, a.q, a.k, a.v if case.R.record.payloads else None,
        None if case.score is None else case.score(t),
        None if case.mask is None else case.mask(t),
        case.outputs, a.operands, a.q_offset, a.k_offset,
    )  # fmt: skip
    return {n or "value": x for n, x in found.items()}


def meant_gradients(case: Case, a: Arguments, ups: Tensors) -> Tensors:
    """By autograd; a gradient that torch does not know is 0."""
    given = a.mapped(lambda t: t.detach().requires_grad_())
    floats = given.floats(bool(case.R.record.payloads))
    found = meaning(case, given)
    pairs = [(found[n], u.to(found[n])) for n, u in ups.items() if found[n].requires_grad]
    if not pairs:
        return {n: torch.zeros_like(t) for n, t in floats.items()}
    outs, grads = zip(*pairs, strict=True)
    made = torch.autograd.grad(outs, [*floats.values()], grads, allow_unused=True)
    return {
        n: torch.zeros_like(t) if g is None else g
        for (n, t), g in zip(floats.items(), made, strict=True)
    }


def ups_of(outputs: Tensors) -> Tensors:
    """A random gradient of every float result, in float64."""
    return {n: random(*t.shape) for n, t in outputs.items() if t.is_floating_point()}
