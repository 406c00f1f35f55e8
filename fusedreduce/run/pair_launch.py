"""Launching printed pair kernels: which blocks, which grid, arguments by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fusedreduce.errors import BackendError, message
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import is_const
from fusedreduce.kernels.rows import print_rows
from fusedreduce.pair import Pair
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import layout
from fusedreduce.plan.pairs import chunks
from fusedreduce.program import Program
from fusedreduce.run import launch, pair_table_gradients, pair_table_kernels
from fusedreduce.run.descriptors import descriptor
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_kernels import (
    Loaded,
    Tile,
    backward_kernel,
    blocks_of,
    capability,
    forward_kernel,
    listed,
    plan_of,
    precision,
)
from fusedreduce.run.pair_packing import packed, packs, unpacked

Values = Mapping[str, Tensor]
MOST_LAUNCHES = 256
CACHE = 2**25  # bytes of the second-level cache that the heads running side by side may fill


# ---- forward and backward ------------------------------------------------------------------------


def forward(pair: Pair, inputs: PairInputs, tile: Tile | None = None) -> dict[str, Tensor]:
    """The results of a pair by name."""
    if packs(pair, inputs):
        found = forward(*packed(pair, inputs), tile)
        return {n: unpacked(t, inputs) for n, t in found.items()}
    made = written(inputs.empty(pair))
    positive = tuple(n for n, v in inputs.numbers.items() if v > 0)
    plan = plan_of(pair, "forward", capability(inputs), tile)
    blocks = blocks_of(pair, inputs, plan)
    ready = forward_kernel(pair, plan, blocks, positive, precision(pair))
    tensors = operands(inputs) | pointers(made) | pointers(inputs.tables)
    tensors |= listed(pair, inputs, plan) if blocks.lists else {}
    batch, heads, length = inputs.rows
    run(ready, inputs, tensors, tiles_of(length, plan.QUERIES) * batch * heads)
    return rounded(made, {r.name: r.dtype for r in pair.results})


def backward(
    b: PairBackward,
    inputs: PairInputs,
    vectors: Mapping[str, Tensor | None],
    rows: Values,
    wanted: Sequence[str],
    tiles: Mapping[str, Tile] | None = None,
) -> dict[str, Tensor]:
    """The gradients of q, k, v and tables that are wanted, by name.

    vectors   the vector result's adjoint, as d_<result>
    rows      the row values that the formulas read, (B, H, Sq) each

    Gradients of tables: the same kernels write sums, `pair_table_gradients` adds them up.
    """
    given = pointers({n: t.contiguous() for n, t in rows.items() if n in b.rows})
    d = {f"d_{b.vector}": vectors.get(f"d_{b.vector}")} if b.vector else {}
    zero = {n: torch.zeros((), dtype=inputs.q.dtype, device=inputs.q.device).expand(
        *inputs.rows, b.forward.DV) for n, t in d.items() if t is None}  # fmt: skip
    present = {n: t for n, t in d.items() if t is not None} | zero
    base = operands(inputs) | by_identifier(readable(present)) | given | pointers(inputs.tables)
    found: dict[str, Tensor] = {}
    sloping = not is_const(b.score, 0)
    made = {"queries": ["q"] * sloping, "keys": ["k"] * sloping + ["v"] * (b.weight is not None)}
    sums: dict[str, Tensor] = {}
    for direction, results in made.items():
        more = pair_table_gradients.memory(b, direction, inputs)
        if more or set(results) & set(wanted):
            every = base | pointers(more)
            found |= gradients(b, direction, inputs, every, (tiles or {}).get(direction))
            sums |= more
    read = [n for n in wanted if n not in "qkv"]
    if read:
        asked = pair_table_gradients.by_kernels(b, inputs).intersection(read)
        for t in pair_table_kernels.launches(b, inputs, asked, (tiles or {}).get("tables")):
            every = base | pointers({t.sum.name: t.sums}) | t.lists
            run(t.ready, inputs, every, t.programs, t.integers)
            sums[t.sum.name] = t.sums
        found |= pair_table_gradients.gradients(b, inputs, vectors, rows, sums, read)
    of = {"q": inputs.q, "k": inputs.k} | ({} if inputs.v is None else {"v": inputs.v})
    found |= {n: torch.zeros_like(t) for n, t in of.items() if n in wanted and n not in found}
    return {n: g for n, g in found.items() if n in wanted}


def gradients(
    b: PairBackward, direction: str, inputs: PairInputs, base: Values, tile: Tile | None
) -> dict[str, Tensor]:
    """d q, or d k and d v."""
    pair = b.forward
    outer = inputs.k if direction == "keys" else inputs.q
    like = {} if is_const(b.score, 0) else {"dk" if direction == "keys" else "dq": outer}
    if direction == "keys" and b.weight is not None and inputs.v is not None:
        like["dv"] = inputs.v
    made = written({n: torch.empty(t.shape, dtype=t.dtype, device=t.device)
                    for n, t in like.items()})  # fmt: skip
    plan = plan_of(pair, direction, capability(inputs), tile)
    blocks = blocks_of(pair, inputs, plan)
    ready = backward_kernel(b, plan, blocks, precision(pair))
    tensors = dict(base) | pointers(made)
    tensors |= listed(pair, inputs, plan) if blocks.lists else {}
    size = plan.KEYS if direction == "keys" else plan.QUERIES
    run(ready, inputs, tensors, tiles_of(outer.shape[2], size) * outer.shape[0] * outer.shape[1])
    return {n[1:]: t for n, t in rounded(made, dict.fromkeys(made, pair.dtype)).items()}


def rows_by_kernel(program: Program, values: Values) -> list[Tensor]:
    """A row program by its printed kernel; kept for each way its inputs lie."""
    strides = {i.name: values[i.name].stride() for i in program.inputs}
    key = (id(program), *strides.values())  # the program is kept beside its launch
    if key not in _rows:
        lay = layout(program, launch.program_strides(program, values))
        plan = row_plans.plan(program, lay)
        kernel = print_rows(program, plan, lay, program.name)
        device = next(iter(values.values())).device
        _rows[key] = program, launch.prepare(program, kernel, plan, lay, program.name, device)
        if len(_rows) > MOST_LAUNCHES:
            _rows.pop(next(iter(_rows)))
    return _rows[key][1](values)


_rows: dict[Any, tuple[Program, launch.Launch]] = {}


# ---- arguments -----------------------------------------------------------------------------------


def operands(inputs: PairInputs) -> dict[str, Tensor]:
    found = {"q": inputs.q, "k": inputs.k}
    return readable(found if inputs.v is None else found | {"v": inputs.v})


def readable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """NOTE: Triton's interpreter has no descriptors of bfloat16 (3.6 to 3.7)."""
    if not launch.interpreting():
        return dict(tensors)
    return {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in tensors.items()}


def by_identifier(tensors: Values) -> dict[str, Tensor]:
    return {n.replace(".", "_"): t for n, t in tensors.items()}


def pointers(tensors: Values) -> dict[str, Tensor]:
    return {f"{n.replace('.', '_')}_ptr": t for n, t in tensors.items()}


def written(made: dict[str, Tensor]) -> dict[str, Tensor]:
    """NOTE: Triton's interpreter truncates to bfloat16 (3.6 to 3.9): torch rounds instead."""
    if not launch.interpreting():
        return made
    return {n: torch.empty_like(t, dtype=torch.float32) if t.dtype == torch.bfloat16 else t
            for n, t in made.items()}  # fmt: skip


def rounded(made: dict[str, Tensor], dtypes: Mapping[str, str]) -> dict[str, Tensor]:
    if not launch.interpreting():
        return made
    return {n: t.to(getattr(torch, dtypes[n])) for n, t in made.items()}


def run(
    ready: Loaded,
    inputs: PairInputs,
    tensors: Values,
    programs: int,
    more: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """One launch of a kernel on the stream and device of the inputs."""
    integers = inputs.sizes() | {**more} | {"H": inputs.q.shape[1], "group": inputs.group}
    integers["together"] = heads_together(inputs, ready.plan.direction == "keys")
    if inputs.tables:
        integers |= inputs.integers()
    if not ready.plan.descriptors:
        tensors, strides = by_address(tensors)
        integers |= strides
    given = [argument(ready, n, tensors, inputs.numbers, integers) for n in ready.kernel.arguments]
    device = inputs.q.device
    try:
        if device.type != "cuda" or device.index == torch._C._cuda_getDevice():
            ready(programs, given)
        else:
            with torch.cuda.device(device):
                ready(programs, given)
    except Exception as error:
        raise BackendError(
            message(
                f"the printed kernel {ready.kernel.name} failed: {type(error).__name__}: {error}",
                came=f"{ready.plan.describe()}",
                do='choose impl="tiles", and report the printed kernel',
            )
        ) from error


def heads_together(inputs: PairInputs, keys: bool) -> int:
    """How many heads' programs run side by side: a divisor of their number.

    What their inner loops read, k and v (for d k and d v: q and d_out), fits in the cache.
    """
    batch, heads, length = inputs.rows
    inner = length * inputs.group if keys else inputs.k.shape[2] / inputs.group
    width = inputs.q.shape[3] + (inputs.v.shape[3] if inputs.v is not None else 0)
    number = batch * (inputs.k.shape[1] if keys else heads)
    room = CACHE // max(1, int(inner * width * inputs.q.element_size()))
    return largest_divisor(number, max(1, room))


@lru_cache(maxsize=1024)
def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit.

    >>> largest_divisor(32, 12), largest_divisor(7, 3)
    (8, 1)
    """
    return max((d for d in range(1, min(number, limit) + 1) if number % d == 0), default=1)


def by_address(tensors: Values) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Operands as pointers, and the strides of their first three dimensions."""
    found = dict(tensors)
    strides: dict[str, int] = {}
    for n, t in tensors.items():
        if n.endswith("_ptr"):
            continue
        t = t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()
        found[f"{n}_ptr"] = t
        strides |= {f"{n}_stride_{k}": t.stride(k) for k in range(3)}
    return found, strides


def argument(
    ready: Loaded,
    name: str,
    tensors: Values,
    numbers: Mapping[str, float],
    integers: Mapping[str, int],
) -> Any:
    for table in (tensors, numbers, integers):
        if name in table:
            return table[name]
    operand, _, part = name.partition("_desc")
    tile = ready.plan.KEYS if operand in ("k", "v") else ready.plan.QUERIES
    width = chunks(tensors[operand].shape[-1])[int(part[1:] or 0)]
    return descriptor(tensors[operand], tile, width)


def tiles_of(length: int, tile: int) -> int:
    return -(-length // tile)
