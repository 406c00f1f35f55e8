"""The losses by tiles and by their meaning: the table, tiles of any size, derived gradients."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce import derivative, pipeline
from fusedreduce.run import tiles
from tests import chains, gradients, losses, printing

each = pytest.mark.parametrize("case", losses.CASES, ids=lambda c: c.name)
FEW = [
    (3, 17, torch.float64), (2, 3, torch.float32), (130, 33, torch.float32),
    (5, 300, torch.bfloat16), (4, 41, torch.float16),
]  # fmt: skip
ONE = (2, 1, torch.float32)  # one class: its gradient is what rounding leaves of 1 - 1


@each
@pytest.mark.parametrize(("rows", "columns", "dtype"), [*FEW, ONE], ids=str)
@pytest.mark.parametrize("impl", ["tiles", "eager"])
def test_value(case: chains.Case, rows: int, columns: int, dtype: torch.dtype, impl: str) -> None:
    torch.manual_seed(0)
    args = case.inputs(rows, columns, dtype)
    chains.check(fr.fuse(case.fn)(*args, impl=impl), case, args)


@each
@pytest.mark.parametrize(("rows", "columns", "dtype"), FEW, ids=str)
@pytest.mark.parametrize("impl", ["tiles", "eager"])
def test_gradients(
    case: chains.Case, rows: int, columns: int, dtype: torch.dtype, impl: str
) -> None:
    torch.manual_seed(0)
    gradients.check(case, case.inputs(rows, columns, dtype), impl=impl)


@each
@pytest.mark.parametrize("tile", [(1, 5), (2, 1024)], ids=str)
def test_any_tile(case: chains.Case, tile: tuple[int, int], monkeypatch) -> None:
    monkeypatch.setattr(tiles, "chosen_tile", lambda *args: tile)
    args = case.inputs(4, 33, torch.float32)
    chains.check(fr.fuse(case.fn)(*args), case, args)
    gradients.check(case, args)


@each
def test_the_backward_is_derived(case: chains.Case) -> None:
    task, values = printing.fused(case.fn, case.inputs(8, 20, torch.float32))
    program = pipeline.trace_task(task, values, trust=False).program
    floating = tuple(i.name for i in program.inputs if i.kind == "float" and not i.number)
    assert not isinstance(derivative.derived(program, floating), str)


@pytest.mark.parametrize(
    "case", [c for c in losses.CASES if c.name != "kl_div mean"], ids=lambda c: c.name
)
def test_a_row_does_not_depend_on_its_batch(case: chains.Case) -> None:
    args = case.inputs(65, 257, torch.float32)
    fused = fr.fuse(case.fn)
    whole = chains.flat(fused(*args))
    assert all(torch.equal(a, b) for a, b in zip(whole, chains.flat(fused(*args)), strict=True))
    cut = lambda a: isinstance(a, torch.Tensor) and a.dim() > 0 and a.shape[0] == 65
    part = tuple(a[7:9] if cut(a) else a for a in args)
    for a, b in zip(whole, chains.flat(fused(*part)), strict=True):
        assert torch.equal(a[7:9], b)
