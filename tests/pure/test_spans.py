"""Interval rules on tensors: every value that can occur lies inside."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from fusedreduce import masks
from fusedreduce.blocks import spans
from fusedreduce.blocks.bound import value
from fusedreduce.blocks.spans import RULES, Span
from fusedreduce.ir import tables
from fusedreduce.ir.expr import make, var
from fusedreduce.ir.ops import OPS
from fusedreduce.run.blocks import classify
from tests.masks import CPU, places

BOOLEAN = ("and", "or", "xor", "not")
WHOLE = ("bitand", "floordiv", "mod")
TIGHT = (
    "add",
    "sub",
    "neg",
    "abs",
    "minimum",
    "maximum",
    "lt",
    "le",
    "gt",
    "ge",
    "and",
    "or",
    "not",
)


def drawn(draw: random.Random, kind: str) -> list[float]:
    if kind == "bool":
        return draw.choice([[True], [False], [True, False]])
    low = draw.randint(-12, 12)
    ends = range(low, low + draw.randint(0, 9) + 1)
    return [v if kind == "int" else v * 0.37 for v in ends]


def span(values: list[float], kind: str) -> Span:
    if kind == "bool":
        return Span.truth(torch.tensor(all(values)), torch.tensor(any(values)))
    ends = (torch.tensor(end, dtype=torch.float64) for end in (min(values), max(values)))
    return Span(*ends, kind)


def kinds(op: str, draw: random.Random) -> list[str]:
    if op in BOOLEAN:
        return ["bool"] * OPS[op].arity
    if op == "where":
        return ["bool", *draw.choice([("int", "int"), ("bool", "bool"), ("float", "int")])]
    return [draw.choice(["int", "int", "float"] if op not in WHOLE else ["int"])
            for _ in range(OPS[op].arity)]  # fmt: skip


@pytest.mark.parametrize("op", sorted(RULES))
def test_rule(op: str) -> None:
    draw = random.Random(op)
    names = [f"x{n}" for n in range(OPS[op].arity)]
    expr = make(op, tuple(map(var, names)))
    for _ in range(300):
        each = kinds(op, draw)
        values = [drawn(draw, kind) for kind in each]
        if op in ("floordiv", "mod", "div") and 0 in values[1]:
            continue
        found = RULES[op](*map(span, values, each))
        came = {
            value(expr, dict(zip(names, map(torch.tensor, at), strict=True)), CPU).item()
            for at in itertools.product(*values)
        }
        lo, hi = float(found.lo), float(found.hi)
        assert math.isnan(lo) or all(lo <= v <= hi for v in came)
        if op in TIGHT and "float" not in each:
            assert (lo, hi) == (min(came), max(came))


@pytest.mark.parametrize("op", ["div", "floordiv", "mod"])
def test_a_divisor_that_may_be_zero_says_nothing(op: str) -> None:
    found = RULES[op](span([1, 5], "int"), span([-1, 3], "int"))
    assert not torch.isfinite(found.lo)
    assert not torch.isfinite(found.hi)


@pytest.mark.parametrize(
    ("dtype", "values", "kind"),
    [("bool", [-1, 3], "int"), ("bool", [2, 3], "int"), ("int64", [-1.5, 2.5], "float"),
     ("int32", [0, 2**40], "int"), ("float32", [0, 2**24 + 1], "int"), ("int8", [0, 300], "int")],
)  # fmt: skip
def test_conversion(dtype: str, values: list[float], kind: str) -> None:
    found = spans.converted(span(values, kind), dtype)
    for v in values:
        came = torch.tensor(v, dtype=torch.float64 if kind == "float" else None)
        assert not bool(came.to(getattr(torch, dtype)) < found.lo)
        assert not bool(came.to(getattr(torch, dtype)) > found.hi)


def test_floats_round_as_kernels_do() -> None:
    """0.1 * 3 < 0.3 in double precision, not in float32."""
    mask = masks.mask(lambda b, h, i, j: (i - j) * 0.1 < 0.3)
    found = classify(mask.bind(6, 6, CPU), 1, 1, 6, 6, 1, 1)[0, 0]
    seen = mask.evaluate(*places(6, 6), 6, 6)[0, 0]
    assert not seen[5, 2]
    assert found[5, 2] == 1
    assert ((found == 1) | (found == 2 * seen)).all()


def test_nan_is_open() -> None:
    table = torch.tensor([math.nan, 1.0, math.inf])
    for fn in (
        lambda b, h, i, j: table[i] < table[j],
        lambda b, h, i, j: ~(table[i] >= table[j]),
        lambda b, h, i, j: table[i] - table[j] != 0.0,
        lambda b, h, i, j: table[i] * 0.0 == table[j] * 0.0,
    ):
        mask = masks.mask(fn)
        found = classify(mask.bind(3, 3, CPU), 1, 1, 3, 3, 1, 1)[0, 0]
        assert ((found == 1) | (found == 2 * mask.evaluate(*places(3, 3), 3, 3)[0, 0])).all()


def test_offsets_are_where_torch_reads() -> None:
    """The offset of a read, with any strides and negative indices, is the element torch gives."""
    base = torch.arange(3 * 8 * 5).reshape(8, 3, 5)
    for table in (base.permute(1, 0, 2), base.transpose(0, 1)[:, ::2], base[:1].expand(3, 3, 5)):
        mask = masks.mask(lambda b, h, i, j, t=table: t[h, i - j, -1] == t[0, -2, j])
        bound = mask.bind(2, 2, CPU)
        b, h, i, j = places(2, 2)
        memory = table.as_strided((base.numel(),), (1,), 0)
        expected = (table[h, i - j, -1], table[0, -2, j])
        for read, element in zip(tables.reads(bound.expr), expected, strict=True):
            env = {"b": b, "h": h, "i": i, "j": j, **bound.measures}
            at = value(read.args[1], env, CPU)
            assert torch.equal(memory[at + table.storage_offset()].expand_as(element), element)
