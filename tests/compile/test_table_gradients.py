"""Kernels that sum gradients of tables beside d q, d k and d v: what that costs in registers."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.gradient.pairs import backward
from fusedreduce.plan.device import MAX_REGISTERS, device
from fusedreduce.run import pair_kernels, pair_table_kernels
from fusedreduce.run.compiled import Needs
from tests import pairs, tables
from tests.compile.aot import compile_pair, older
from tests.pairs import arguments, sizes

ONE = [("slopes", "queries"), ("bias of keys", "keys")]
#: Bytes of stack that one table may add, by capability and width: none but for d k and d v at 128
#: wide, where two accumulators fill the registers already.
ADDED = {(90, 128): 64, (100, 128): 128}
#: Of a kernel that a table has for itself. NOTE: with 32 queries and 256 wide operands ptxas spills
#: on every device, on sm_80 from 128 on, sometimes with 32 registers in use (12.8).
OWN = {(90, 64): 64, (90, 256): 512, (100, 64): 256, (100, 256): 512, (80, 64): 256}


def compiled(
    score: str, direction: str, capability: int, D: int, with_tables: bool, group: int = 1
) -> Needs:
    case = tables.case_of(score, "causal")
    z = sizes(256, 256, B=1, H=2 * group, D=D, DV=D, group=group)
    a = arguments(case, z, torch.bfloat16)
    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    learned = tuple(n for n in a.tables if with_tables and a.tables[n].is_floating_point())
    b = backward(pair, ("q", "k", "v", *learned))
    plan = pair_kernels.plan_of(b.forward, direction, divmod(capability, 10))
    blocks = pair_kernels.blocks_of(b.forward, inputs, plan)
    ready = pair_kernels.backward_kernel(b, plan, blocks, pair_kernels.precision(pair))
    sums = [n for n in ready.kernel.arguments if n.startswith("sum_d_")]
    expected = [s.name for s in b.table_sums if s.direction == direction]
    assert sums == [f"{n}_ptr" for n in expected]
    assert bool(sums) == with_tables
    found = compile_pair(ready, b.forward, b, capability)
    fits(found, capability)
    return found


def fits(found: Needs, capability: int) -> None:
    assert found.shared <= device(divmod(capability, 10)).shared_bytes, found
    assert found.registers <= MAX_REGISTERS, found


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize(("score", "direction"), ONE)
def test_one_table(score: str, direction: str, capability: int, D: int) -> None:
    without, found = (compiled(score, direction, capability, D, w) for w in (False, True))
    more = older(24 if (direction, capability, D) == ("keys", 100, 64) else 0)
    most = without.stack + ADDED.get((capability, D), 0) + more
    assert found.stack <= most, (without, found)


@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_forwards_that_keep_the_result_exactly(capability: int, D: int) -> None:
    """The same result twice, rounded and not: addresses of wide tiles may wait behind the loops."""
    case = tables.case_of("slopes", "causal")
    a = arguments(case, sizes(256, 256, B=1, H=2, D=D, DV=D), torch.bfloat16)
    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    b = backward(pair, ("q", "k", "v", *a.tables))
    assert b.exact
    assert len(b.forward.results) == len(pair.results) + len(b.saved)
    found = []
    for p in (pair, b.forward):
        plan = pair_kernels.plan_of(p, "forward", divmod(capability, 10))
        blocks = pair_kernels.blocks_of(p, inputs, plan)
        ready = pair_kernels.forward_kernel(p, plan, blocks, (), pair_kernels.precision(p))
        found.append(compile_pair(ready, p, None, capability))
        fits(found[-1], capability)
    more = {(80, 128): 40, (90, 256): 136}.get((capability, D), 0)
    assert found[1].stack <= found[0].stack + more, found


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("direction", ["queries", "keys"])
def test_three_tables_and_shared_heads(direction: str, capability: int) -> None:
    without, found = (compiled("three", direction, capability, 64, w, 2) for w in (False, True))
    more = older({80: 584, 90: 384, 100: 944}[capability] if direction == "keys" else 0)
    more += 128 if (direction, capability) == ("keys", 100) else 0  # two stages: 352 in all
    assert found.stack <= without.stack + 256 + more, (without, found)


# ---- kernels of their own ------------------------------------------------------------------------


def own(score: str, mask: str | None, capability: int, D: int, length: int = 256) -> Needs:
    case = tables.case_of(score, mask)
    z = sizes(length, length, B=1, H=4, D=D, DV=D, group=2)
    a = arguments(case, z, torch.bfloat16)
    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    b = backward(pair, ("q", "k", "v", *a.tables))
    (s,) = b.table_sums
    assert s.direction in pair_table_kernels.DIRECTIONS
    plan = pair_kernels.plan_of(b.forward, s.direction, divmod(capability, 10))
    blocks = pair_table_kernels.blocks_of(b.forward, inputs, plan)
    ready = pair_table_kernels.table_kernel(b, s, plan, blocks, pair_kernels.precision(pair))
    found = compile_pair(ready, b.forward, b, capability)
    fits(found, capability)
    return found


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("score", ["bias of heads", "bias of all", "relative"])
@pytest.mark.parametrize(("capability", "D"), [(90, 64), (90, 128), (90, 256), (100, 64),
                                               (100, 128), (100, 256), (80, 64)])  # fmt: skip
def test_a_kernel_of_its_own(score: str, mask: str | None, capability: int, D: int) -> None:
    for length in (250, 256):
        found = own(score, mask, capability, D, length)
        assert found.stack <= OWN.get((capability, D), 0), found
