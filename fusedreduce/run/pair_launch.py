"""Launching printed pair kernels: which blocks, which grid, arguments by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.blocks.bound import Bound
from fusedreduce.blocks.classify import classify
from fusedreduce.blocks.lists import BlockLists, lists
from fusedreduce.errors import BackendError, message
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import is_const, names
from fusedreduce.kernels.pair_frame import Blocks
from fusedreduce.kernels.pairs import ForwardPrinter
from fusedreduce.kernels.pairs_backward import BackwardPrinter
from fusedreduce.kernels.rows import PrintedKernel, print_rows
from fusedreduce.masks.ranges import key_ranges, query_ranges
from fusedreduce.pair import Pair
from fusedreduce.plan import pairs as pair_plans
from fusedreduce.plan import rows as row_plans
from fusedreduce.plan.layout import layout
from fusedreduce.plan.pairs import PairPlan, chunks
from fusedreduce.program import Program
from fusedreduce.run import launch, pair_gradients
from fusedreduce.run.descriptors import LINE, descriptor
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_packing import packed, packs, unpacked

Values = Mapping[str, Tensor]
Tile = tuple[int, int, int, int]  # queries, keys, warps, stages
MOST_LAUNCHES = 256
CACHE = 2**25  # bytes of the second-level cache that the heads running side by side may fill
_STRIDE = re.compile(r"_(stride|size)_\d$")


@dataclass
class Loaded:
    """A printed kernel, ready to be launched.

    Triton specialises a build to which addresses and strides are multiples of 16. Where the kernel
    takes no strides and every address is one, `built` is the build, and a call goes straight to it.
    """

    kernel: PrintedKernel
    plan: PairPlan
    function: Any
    built: dict[int, Any] = field(default_factory=dict)  # by device

    def __post_init__(self) -> None:
        self.plain = not any(_STRIDE.search(n) for n in self.kernel.arguments)
        self.constants = tuple(v for _, v in self.kernel.constants)
        self.options = dict(self.kernel.constants)
        self.options |= {"num_warps": self.plan.num_warps, "num_stages": self.plan.num_stages}

    def __call__(self, programs: int, given: Sequence[Any]) -> None:
        fast = self.plain and all(g.data_ptr() % LINE == 0 for g in given if isinstance(g, Tensor))
        device = next(g.get_device() for g in given if isinstance(g, Tensor))
        if fast and device in self.built:
            addresses = (g.data_ptr() if isinstance(g, Tensor) else g for g in given)
            self.built[device][(programs, 1, 1)](*addresses, *self.constants)
            return
        build = self.function[(programs,)](*given, **self.options)
        if fast and build is not None:  # the interpreter builds nothing
            self.built[device] = build


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

    Gradients of tables come from the tiles: sums at indices that only the user's function knows.
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
    for direction, results in made.items():
        if set(results) & set(wanted):
            found |= gradients(b, direction, inputs, base, (tiles or {}).get(direction))
    read = [n for n in wanted if n not in "qkv"]
    if read:
        found |= pair_gradients.backward(b, inputs, vectors, rows, read)
    of = {"q": inputs.q, "k": inputs.k} | ({} if inputs.v is None else {"v": inputs.v})
    found |= {n: torch.zeros_like(t) for n, t in of.items() if n in wanted and n not in found}
    return {n: g for n, g in found.items() if n in wanted}


def gradients(
    b: PairBackward, direction: str, inputs: PairInputs, base: Values, tile: Tile | None
) -> dict[str, Tensor]:
    """d q, or d k and d v."""
    pair = b.forward
    like = {"dq": inputs.q}
    if direction == "keys":
        like = {} if is_const(b.score, 0) else {"dk": inputs.k}
        if b.weight is not None and inputs.v is not None:
            like["dv"] = inputs.v
    made = written({n: torch.empty(t.shape, dtype=t.dtype, device=t.device)
                    for n, t in like.items()})  # fmt: skip
    plan = plan_of(pair, direction, capability(inputs), tile)
    blocks = blocks_of(pair, inputs, plan)
    ready = backward_kernel(b, plan, blocks, precision(pair))
    tensors = dict(base) | pointers(made)
    tensors |= listed(pair, inputs, plan) if blocks.lists else {}
    first = next(iter(like.values()))
    size = plan.KEYS if direction == "keys" else plan.QUERIES
    run(ready, inputs, tensors, tiles_of(first.shape[2], size) * first.shape[0] * first.shape[1])
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


# ---- which kernel --------------------------------------------------------------------------------


def capability(inputs: PairInputs) -> tuple[int, int]:
    """Of the device; of the one that plans are made for where there is none."""
    return _capability(inputs.q.device)


@lru_cache(maxsize=64)
def _capability(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return pair_plans.HOPPER
    return torch.cuda.get_device_capability(device)


def precision(pair: Pair) -> str:
    """Of float32 products, as torch's switch says."""
    if pair.dtype != "float32":
        return ""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@lru_cache(maxsize=1024)
def plan_of(
    pair: Pair, direction: str, device: tuple[int, int], tile: Tile | None = None
) -> PairPlan:
    return pair_plans.plan(pair, direction, device, tile)


def blocks_of(pair: Pair, inputs: PairInputs, plan: PairPlan) -> Blocks:
    """Ranges where the mask is one, lists of blocks otherwise; what is known of the lengths."""
    keys = plan.direction == "keys"
    length = inputs.q.shape[2] if keys else inputs.k.shape[2]
    even = length % (plan.QUERIES if keys else plan.KEYS) == 0
    return _blocks_of(pair, keys, even, inputs.group > 1)


@lru_cache(maxsize=1024)
def _blocks_of(pair: Pair, keys: bool, even: bool, grouped: bool) -> Blocks:
    if pair.mask is None:
        return Blocks(even=even, grouped=grouped)
    find = query_ranges if keys else key_ranges
    found = find(pair.mask, {t.name: t.kind for t in pair.tables})
    if found is not None and not reads_tables(pair):
        return Blocks(found, even=even, grouped=grouped)
    read = set(names(pair.mask))
    return Blocks(lists=True, batch="b" in read, heads="h" in read, grouped=grouped)


def reads_tables(pair: Pair) -> bool:
    return pair.mask is not None and any(t.name in names(pair.mask) for t in pair.tables)


@lru_cache(maxsize=1024)
def forward_kernel(
    pair: Pair, plan: PairPlan, blocks: Blocks, positive: tuple[str, ...], precise: str
) -> Loaded:
    return loaded(forward_printed(pair, plan, blocks, positive, precise), plan)


def forward_printed(
    pair: Pair, plan: PairPlan, blocks: Blocks, positive: tuple[str, ...], precise: str
) -> PrintedKernel:
    title = f"{pair.name}_forward"
    return ForwardPrinter(pair, plan, blocks, title, (), positive, precise).print()


@lru_cache(maxsize=1024)
def backward_kernel(b: PairBackward, plan: PairPlan, blocks: Blocks, precise: str) -> Loaded:
    return loaded(backward_printed(b, plan, blocks, precise), plan)


def backward_printed(
    b: PairBackward, plan: PairPlan, blocks: Blocks, precise: str
) -> PrintedKernel:
    title = f"{b.forward.name}_{plan.direction}"
    return BackwardPrinter(b, plan, blocks, title, (), precise).print()


def loaded(kernel: PrintedKernel, plan: PairPlan) -> Loaded:
    return Loaded(kernel, plan, getattr(launch.load(kernel), kernel.name))


# ---- block lists ---------------------------------------------------------------------------------


def listed(pair: Pair, inputs: PairInputs, plan: PairPlan) -> dict[str, Tensor]:
    """The blocks that a kernel visits, partial ones first, as its pointers."""
    found = block_lists(pair, inputs, plan.QUERIES, plan.KEYS)
    if plan.direction == "keys":
        tensors = (found.q_partial_count, found.q_partial_ids, found.q_full_count, found.q_full_ids)
    else:
        tensors = (found.partial_count, found.partial_ids, found.full_count, found.full_ids)
    names_ = ("partial_counts_ptr", "partial_ids_ptr", "full_counts_ptr", "full_ids_ptr")
    return dict(zip(names_, tensors, strict=True))


def block_lists(pair: Pair, inputs: PairInputs, queries: int, keys: int) -> BlockLists:
    """Of the mask, on the device; made anew at every call, as its tensors may have changed.

    A block that the end of the queries or keys cuts off is never full: kernels test its positions.
    """
    assert pair.mask is not None
    read = set(names(pair.mask))
    tables = {n: t for n, t in inputs.tables.items() if n in read}
    bound = Bound(pair.mask, tables, inputs.q.device, inputs.sizes())
    batch, heads, length = inputs.rows
    found = classify(bound, batch, heads, length, inputs.k.shape[2], queries, keys)
    found = found.clone()
    if inputs.k.shape[2] % keys:  # a block that is cut off at its end is masked there
        found[..., -1].clamp_(max=1)
    if length % queries:
        found[..., -1, :].clamp_(max=1)
    shape = (batch if "b" in read else 1, heads if "h" in read else 1, *found.shape[2:])
    return lists(found.expand(shape))


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


def run(ready: Loaded, inputs: PairInputs, tensors: Values, programs: int) -> None:
    """One launch of a kernel on the stream and device of the inputs."""
    integers = inputs.sizes() | {"H": inputs.q.shape[1], "group": inputs.group}
    integers["together"] = heads_together(inputs, ready.plan.direction == "keys")
    if inputs.tables:
        integers |= inputs.integers()
    if not ready.plan.descriptors:
        tensors, more = by_address(tensors)
        integers |= more
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
