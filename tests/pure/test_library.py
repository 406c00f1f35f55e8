"""Every shipped reduction against its plain two-pass formula: eager, and tiles of 100 columns."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

from fusedreduce import pipeline, reductions
from fusedreduce.errors import DeclarationError
from fusedreduce.run import tiles
from fusedreduce.structure import rebuild
from tests import printing
from tests.cases import check
from tests.door.house import ROOT
from tests.library import CASES, INF, LONG, MEANINGS, NAN, Tensors, operands

TILE = (2, 100)


def in_tiles(R: type, given: Tensors) -> Tensors:
    """By merging tiles of TILE columns."""
    task, values = printing.reduced(R, given)
    traced = pipeline.trace_task(task, values, trust=True)
    return rebuild(traced.structure, tiles.run(traced.program, values, TILE))


def test_every_shipped_reduction_has_a_meaning_here() -> None:
    assert {R.__name__ for R in MEANINGS} == set(reductions.__all__)


@pytest.mark.parametrize(("R", "rows"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_no_worse_than_the_plain_formula(R: type, rows: str) -> None:
    meaning = MEANINGS[R]
    given = operands(rows, meaning.operands, torch.float32)
    wanted = meaning.formula(*(t.double() for t in given.values()))
    plain = meaning.formula(*given.values())
    task, values = printing.reduced(R, given)
    for how, results in (("eager", task.eager(values)), ("tiles", in_tiles(R, given))):
        for output, right in wanted.items():
            what = f"{R.__name__} {output} {rows} {how}"
            check(results[output], right, plain[output], torch.float32, 2.0, what)


@pytest.mark.parametrize(("R", "rows"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_in_float64(R: type, rows: str) -> None:
    meaning = MEANINGS[R]
    given = operands(rows, meaning.operands, torch.float64)
    wanted = meaning.formula(*given.values())
    results = in_tiles(R, given)
    for output, right in wanted.items():
        got = results[output].to(right.dtype)
        torch.testing.assert_close(got, right, rtol=1e-7, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("R", [reductions.EuclideanNorm, reductions.PNorm])
@pytest.mark.parametrize("rows", ["huge", "tiny"])
def test_a_norm_keeps_its_digits_at_any_scale(R: type, rows: str) -> None:
    given = operands(rows, {"x": "x"}, torch.float32)
    right = MEANINGS[R].formula(given["x"].double())[""]
    torch.testing.assert_close(in_tiles(R, given)[""].double(), right, rtol=1e-6, atol=0.0)


def test_a_compensated_sum_keeps_what_a_sum_loses() -> None:
    x = torch.cat([torch.tensor([1e8]), torch.full((LONG,), 0.25), torch.tensor([-1e8])])
    kept = in_tiles(reductions.CompensatedSum, {"x": x[None]})[""]
    assert kept.item() == 0.25 * LONG
    assert in_tiles(reductions.Total, {"x": x[None]})[""].item() != kept.item()


@pytest.mark.parametrize("x", [[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 0.0, 4.0]])
@pytest.mark.parametrize("out", [0, 1, 2])
def test_a_product_can_be_undone(x: list[float], out: int) -> None:
    found = in_tiles(reductions.ProductAndZeros, {"x": torch.tensor([x])})
    zeros, nonzero = int(found["zeros"]) - (x[out] == 0), float(found["nonzero"])
    without = 0.0 if zeros else nonzero / (x[out] or 1.0)
    assert without == float(torch.tensor(x[:out] + x[out + 1 :]).prod())


@pytest.mark.parametrize("p", [0, -1.0, INF, NAN])
def test_a_p_norm_needs_a_p(p: float) -> None:
    with pytest.raises(DeclarationError, match="a p-norm without a p"):
        reductions.p_norm(p)


def test_p_norms_are_declared_once() -> None:
    assert reductions.p_norm(3.0) is reductions.PNorm
    assert reductions.p_norm(1.0).record != reductions.PNorm.record


def test_the_page_of_reductions_is_current() -> None:
    file = ROOT / "docs" / "make_reductions.py"
    spec = importlib.util.spec_from_file_location("make_reductions", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(check=True) == 0, "run: python docs/make_reductions.py"


@pytest.mark.slow
def test_the_page_of_digits_is_current() -> None:
    """Measured again: the accuracy rule holds, and the figures are those of the page."""
    command = [sys.executable, "docs/make_numerics.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
