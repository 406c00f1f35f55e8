"""Printed pair kernels compile for sm_80, sm_90a and sm_100a within limits of device and plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fusedreduce.gradient.pairs import backward
from fusedreduce.kernels.rows import print_rows
from fusedreduce.masks import causal
from fusedreduce.pairing import Given, PairTask, pair_of
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.device import MAX_REGISTERS, device
from fusedreduce.plan.layout import layout
from fusedreduce.reductions import SoftmaxSum
from fusedreduce.run import launch, pair_kernels, pair_rows, pair_splits
from fusedreduce.run.compiled import Needs, row_needs
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_packing import packed
from tests import pairs
from tests.compile.aot import compile_pair, older
from tests.pairs import DECLARED, Case, arguments, masked, scored, sizes

BY_NAME = {c.name: c for c in DECLARED}
SOFTMAX = BY_NAME["softmax"]
DIRECTIONS = ("forward", "queries", "keys")
CASES = [
    *(c for c in DECLARED if c.name != "moments"),
    *(masked(SOFTMAX, m) for m in ("causal", "by head", "documents")),
    *(scored(SOFTMAX, s, "causal") for s in ("softcap", "alibi", "bias")),
]
NEVER = {("count", "queries"), ("count", "keys"), ("average", "queries")}  # nothing reads the score
#: Bytes of stack (spilled registers) by direction and width, bfloat16 with a causal mask: two
#: accumulators, p and ds are alive where d k and d v are summed up. More is a regression.
STACK = {
    ("forward", 256): 64, ("queries", 256): 512, ("keys", 128): 256, ("keys", 256): 768,
}  # fmt: skip


#: What Triton 3.6 takes besides, by case and direction.
OLDER = {
    ("softmax, documents", "queries"): 24, ("softmax, documents", "keys"): 208,
    ("softmax, softcap, causal", "keys"): 8,
}  # fmt: skip


def compiled(
    case: Case, direction: str, capability: int, D: int = 64, dtype: torch.dtype = torch.bfloat16,
    group: int = 1, state: bool = False,
) -> tuple[Needs, pair_kernels.PairPlan]:  # fmt: skip
    """As a launch of long sequences would build it; no tensor is computed.

    state   the results are a state, in its dtype: what a seed is merged with
    """
    a = arguments(case, sizes(256, 256, B=1, H=group, D=D, DV=D, group=group), dtype)
    pair = pairs.pair_of(case, a)
    if state:
        pair = replace(pair, results=tuple(replace(r, dtype=pair.state) for r in pair.results))
    inputs = pairs.inputs_of(case, a, pair)
    b = None if direction == "forward" else backward(pair, ("q", "k", "v"))
    used = pair if b is None else b.forward
    plan = pair_kernels.plan_of(used, direction, divmod(capability, 10))
    return compile_pair(loaded(case, used, b, inputs, plan), used, b, capability), plan


def loaded(case: Case, pair: Any, b: Any, inputs: PairInputs, plan: Any) -> pair_kernels.Loaded:
    blocks = pair_kernels.blocks_of(pair, inputs, plan)
    if b is not None:
        return pair_kernels.backward_kernel(b, plan, blocks, pair_kernels.precision(pair))
    positive = tuple(case.numbers)
    return pair_kernels.forward_kernel(pair, plan, blocks, positive, pair_kernels.precision(pair))


def check(found: Needs, plan: pair_kernels.PairPlan, capability: int, stack: int) -> None:
    limits = device(divmod(capability, 10))
    assert found.shared <= limits.shared_bytes, found
    assert found.registers <= MAX_REGISTERS, found
    assert found.stack <= stack, f"{plan.describe()} spills: {found}"


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_compiles(case: Case, direction: str) -> None:
    if (case.name, direction) in NEVER:
        pytest.skip("gradients of 0 need no kernel")
    stack = {"keys": 128, "queries": 16}.get(direction, 0)
    stack += older(OLDER.get((case.name, direction), 0))
    check(*compiled(case, direction, 90), 90, stack)


@pytest.mark.parametrize("capability", [80, 100])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_other_devices(direction: str, capability: int) -> None:
    """NOTE: d k and d v by addresses spill where heads share k (thousands of bytes on sm_80)."""
    stack = {(80, "queries"): 128, (80, "keys"): 6000, (100, "forward"): 16}
    found = compiled(masked(SOFTMAX, "causal"), direction, capability, group=2)
    more = older(1352 if (capability, direction) == (100, "keys") else 0)
    check(*found, capability, stack.get((capability, direction), 0) + more)


@pytest.mark.parametrize("D", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_shipped_plans(direction: str, D: int) -> None:
    """The plan's own claim: shared memory within a few descriptors and barriers of it."""
    found, plan = compiled(masked(SOFTMAX, "causal"), direction, 90, D)
    more = older(128 if (direction, D) == ("keys", 80) else 0)
    check(found, plan, 90, STACK.get((direction, D), 0) + more)
    assert plan.shared <= found.shared <= plan.shared + 4096, (found, plan)


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("direction", ["queries", "keys"])
def test_adjoints_of_a_state(direction: str, D: int, capability: int) -> None:
    """They are wider than q, k and v: tiles fit all the same (at 256 wide they spill)."""
    found = compiled(masked(SOFTMAX, "causal"), direction, capability, D, state=True)
    more = older(56 if (direction, D) == ("keys", 64) else 0)
    check(*found, capability, {128: 512, 256: 4600}.get(D, 0) + more)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_half(direction: str) -> None:
    check(*compiled(masked(SOFTMAX, "causal"), direction, 90, 64, torch.float16), 90, 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wide_dtypes(direction: str, dtype: torch.dtype) -> None:
    """NOTE: products of float32 at full precision are no tensor instructions: they spill."""
    check(*compiled(masked(SOFTMAX, "causal"), direction, 90, 64, dtype), 90, 8192)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_integers_beyond_32_bits(direction: str) -> None:
    """Positions are widened, in a mask and in the ends of a range; int32 wraps.

    NOTE: quotients of 64 bits take many registers: where a mask has three of them, tiles spill.
    """

    def several(t: Any) -> Any:
        return lambda b, h, i, j: (
            ((i * 2654435761 + j) % 7 < 3) & (i**5 > j)
            & ((1 << (i % 50)) > (t.of_q[b, i] * t.of_k[b, j]).to(torch.int32))
        )  # fmt: skip

    def far(t: Any) -> Any:
        return lambda b, h, i, j: (i - j <= 2**40) & (i >= j)

    more = older(160 if direction == "keys" else 0)
    documents = replace(masked(SOFTMAX, "documents"), mask=several)
    check(*compiled(documents, direction, 90), 90, 1024 + more)
    check(*compiled(replace(SOFTMAX, mask=far), direction, 90), 90, 128)


@pytest.mark.parametrize("mask", [None, "causal"])
def test_lengths_and_offsets_are_not_specialised(mask: str | None) -> None:
    """A build is called again with others: 1 and multiples of 16 must not be built in."""
    case = SOFTMAX if mask is None else masked(SOFTMAX, mask)
    case = replace(case, score=lambda t: lambda s, b, h, i, j: s + 0.1 * (i - j))
    a = arguments(case, sizes(64, 64), torch.bfloat16, q_offset=1, k_offset=16)
    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    plan = pair_kernels.plan_of(pair, "forward", (9, 0))
    ready = loaded(case, pair, None, inputs, plan)
    integers = set(ready.kernel.arguments) & {*inputs.sizes(), "H", "group"}
    assert {"q_offset", "k_offset", "Sq", "Sk"} <= integers
    assert integers <= set(ready.function.do_not_specialize)


# ---- sinks ---------------------------------------------------------------------------------------


def with_sinks(Sq: int, Sk: int, D: int, dtype: torch.dtype) -> tuple[Any, PairInputs]:
    """Causal attention with a sink a head, and what it is run on."""
    task = PairTask(SoftmaxSum, ("out", "lse"), scaled=True, mask=causal.text, sinks=True)
    q, k = (torch.empty(2, 4, n, D, dtype=dtype) for n in (Sq, Sk))
    values = {"q": q, "k": k, "v": k, "scale": 0.1, "sinks": torch.empty(4)}
    values |= {"q_offset": 0.0, "k_offset": 0.0}
    pair = pair_of(task, values, trust=False)
    return pair, Given(task, values).inputs(pair.numbers)


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("D", [64, 128])
def test_a_state_to_start_from(D: int, dtype: torch.dtype, capability: int) -> None:
    """It takes no more of the machine than the state of nothing."""
    pair, inputs = with_sinks(256, 256, D, dtype)
    saving = backward(pair, ("q", "k", "v", "sinks")).forward
    plan = pair_kernels.plan_of(saving, "forward", divmod(capability, 10))
    blocks = pair_kernels.blocks_of(saving, inputs, plan)
    ready = pair_kernels.forward_kernel(saving, plan, blocks, ("scale",), "")
    assert "sinks_ptr" in ready.kernel.arguments
    check(compile_pair(ready, saving, None, capability), plan, capability, 0)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_a_state_to_start_from_in_the_first_split(capability: int) -> None:
    """NOTE: at 128 wide all registers of sm_80 are taken without it: 8 bytes spill."""
    pair, inputs = with_sinks(1, 4096, 128, torch.bfloat16)
    plan = pair_kernels.plan_of(pair, "forward", divmod(capability, 10))
    blocks = replace(pair_kernels.blocks_of(pair, inputs, plan), splits=True)
    states = pair_splits.pair_of_states(pair)
    ready = pair_kernels.forward_kernel(states, plan, blocks, ("scale",), "")
    assert "split == 0" in ready.kernel.source
    check(compile_pair(ready, states, None, capability), plan, capability, 8 * (capability == 80))


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_a_state_of_each_row(capability: int, splits: bool) -> None:
    """One query a head: heads that share keys are rows, and each has a sink of its own."""
    pair, inputs = with_sinks(1, 4000, 64, torch.bfloat16)
    inputs = replace(inputs, k=inputs.k[:, :1], v=inputs.k[:, :1])
    pair, inputs = packed(pair, inputs)
    plan = pair_kernels.plan_of(pair, "forward", divmod(capability, 10))
    blocks = replace(pair_kernels.blocks_of(pair, inputs, plan), splits=splits)
    pair = pair_splits.pair_of_states(pair) if splits else pair
    ready = pair_kernels.forward_kernel(pair, plan, blocks, ("scale",), "")
    assert "sinks_of_query" in ready.kernel.source
    check(compile_pair(ready, pair, None, capability), plan, capability, 16)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_gradient_of_sinks_beside_other_row_values(capability: int) -> None:
    pair, inputs = with_sinks(256, 256, 128, torch.bfloat16)
    b = backward(pair, ("q", "k", "v", "sinks"))
    given = {n: getattr(torch, r.dtype) for r in b.forward.results for n in (r.name, f"d_{r.name}")}
    how = pair_rows.recipe(b, frozenset(b.saved), has_vector=True)
    assert how.later == ()
    dtypes = tuple((n, given.get(n, torch.float32)) for n in (*how.read, "out", "d_out"))
    program = pair_rows.row_program(b, how.exprs, dtypes, (*inputs.rows, pair.DV))
    lay = layout(program, launch.program_strides(program, {}))
    plan = row_plans.plan(program, lay)
    kernel = print_rows(program, plan, lay, program.name)
    assert row_needs(program, kernel, plan, lay, capability).stack == 0


# ---- split keys ----------------------------------------------------------------------------------


def split(
    case: Case, capability: int, D: int = 64, dtype: torch.dtype = torch.bfloat16, group: int = 1
) -> tuple[pair_kernels.Loaded, Any]:
    """The kernel of one query that writes states, and the pair of these."""
    a = arguments(case, sizes(1, 4096, B=1, H=group, D=D, DV=D, group=group), dtype)
    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    plan = pair_kernels.plan_of(pair, "forward", divmod(capability, 10))
    blocks = replace(pair_kernels.blocks_of(pair, inputs, plan), splits=True)
    states = pair_splits.pair_of_states(pair)
    positive = tuple(case.numbers)
    return pair_kernels.forward_kernel(states, plan, blocks, positive, ""), pair


def merging(pair: Any, capability: int, splits: int) -> Needs:
    width = (pair.DV,) if pair.vectors else ()
    program = pair_splits.merging_program(pair, (8, 32, 1, splits, *width))
    lay = layout(program, launch.program_strides(program, {}))
    plan = row_plans.plan(program, lay)
    kernel = print_rows(program, plan, lay, program.name)
    return row_needs(program, kernel, plan, lay, capability)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_split(case: Case) -> None:
    """A state of any kind is written, and merged by a row kernel."""
    ready, pair = split(case, 90)
    check(compile_pair(ready, pair_splits.pair_of_states(pair), None, 90), ready.plan, 90, 0)
    assert merging(pair, 90, 8).stack == 0


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_split_elsewhere(mask: str | None, D: int, capability: int) -> None:
    """NOTE: a masked kernel spills 16 bytes on sm_100 at 128 wide."""
    case = SOFTMAX if mask is None else masked(SOFTMAX, mask)
    ready, pair = split(case, capability, D, group=4)
    found = compile_pair(ready, pair_splits.pair_of_states(pair), None, capability)
    check(found, ready.plan, capability, 16 * bool(mask) * (capability == 100 and D == 128))
    for splits in (2, 64):
        assert merging(pair, capability, splits).stack == 0


def test_one_build_for_every_number_of_splits() -> None:
    ready, _ = split(masked(SOFTMAX, "causal"), 90)
    assert "splits" in ready.kernel.arguments
    assert "splits" in ready.function.do_not_specialize
