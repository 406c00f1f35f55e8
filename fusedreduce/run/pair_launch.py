"""Launching a printed pair kernel: prepared once for lengths and strides, then by addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fusedreduce.errors import BackendError, message
from fusedreduce.plan.pairs import chunks
from fusedreduce.run import driver
from fusedreduce.run.descriptors import LINE, aligned, layout_of, padded
from fusedreduce.run.launch import Allocation
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_kernels import Loaded

Values = Mapping[str, Tensor]
CACHE = 2**25  # bytes of the second-level cache that the heads running side by side may fill
OFFSETS = ("q_offset", "k_offset")
MOST_ADDRESSES = 64  # whose descriptors are kept, of one operand


@dataclass
class Blocks:
    """A tensor descriptor but for its address: blocks of a tensor as the hardware copies them.

    encoded   what a launcher gets for it, by address
    """

    place: int
    tensor: str
    shape: list[int]
    strides: list[int]
    block: list[int]
    encoded: dict[int, list[Any]] = field(default_factory=dict)

    def of(self, t: Tensor) -> Any:
        t = t if t.data_ptr() % LINE == 0 else aligned(t)
        return driver.tensor_descriptor(t, self.shape, self.strides, self.block)


@dataclass
class PairLaunch:
    """A kernel with everything that lengths and strides decide.

    made      the tensors it writes
    given     its arguments in order, where they stay; the others are filled in at each call:
    pointers, blocks, numbers   their places, and what comes there
    copied    the operands that lie as the hardware cannot read them

    Triton specialises a build to which addresses are multiples of 16, to which integers need 64
    bits, and to strides and sizes of tables. So `built` keeps one build for each pattern of
    addresses and offsets, for all lengths, and a call whose pattern was seen goes straight to it.
    """

    ready: Loaded
    programs: int
    device: torch.device
    made: tuple[Allocation, ...]
    given: list[Any]
    pointers: tuple[tuple[int, str], ...]
    blocks: tuple[Blocks, ...]
    numbers: tuple[tuple[int, str], ...]
    copied: Mapping[str, Any]
    built: dict[Any, tuple[Any, driver.Straight | None]]

    def __post_init__(self) -> None:
        self.plan = self.ready.plan
        self.listed = any(name.endswith("_counts") for _, name in self.pointers)
        self.rounds = any(a.written != a.dtype for a in self.made)

    def __call__(self, tensors: Values, numbers: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors that the kernel writes, by name."""
        device = self.device
        made = {
            a.name: torch.empty_strided(a.shape, a.strides, dtype=a.written, device=device)
            for a in self.made
        }
        found = {**tensors, **made}
        for name, copy in self.copied.items():
            found[name] = copy(found[name])
        try:
            if device.type != "cuda" or device.index == torch._C._cuda_getDevice():
                self.launch(found, numbers)
            else:
                with torch.cuda.device(device):
                    self.launch(found, numbers)
        except Exception as error:
            raise self.failed(error) from error
        if self.rounds:
            return {a.name: made[a.name].to(a.dtype) for a in self.made}
        return made

    def launch(self, tensors: Values, numbers: Mapping[str, Any]) -> None:
        given, odd, wide = self.given.copy(), 0, 0
        for place, name in self.pointers:
            given[place] = address = tensors[name].data_ptr()
            odd |= address
        for place, name in self.numbers:
            given[place] = number = numbers[name]
            wide = 2 * wide + (name in OFFSETS and not -(2**31) <= number < 2**31)
        pattern: Any = wide
        if odd % LINE:
            pattern = wide, *[given[place] % LINE == 0 for place, _ in self.pointers]
        build, straight = self.built.get(pattern, (None, None))
        if straight is not None and straight.is_free:
            self.straight(straight, tensors, given)
            return
        for b in self.blocks:
            given[b.place] = b.of(tensors[b.tensor])
        if build is not None:
            build[(self.programs, 1, 1)](*given, *self.ready.constants)
            return
        for place, name in self.pointers:
            given[place] = tensors[name]
        made = self.ready.function[(self.programs,)](*given, **self.ready.options)
        if made is not None:  # the interpreter builds nothing
            self.built[pattern] = made, driver.straight(made)

    def straight(self, launcher: driver.Straight, tensors: Values, given: list[Any]) -> None:
        """The last descriptor first: each takes several places in what the launcher gets."""
        copies = []  # they must live until the launch
        for which in range(len(self.blocks) - 1, -1, -1):
            b = self.blocks[which]
            t = tensors[b.tensor]
            address = t.data_ptr()
            found = b.encoded.get(address)
            if found is None:
                made = b.of(t)
                found = launcher.encoded(which, made)
                if made.base is not t:
                    copies.append(made.base)
                elif len(b.encoded) < MOST_ADDRESSES:
                    b.encoded[address] = found
                else:
                    b.encoded = {address: found}
            given[b.place : b.place + 1] = found
        launcher(self.programs, self.device.index, (*given, *self.ready.constants))

    def failed(self, error: Exception) -> BackendError:
        name = self.ready.kernel.name
        return BackendError(
            message(
                f"the printed kernel {name} failed: {type(error).__name__}: {error}",
                came=f"{self.plan.describe()}",
                do='choose impl="tiles", and report the printed kernel',
            )
        )


def prepare(
    ready: Loaded,
    inputs: PairInputs,
    made: Mapping[str, tuple[torch.Size, torch.dtype]],
    operands: Values,
    read: Iterable[str],
    programs: int,
    more: Mapping[str, int] = MappingProxyType({}),
) -> PairLaunch:
    """The launch for tensors that lie as these do.

    made      shape and dtype of what is written
    operands  what is read in tiles: q, k, v and vectors; `read` names what is read by address
    more      integers that this kernel reads besides
    """
    by_tiles, copied, blocks = ready.plan.descriptors, {}, []
    integers = {**integers_of(inputs, ready), **more}
    known = {n.replace(".", "_"): n for n in (*made, *operands, *read)}
    for n, t in operands.items():
        copy = copying(t, by_tiles)
        if copy is not None:
            copied[n], t = copy, copy(t)
        if by_tiles:
            blocks += blocks_of(ready, n, t)
        else:
            integers |= {f"{n}_stride_{k}": s for k, s in enumerate(t.stride()[:3])}
    given = [integers.get(a) for a in ready.kernel.arguments]
    pointers = [(place, known.get(n, n)) for place, n in ready.places["ptr"]]
    numbers = [(place, n) for place, n in ready.places[""] if given[place] is None]
    blocks.sort(key=attrgetter("place"))
    fixed = (inputs.q.device, *[given[place] for place, _ in ready.places["stride"]])
    written = tuple(allocation(n, *m) for n, m in made.items())
    return PairLaunch(
        ready, programs, inputs.q.device, written,
        given, tuple(pointers), tuple(blocks), tuple(numbers), copied,
        ready.builds.setdefault(fixed, {}),
    )  # fmt: skip


def blocks_of(ready: Loaded, name: str, t: Tensor) -> list[Blocks]:
    """The blocks of an operand: one descriptor for each part of its width."""
    places = ready.places.get(name.replace(".", "_"), ())
    widths, strides = chunks(t.shape[3]), layout_of(t)
    rows = ready.plan.KEYS if name in ("k", "v") else ready.plan.QUERIES
    assert strides is not None, name
    return [Blocks(place, name, [*t.shape], strides, [1, 1, rows, widths[int(part)]])
            for place, part in places]  # fmt: skip


def integers_of(inputs: PairInputs, ready: Loaded) -> dict[str, int]:
    """Lengths, heads and how tables lie: what does not change from call to call."""
    found = inputs.integers() if inputs.tables else {}
    found |= {"Sq": inputs.q.shape[2], "Sk": inputs.k.shape[2]}
    found |= {"H": inputs.q.shape[1], "group": inputs.group}
    found["together"] = heads_together(inputs, ready.plan.direction == "keys")
    return found


def allocation(name: str, shape: torch.Size, dtype: torch.dtype) -> Allocation:
    """NOTE: Triton's interpreter truncates to bfloat16 (3.6 to 3.9): torch rounds instead."""
    rounds = driver.interpreting() and dtype == torch.bfloat16
    return Allocation(name, tuple(shape), dtype, torch.float32 if rounds else dtype)


def copying(t: Tensor, descriptors: bool) -> Any:
    """How an operand is copied to where the kernel can read it; None where it lies well."""
    if driver.interpreting() and t.dtype == torch.bfloat16:
        return _float  # NOTE: Triton's interpreter has no descriptors of bfloat16 (3.6 to 3.7)
    if descriptors:
        return None if layout_of(t) is not None else padded
    return None if t.stride(-1) == 1 or t.shape[-1] == 1 else Tensor.contiguous


def _float(t: Tensor) -> Tensor:
    t = t.float()
    return t if layout_of(t) is not None else padded(t)


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
