"""Tiles equal the meaning, whatever the tile, and their memory is linear in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fusedreduce as fr
from fusedreduce.chain import Chain
from fusedreduce.declare import Reduction, Sum, join
from fusedreduce.declare.record import Record
from fusedreduce.laws import certified
from fusedreduce.program import Program
from fusedreduce.reductions import Largest, LogSumExp, Mean, Moments, SoftmaxSum, Total, Welford
from fusedreduce.run import eager, merges, stages, tiles
from fusedreduce.trace import Names
from tests import chains
from tests.cases import CASES, Case
from tests.pure.test_eager import Affine, Last, Weighted, rows

Tile = tuple[int, int] | None


@cache
def ready(R: type[Reduction]) -> Record:
    """With corrections and with the guards that the float grid asks for."""
    return certified(R.record)[0]


def program(
    R: type[Reduction],
    operands: Mapping[str, torch.Tensor],
    dim: Any = -1,
    keepdim: bool = False,
    state: bool = False,
    complete: Callable[[type[Reduction]], Record] = ready,
) -> Program:
    chain = Chain(complete)
    values = {n: chain.input(n, t) for n, t in operands.items()}
    plain = {n: v[..., None] if "v" in values and n != "v" else v for n, v in values.items()}
    dim = -2 if "v" in values else dim
    results = chain.reduce(R, plain, dim, keepdim, R.record.outputs, state)
    return chain.program("p", {f"out_{n}": v for n, v in results.items()}, Names())


def run(R: type[Reduction], operands: Mapping[str, torch.Tensor], tile: Tile, **more: Any) -> Any:
    made = tiles.run(program(R, operands, **more), operands, tile)
    return dict(zip(R.record.outputs, made, strict=True))


def tiles_of(case: Case) -> list[Tile]:
    """The chosen one, and odd ones; single elements only where rows are short."""
    columns = case.operands()["x"].shape[-1]
    if columns <= 17:
        return [None, (1, 1), (2, 7)]
    return [None, (2, 61)] if columns <= 300 else [None, (2, 301), (3, 1024)]


def without_depth(case: Case, got: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What does not depend on the payload is the same for each of its columns here."""
    return {n: v[..., 0] if n == "lse" and case.R is SoftmaxSum else v for n, v in got.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_table(case: Case) -> None:
    operands = case.operands()
    meaning = eager.reduce(case.R, operands, (1,))
    for tile in tiles_of(case):
        got = without_depth(case, run(case.R, operands, tile))
        case.check(got, k=3.0)
        assert [v.dtype for v in got.values()] == [v.dtype for v in meaning.values()]


@pytest.mark.parametrize(
    "case", [c for c in CASES if "inf" in c.rows or c.rows == "nan"], ids=lambda c: c.name
)
def test_all_guards_agree_with_the_chosen_ones(case: Case) -> None:
    def unguarded(R: type[Reduction]) -> Record:
        return replace(ready(R), guards=None)

    got = run(case.R, case.operands(), (2, 301), complete=unguarded)
    case.check(without_depth(case, got), k=3.0)


@pytest.mark.parametrize("tile", [(1, 1), (2, 3), (4, 64), None])
@pytest.mark.parametrize("R", [Last, Affine, Weighted, Largest], ids=lambda R: R.__name__)
def test_order_and_positions(R: type[Reduction], tile: Tile) -> None:
    operands = {n: rows(3, 37, seed=k) for k, n in enumerate(R.record.operands)}
    for n, value in eager.reduce(R, operands, (1,)).items():
        torch.testing.assert_close(run(R, operands, tile)[n], value)


@pytest.mark.parametrize("tile", [(1, 1), (3, 4), (5, 7), (64, 2), None])
@pytest.mark.parametrize("dim", [0, 1, 2, (0, 2), (1, 2), (0, 1, 2)])
def test_axes_in_any_order(dim: Any, tile: Tile) -> None:
    x = rows(3, 4, 5).permute(2, 0, 1)
    both = join(LogSumExp, Moments)
    meaning = eager.reduce(both, {"x": x}, dim if isinstance(dim, tuple) else (dim,), True)
    got = run(both, {"x": x}, tile, dim=dim, keepdim=True)
    for n, value in meaning.items():
        torch.testing.assert_close(got[n], value)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::3],
        lambda x: x[1:, 5:],
        lambda x: x.t(),
        lambda x: x[:, :1].expand(-1, 9),
        lambda x: x[:1].expand(9, -1),
    ],
)
def test_strided_views(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = view(rows(8, 30))
    for tile in ((2, 4), None):
        torch.testing.assert_close(run(LogSumExp, {"x": x}, tile)[""], torch.logsumexp(x, 1))


def test_nothing() -> None:
    x = torch.zeros(3, 0)
    assert torch.equal(run(LogSumExp, {"x": x}, None)[""], torch.full((3,), float("-inf")))
    got = run(SoftmaxSum, {"x": x, "v": torch.zeros(3, 0, 2)}, None)
    assert torch.equal(got["out"], torch.zeros(3, 2))
    assert run(LogSumExp, {"x": torch.zeros(0, 3)}, None)[""].shape == (0,)


def test_a_state_can_be_looked_at() -> None:
    x = rows(2, 9)
    p = program(Moments, {"x": x}, state=True)
    values = dict(zip((o.name for o in p.outputs), tiles.run(p, {"x": x}, (1, 4)), strict=True))
    assert torch.equal(values["out_state.n"], torch.full((2,), 9.0).double())
    assert torch.equal(values["out_state.r"], x[:, 0])
    assert torch.equal(values["out_state.r_position"], torch.zeros(2, dtype=torch.int64))


# ---- fused functions -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [(1, 5), (2, 1024), None], ids=str)
@pytest.mark.parametrize("case", chains.CASES, ids=lambda c: c.name)
def test_fused_functions(
    case: chains.Case, tile: Tile, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tile is not None:
        monkeypatch.setattr(tiles, "chosen_tile", lambda *args: tile)
    args = case.inputs(3, 33, dtype)
    chains.check(fr.fuse(case.fn)(*args), case, args)


# ---- memory, and what really runs ----------------------------------------------------------------


class Largest_(TorchDispatchMode):
    """The largest tensor that any operation made; views and the outputs do not count."""

    def __init__(self, outputs: tuple[int, ...]) -> None:
        super().__init__()
        self.outputs = outputs
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (tuple, list)) else (result,)
        for t in made:
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given:
                held = t.untyped_storage().nbytes() // t.element_size()
                if t.dtype != torch.uint8 and held not in self.outputs:
                    self.elements = max(self.elements, held)
        return result


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[list[int]]:
    calls: list[int] = []
    original = getattr(owner, name)

    def counting(*args: Any) -> Any:
        calls.append(1)
        return original(*args)

    monkeypatch.setattr(owner, name, counting)
    yield calls


@fr.fuse
def layer_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    r = fr.reduce(Moments, x, dim=1, keepdim=True)
    return (x - r["mean"]) * torch.rsqrt(r["var"] + 1e-5) * weight


@pytest.mark.parametrize("R", [LogSumExp, Moments, Welford, Largest], ids=lambda R: R.__name__)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_memory_is_linear_in_the_tile(R: type[Reduction], order: tuple[int, ...]) -> None:
    x = rows(24, 20, 30).to(torch.bfloat16).permute(order)
    p = program(R, {"x": x}, dim=(1, 2))
    for tile in ((1, 64), (4, 32), (7, 100)):
        with Largest_(outputs=(x.shape[0],)) as seen:
            tiles.run(p, {"x": x}, tile)
        assert 0 < seen.elements <= tile[0] * tile[1], (tile, seen.elements)


def test_memory_of_an_epilogue_is_linear_in_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(40, 30, 2), torch.randn(30, 1)
    monkeypatch.setattr(tiles, "chosen_tile", lambda *args: (3, 8))
    layer_norm(x, weight)  # traced
    (ready,) = layer_norm.runner.prepared.values()
    with Largest_(outputs=(x.numel(),)) as seen:  # a mode sees the call as one operator
        ready.run({"x": x, "weight": weight})
    assert 0 < seen.elements <= 3 * 8


def test_corrections_run_once_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(4, 40)
    with counted(monkeypatch, stages.Corrected, "step") as steps:
        run(LogSumExp, {"x": x}, (4, 10))
    assert len(steps) == 4

    class Uncorrected(LogSumExp):
        s = Sum(lambda x, m: torch.exp(x - m), correct=lambda s, old, new: s + 0.0 * new.m)

    def plain(R: type[Reduction]) -> Record:
        return R.record

    x = torch.arange(40.0).expand(4, 40)
    right = torch.logsumexp(x, 1)
    torch.testing.assert_close(run(Uncorrected, {"x": x}, (4, 40), complete=plain)[""], right)
    wrong = run(Uncorrected, {"x": x}, (4, 10), complete=plain)[""]
    assert ((wrong - right) > 0.1).all(), "the correction is what makes several tiles right"


def test_merges_run_inside_and_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(4, 40)
    with counted(monkeypatch, merges.General, "merged") as calls:
        run(Welford, {"x": x}, (4, 40))
        inside = len(calls)
        run(Welford, {"x": x}, (4, 8))
    assert inside == 5 + 1, "to 20, 10, 5, 2 and 1, and the odd one"
    assert len(calls) - inside == 5 * 3 + 4, "five tiles of 8, merged four times"


def test_lanes_do_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merges, "LANES", 12)
    operands = {"a": rows(3, 37), "c": rows(3, 37, seed=1)}
    meaning = eager.reduce(Affine, operands, (1,))
    got = run(Affine, operands, None)
    torch.testing.assert_close(got["q"], meaning["q"])
    x = rows(3, 37)
    got = run(Welford, {"x": x}, None)
    torch.testing.assert_close(got["var"], x.var(1, correction=0))


def test_a_stage_that_reads_another() -> None:
    x = rows(3, 33)

    @fr.fuse
    def centred(x: torch.Tensor) -> torch.Tensor:
        mean = fr.reduce(Mean, x, keepdim=True)
        return fr.reduce(Total, (x - mean) ** 3)

    torch.testing.assert_close(centred(x), ((x - x.mean(1, keepdim=True)) ** 3).sum(1))
