"""Launching printed pair kernels: descriptors of the operands, grids, arguments by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.errors import BackendError, message
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.kernels.pair_frame import Blocks
from fusedreduce.kernels.pairs import ForwardPrinter
from fusedreduce.kernels.pairs_backward import BackwardPrinter
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.masks.ranges import key_ranges, query_ranges
from fusedreduce.pair import Pair
from fusedreduce.plan import pairs as pair_plans
from fusedreduce.plan.pairs import PairPlan, chunks
from fusedreduce.run import launch
from fusedreduce.run.pair_inputs import PairInputs

Values = Mapping[str, Tensor]
Tile = tuple[int, int, int, int]  # queries, keys, warps, stages


@dataclass(frozen=True)
class Loaded:
    """A printed kernel, ready to be launched."""

    kernel: PrintedKernel
    plan: PairPlan
    function: Any


# ---- forward and backward ------------------------------------------------------------------------


def forward(pair: Pair, inputs: PairInputs, tile: Tile | None = None) -> dict[str, Tensor]:
    """The results of a pair by name."""
    made = written(inputs.empty(pair))
    blocks = blocks_of(pair, "forward")
    ready = forward_kernel(pair, blocks, *chosen(inputs, pair), tile)
    plan = ready.plan
    tensors = operands(inputs) | pointers(made) | pointers(inputs.tables)
    run(
        ready,
        inputs,
        tensors,
        _blocks(inputs.rows[2], plan.QUERIES) * inputs.rows[0] * inputs.rows[1],
    )
    return rounded(made, {r.name: r.dtype for r in pair.results})


def backward(
    b: PairBackward,
    inputs: PairInputs,
    vectors: Values,
    rows: Values,
    wanted: tuple[str, ...],
    tiles: Mapping[str, Tile] | None = None,
) -> dict[str, Tensor]:
    """The gradients of q, k and v, by name, that are wanted.

    vectors   the vector result's adjoint, as d_<result>
    rows      the row values that the formulas read, (B, H, Sq) each
    """
    pair, found = b.forward, {}
    given = {n: t.contiguous() for n, t in rows.items() if n in b.rows}
    d = readable({n: t for n, t in vectors.items() if n == f"d_{b.vector}"})
    base = operands(inputs) | d | pointers(given) | pointers(inputs.tables)
    batch, heads, length = inputs.rows
    if "q" in wanted:
        made = written(
            {"dq": torch.empty(inputs.q.shape, dtype=inputs.q.dtype, device=inputs.q.device)}
        )
        ready = backward_kernel(b, "queries", blocks_of(pair, "queries"), *chosen(inputs, pair)[1:],
                                (tiles or {}).get("queries"))  # fmt: skip
        run(
            ready,
            inputs,
            base | pointers(made),
            _blocks(length, ready.plan.QUERIES) * batch * heads,
        )
        found["q"] = rounded(made, {"dq": pair.dtype})["dq"]
    if {"k", "v"} & set(wanted):
        shapes = {"dk": inputs.k} | (
            {"dv": inputs.v} if inputs.v is not None and b.weight is not None else {}
        )
        made = written({n: torch.empty(t.shape, dtype=t.dtype, device=t.device)
                        for n, t in shapes.items() if t is not None})  # fmt: skip
        ready = backward_kernel(b, "keys", blocks_of(pair, "keys"), *chosen(inputs, pair)[1:],
                                (tiles or {}).get("keys"))  # fmt: skip
        grid = _blocks(inputs.k.shape[2], ready.plan.KEYS) * batch * inputs.k.shape[1]
        run(ready, inputs, base | pointers(made), grid)
        named = rounded(made, dict.fromkeys(made, pair.dtype))
        found |= {n[1:]: t for n, t in named.items()}
    return found


def blocks_of(pair: Pair, direction: str) -> Blocks:
    """Ranges where the mask is one, lists of blocks otherwise."""
    if pair.mask is None:
        return Blocks()
    find = query_ranges if direction == "keys" else key_ranges
    found = find(pair.mask, {t.name: t.kind for t in pair.tables})
    if found is None:
        return Blocks(lists=True)
    return Blocks(found)


def chosen(inputs: PairInputs, pair: Pair) -> tuple[tuple[str, ...], str, tuple[int, int]]:
    """What a kernel depends on beside the pair: signs of numbers, precision, the device."""
    positive = tuple(n for n, v in inputs.numbers.items() if v > 0)
    high = torch.get_float32_matmul_precision() != "highest"
    precision = ("tf32" if high else "ieee") if pair.dtype == "float32" else ""
    if inputs.q.is_cuda:
        return positive, precision, torch.cuda.get_device_capability(inputs.q.device)
    return positive, precision, pair_plans.HOPPER


@lru_cache(maxsize=1024)
def forward_kernel(
    pair: Pair,
    blocks: Blocks,
    positive: tuple[str, ...],
    precision: str,
    capability: tuple[int, int],
    tile: Tile | None = None,
) -> Loaded:
    plan = pair_plans.plan(pair, "forward", capability, tile)
    title = f"{pair.name}_forward"
    kernel = ForwardPrinter(pair, plan, blocks, title, (), positive, precision).print()
    return loaded(kernel, plan)


@lru_cache(maxsize=1024)
def backward_kernel(
    b: PairBackward,
    direction: str,
    blocks: Blocks,
    precision: str,
    capability: tuple[int, int],
    tile: Tile | None = None,
) -> Loaded:
    plan = pair_plans.plan(b.forward, direction, capability, tile)
    title = f"{b.forward.name}_{direction}"
    return loaded(BackwardPrinter(b, plan, blocks, title, (), precision).print(), plan)


def loaded(kernel: PrintedKernel, plan: PairPlan) -> Loaded:
    return Loaded(kernel, plan, getattr(launch.load(kernel), kernel.name))


# ---- arguments -----------------------------------------------------------------------------------


def operands(inputs: PairInputs) -> dict[str, Tensor]:
    found = {"q": inputs.q, "k": inputs.k}
    return readable(found if inputs.v is None else found | {"v": inputs.v})


def readable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """NOTE: Triton's interpreter has no descriptors of bfloat16 (3.6 to 3.7)."""
    if not launch.interpreting():
        return tensors
    return {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in tensors.items()}


def pointers(tensors: Values) -> dict[str, Tensor]:
    return {f"{n.replace('.', '_')}_ptr": t for n, t in tensors.items()}


def written(made: dict[str, Tensor]) -> dict[str, Tensor]:
    """NOTE: Triton's interpreter truncates to bfloat16 (3.6 to 3.9): torch rounds instead."""
    if not launch.interpreting():
        return made
    return {n: torch.empty_like(t, dtype=torch.float32) if t.dtype == torch.bfloat16 else t
            for n, t in made.items()}  # fmt: skip


def rounded(made: dict[str, Tensor], dtypes: Mapping[str, str]) -> dict[str, Tensor]:
    return {n: t.to(getattr(torch, dtypes[n])) for n, t in made.items()}


def run(ready: Loaded, inputs: PairInputs, tensors: Values, programs: int) -> None:
    """One launch of a kernel on the stream and device of the inputs."""
    integers = inputs.sizes() | inputs.integers()
    integers |= {"H": inputs.rows[1], "group": inputs.group}
    given = [argument(ready, n, tensors, inputs.numbers, integers) for n in ready.kernel.arguments]
    options = dict(ready.kernel.constants)
    options |= {"num_warps": ready.plan.num_warps, "num_stages": ready.plan.num_stages}
    if inputs.q.is_cuda and inputs.q.device.index != torch.cuda.current_device():
        with torch.cuda.device(inputs.q.device):
            started(ready, programs, given, options)
    else:
        started(ready, programs, given, options)


def started(ready: Loaded, programs: int, given: list[Any], options: Mapping[str, int]) -> None:
    try:
        ready.function[(programs,)](*given, **options)
    except Exception as error:
        raise BackendError(
            message(
                f"the printed kernel {ready.kernel.name} failed: {type(error).__name__}: {error}",
                came=f"{ready.plan.describe()}",
                do='choose impl="tiles", and report the printed kernel',
            )
        ) from error


def argument(
    ready: Loaded,
    name: str,
    tensors: Values,
    numbers: Mapping[str, float],
    integers: Mapping[str, int],
) -> Any:
    if "_desc" in name:
        operand, _, part = name.partition("_desc")
        tile = ready.plan.KEYS if operand in ("k", "v") else ready.plan.QUERIES
        width = chunks(tensors[operand].shape[-1])[int(part[1:] or 0)]
        return descriptor(tensors[operand], tile, width)
    for table in (tensors, numbers, integers):
        if name in table:
            return table[name]
    raise AssertionError(f"{ready.kernel.name} asks for {name}")


def descriptor(t: Tensor, rows: int, width: int) -> Any:
    """A tensor descriptor of blocks (1, 1, rows, width); what lies outside reads as 0."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    t = aligned(t)
    step = 16 // t.element_size()
    strides = [s if n > 1 else step for s, n in zip(t.stride(), t.shape, strict=True)]
    return TensorDescriptor(t, list(t.shape), [*strides[:3], 1], [1, 1, rows, width])


def aligned(t: Tensor) -> Tensor:
    """The tensor itself if the hardware can copy its tiles, else a copy with padded rows.

    That needs a last stride of 1, all others a positive multiple of 16 bytes, a base of 16 bytes.
    """
    step = 16 // t.element_size()
    moving = [s for s, n in zip(t.stride()[:3], t.shape[:3], strict=True) if n > 1]
    plain = t.stride(3) == 1 or t.shape[3] == 1
    if plain and all(s > 0 and s % step == 0 for s in moving) and t.data_ptr() % 16 == 0:
        return t
    room = torch.empty(
        (*t.shape[:3], -(-t.shape[3] // step) * step), dtype=t.dtype, device=t.device
    )
    copy = room[..., : t.shape[3]]
    copy.copy_(t)
    return copy


def _blocks(length: int, tile: int) -> int:
    return -(-length // tile)
