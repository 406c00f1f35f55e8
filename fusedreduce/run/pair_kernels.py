"""Which printed kernel a pair takes: its plan, the blocks it visits, its text, its build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import names
from fusedreduce.kernels.pair_frame import Blocks
from fusedreduce.kernels.pairs import ForwardPrinter
from fusedreduce.kernels.pairs_backward import BackwardPrinter
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.masks.ranges import key_ranges, query_ranges
from fusedreduce.pair import Pair
from fusedreduce.plan import pairs as pair_plans
from fusedreduce.plan.pairs import PairPlan, Tile
from fusedreduce.run import launch
from fusedreduce.run.pair_inputs import PairInputs

_LIES = re.compile(r"_(stride|size)_\d+$")


@dataclass(eq=False)
class Loaded:
    """A printed kernel with its plan, as a function of Triton."""

    kernel: PrintedKernel
    plan: PairPlan
    function: Any

    def __post_init__(self) -> None:
        self.builds: dict[Any, dict[Any, Any]] = {}

    @cached_property
    def places(self) -> dict[str, list[tuple[int, str]]]:
        """Where arguments are, and what comes there.

        "ptr"     the tensors that are read or written by address
        <operand> the parts of its width that are read by a descriptor
        "stride"  strides and sizes of tensors; "", lengths, offsets and numbers
        """
        found: dict[str, list[tuple[int, str]]] = {"ptr": [], "stride": [], "": []}
        for place, name in enumerate(self.kernel.arguments):
            operand, tile, part = name.partition("_desc")
            if tile:
                found.setdefault(operand, []).append((place, part[1:] or "0"))
            elif name.endswith("_ptr"):
                found["ptr"].append((place, name.removesuffix("_ptr")))
            else:
                found["stride" if _LIES.search(name) else ""].append((place, name))
        return found

    @cached_property
    def constants(self) -> tuple[Any, ...]:
        return tuple(v for _, v in self.kernel.constants)

    @cached_property
    def options(self) -> dict[str, Any]:
        plan = {"num_warps": self.plan.num_warps, "num_stages": self.plan.num_stages}
        return dict(self.kernel.constants) | plan


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


def plan_of(
    pair: Pair, direction: str, device: tuple[int, int], tile: Tile | None = None
) -> PairPlan:
    """The schedule for a device, as torch's switch for float32 products is set now."""
    exact = pair.state == "float64" or precision(pair) == "ieee"
    return _plan_of(pair, direction, device, tile, exact)


_plan_of = lru_cache(maxsize=1024)(pair_plans.plan)


def blocks_of(pair: Pair, inputs: PairInputs, plan: PairPlan) -> Blocks:
    """Ranges where the mask is one, lists of blocks otherwise; what is known of the lengths."""
    keys = plan.direction == "keys"
    length = inputs.q.shape[2] if keys else inputs.k.shape[2]
    even = length % (plan.QUERIES if keys else plan.KEYS) == 0
    whole = inputs.q.shape[2] % plan.QUERIES == inputs.k.shape[2] % plan.KEYS == 0
    return _blocks_of(pair, keys, even, whole, inputs.group > 1)


@lru_cache(maxsize=1024)
def _blocks_of(pair: Pair, keys: bool, even: bool, whole: bool, grouped: bool) -> Blocks:
    if pair.mask is None:
        return Blocks(even=even, grouped=grouped)
    find = query_ranges if keys else key_ranges
    found = find(pair.mask, {t.name: t.kind for t in pair.tables})
    if found is not None and not reads_tables(pair):
        return Blocks(found, even=even, whole=whole, grouped=grouped)
    read = set(names(pair.mask))
    return Blocks(lists=True, batch="b" in read, heads="h" in read, grouped=grouped)


@lru_cache(maxsize=1024)
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
    title = f"{pair.name}_{'split' if blocks.splits else 'forward'}"
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
