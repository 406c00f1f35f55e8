"""Legal declarations out of all proportion: always a certificate, and in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusedreduce as fr
from fusedreduce.laws import prove
from tests.laws.zoo import declared, lse, shifted

BOUND_S = 15.0
SLACK = 2.0  # other lanes run beside this one


def repeated(step: Callable[[Any, Any, int], Any], times: int) -> Callable[[Any], Any]:
    def term(x):
        v = x
        for i in range(times):
            v = step(v, x, i)
        return v

    return term


def total(name: str, term: Callable[[Any], Any]):
    return declared(
        name,
        s=fr.Sum(lambda x: term(x)),
        finish=lambda s: s,
        definition=lambda x: torch.sum(term(x)),
    )


def many_references():
    body: dict[str, Any] = {}
    for i in range(1, 11):
        largest, scale = f"m{i}", float(i)
        body[largest] = scaled_max(scale)
        body[f"s{i}"] = scaled_sum(largest, scale, 0)
        body[f"t{i}"] = scaled_sum(largest, scale, 1)
    return declared("ManyReferences", **body, finish=lambda s1, t1: t1 / s1)


def scaled_max(c: float):
    def term(x):
        return x * c

    return fr.Max(term)


def scaled_sum(largest: str, c: float, power: int):
    def term(x, m):
        return (x * c - m) ** power * torch.exp(x * c - m) if power else torch.exp(x * c - m)

    return fr.Sum(named(term, largest))


def named(term: Callable[[Any, Any], Any], reference: str) -> Callable[..., Any]:
    """The term with its reference called so."""
    scope: dict[str, Any] = {"term": term}
    exec(f"def renamed(x, {reference}): return term(x, {reference})", scope)
    return scope["renamed"]  # type: ignore[no-any-return]


def many_maxima():
    names = [f"m{i}" for i in range(12)]
    body = dict(zip(names, fr.state(*[float("-inf")] * 12), strict=True))

    def merge(a, b):
        va, vb = [getattr(a, n) for n in names], [getattr(b, n) for n in names]
        pairs = range(12)
        return tuple(
            torch.maximum(torch.maximum(va[i], vb[i]), torch.minimum(va[i - 1], vb[(i + 5) % 12]))
            for i in pairs
        )

    return declared(
        "ManyMaxima", **body, lift=lambda x: (x,) * 12, merge=merge, finish=lambda m0: m0
    )


def absolute_chain(a, b):
    v = a.p + b.p
    for i in range(14):
        v = torch.abs(v - float(i) * b.p) + torch.abs(v + a.p)
    return v


LARGE = {
    "long sum": lambda: total("LongSum", repeated(lambda v, x, i: v + x * float(i), 700)),
    "long shift": lambda: lse(
        "LongShift", s=fr.Sum(lambda x, m: torch.exp(repeated(lambda v, x, i: v + 0.5, 700)(x) - m))
    ),
    "square tower": lambda: total("Squares", repeated(lambda v, x, i: v * v + x, 30)),
    "exp tower": lambda: total("Exponentials", repeated(lambda v, x, i: torch.exp(v), 6)),
    "nested choices": lambda: total(
        "Choices", repeated(lambda v, x, i: torch.where(x > i / 10, v * 1.5, v + i), 40)
    ),
    "nested roots": lambda: declared(
        "Roots", domain={"x": "positive"},
        s=fr.Sum(lambda x: repeated(lambda v, x, i: torch.sqrt(v + x * (i + 1.0)), 8)(x)),
        finish=lambda s: s,
    ),
    "high power": lambda: lse("HighPower", q=fr.Sum(lambda x, m: (x - m) ** 60)),
    "fast turns": lambda: declared(
        "FastTurns", r=fr.First(lambda x: x), s=fr.Sum(lambda x, r: torch.sin(1e5 * (x - r))),
        finish=lambda s: s,
    ),
    "many references": many_references,
    "many maxima": many_maxima,
    "chain of absolute values": lambda: declared(
        "Chain", p=fr.state(0.0), lift=lambda x: x, merge=absolute_chain, finish=lambda p: p
    ),
    "powers out of reach": lambda: total("Powers", lambda x: x * 9.0**9 ** (x * 0 + 9) ** 9),
    "no number": lambda: total("NoNumber", lambda x: x * float("nan")),
    "infinite": lambda: total("Infinite", lambda x: x * 1e300 * 1e300),
    "bits": lambda: declared(
        "Bits", domain={"x": "int"}, s=fr.Sum(lambda x: (x // 2) & 1), finish=lambda s: s
    ),
    "deep closure": lambda: lse("Deep", e=shifted(), q=fr.Sum(
        lambda x, m: ((x - m) ** 9 + (x - m) ** 7) * torch.exp(3.0 * (x - m)))),
}  # fmt: skip


@pytest.mark.parametrize("made", LARGE.values(), ids=LARGE)
def test_there_is_always_a_certificate_in_time(made: Callable[[], Any]) -> None:
    declaration = made()
    start = time.perf_counter()
    certificate = prove(declaration)
    assert time.perf_counter() - start < SLACK * BOUND_S
    assert certificate.explain()


DEFINITIONS = {
    "unknown": lambda x: torch.sort(x)[0].sum(),
    "raises": lambda x: 1 / 0,
    "none": lambda x: None,
    "vector": lambda x: x,
    "tuple": lambda x: (torch.sum(x), 1),
    "control flow": lambda x: torch.sum(x) if torch.sum(x) > 0 else -torch.sum(x),
    "another output": lambda x: {"total": torch.sum(x), "": torch.sum(x)},
}


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_a_definition_that_cannot_be_read_is_unknown_with_the_reason(definition) -> None:
    made = declared("Told", s=fr.Sum(lambda x: x), finish=lambda s: s, definition=definition)
    (law,) = (law for law in prove(made).laws if law.name == "definition")
    assert str(law.status) == "Unknown"
    assert len(law.how) > 15
    assert not prove(made).proved


def test_a_gradient_that_is_only_told_is_refuted() -> None:
    made = declared("Told", s=fr.Sum(lambda x: x), finish=lambda s: s, grad=lambda x: 7.0)
    assert [law.name for law in prove(made).refuted] == ["gradient"]


def test_rounded_literals_refute_nothing() -> None:
    """exp2(x * 1.4426950408889634) is exp(x) up to the rounding of the literal."""
    made = lse(
        "ByHand",
        s=fr.Sum(lambda x, m: torch.exp2((x - m) * 1.4426950408889634)),
        definition=lambda x: torch.logsumexp(x, 0),
    )
    certificate = prove(made)
    (law,) = certificate.open
    assert law.name == "definition"
    assert "the rounding of a literal" in law.how
