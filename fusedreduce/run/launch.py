"""Launching printed row kernels: prepared once for shapes and strides, then by addresses."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any

import torch

from fusedreduce.errors import BackendError, message
from fusedreduce.kernels.access import integer_arguments
from fusedreduce.kernels.names import identifier
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.plan.layout import Layout, contiguous
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Input, Output, Program
from fusedreduce.run import cache, driver
from fusedreduce.version import __version__


def load(kernel: PrintedKernel) -> ModuleType:
    return cache.load(kernel.name, kernel.source, (__version__, driver.triton_version()))


@dataclass(frozen=True)
class Pack:
    """Tensors of one shape and dtype that lie one after another in a tensor of its own.

    pitch    elements from one to the next; `shape` is that of the tensor that holds them
    """

    name: str
    members: tuple[str, ...]
    shape: tuple[int, ...]
    pitch: int


@dataclass(frozen=True)
class Allocation:
    """An output to be made: its shape, and the dtype the kernel writes (see `allocation`)."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    written: torch.dtype

    @cached_property
    def strides(self) -> tuple[int, ...]:
        return contiguous(self.shape)


@dataclass
class Launch:
    """A kernel with everything that does not change from call to call.

    inputs    the tensors that are read, by name; `outputs` those that are made
    places    for each pointer of the kernel: which of these tensors, and at which element

    Triton specialises a build to which pointers are 16-byte aligned; everything else it looks at is
    fixed here. So `built` keeps one build for each pattern of alignment, and a call whose pattern
    was seen goes straight to it, with plain addresses: Triton asks a tensor for its own each time.
    """

    function: Any
    module: ModuleType
    kernel: PrintedKernel
    grid: tuple[int, int, int]
    device: torch.device
    inputs: tuple[str, ...]
    outputs: tuple[Allocation, ...]
    places: tuple[tuple[int, int, int], ...]  # (tensor, first element, its bytes)
    sizes: tuple[tuple[int, ...], ...]  # of what each pointer stands for
    numbers: tuple[str, ...]
    integers: tuple[int, ...]
    options: Mapping[str, int]
    origin: str
    built: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.constants = (*self.integers, *(v for _, v in self.kernel.constants))
        self.rounds = any(o.written != o.dtype for o in self.outputs)

    def __call__(self, values: Mapping[str, Any]) -> list[torch.Tensor]:
        """Run on tensors and numbers by input name; answers the outputs in order."""
        device = self.device
        # NOTE: torch.empty takes half a microsecond more to do the same
        made = [
            torch.empty_strided(o.shape, o.strides, dtype=o.written, device=device)
            for o in self.outputs
        ]
        tensors = [*[values[n] for n in self.inputs], *made]
        numbers = [values[n] for n in self.numbers]
        if device.type != "cuda" or device.index == torch._C._cuda_getDevice():
            self.launch(tensors, numbers)
        else:
            with torch.cuda.device(device):
                self.launch(tensors, numbers)
        if self.rounds:
            return [t.to(o.dtype) for t, o in zip(made, self.outputs, strict=True)]
        return made

    def launch(self, tensors: Sequence[torch.Tensor], numbers: Sequence[float]) -> None:
        base = [t.data_ptr() for t in tensors]
        pointers = [base[k] + at * size for k, at, size in self.places]
        odd = 0
        for p in pointers:
            odd |= p
        aligned = True if odd % 16 == 0 else tuple([p % 16 == 0 for p in pointers])
        ready = self.built.get(aligned)
        if ready is not None:
            ready(*pointers, *numbers, *self.constants)
            return
        views = [
            t if t.shape == s else t.flatten()[at : at + prod(s)].view(s)
            for (t, at), s in zip(
                ((tensors[k], at) for k, at, _ in self.places), self.sizes, strict=True
            )
        ]
        try:
            build = self.function[self.grid](*views, *numbers, *self.integers, **self.options)
        except Exception as error:
            raise self.failed(error) from error
        if build is not None:  # the interpreter builds nothing
            self.built[aligned] = driver.launcher(build, self.grid, self.device.index)

    def failed(self, error: Exception) -> BackendError:
        """Point home: the printed file, the declaration, the plan."""
        path = str(self.module.__file__)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if f.filename == path]
        at = f"{path}:{lines[-1]}" if lines else path
        return BackendError(
            message(
                f"the printed kernel {self.kernel.name} failed: {type(error).__name__}: {error}",
                where=f"{at}, printed from {self.origin}",
                came=f"options {dict(self.options)}",
                do="run the printed file by itself, or choose impl='tiles'",
            )
        )


def output_shape(program: Program, output: Output | Input) -> tuple[int, ...]:
    shape = []
    for axes in output.dims:
        n = 1
        for a in axes:
            n *= program.size[a]
        shape.append(n)
    return tuple(shape)


def program_strides(program: Program, tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The strides of every tensor of a program; what lies in a pack or is new is row-major."""
    strides = {
        i.name: tuple(tensors[i.name].stride())
        if i.name in tensors
        else contiguous(output_shape(program, i))
        for i in program.inputs
        if not i.number
    }
    made = {o.name: contiguous(output_shape(program, o)) for o in program.outputs if not o.summed}
    return strides | made


def prepare(
    program: Program,
    kernel: PrintedKernel,
    plan: RowPlan,
    layout: Layout,
    origin: str,
    device: torch.device,
    packs: Sequence[Pack] = (),
) -> Launch:
    """Build the launch of a printed row kernel."""
    module = load(kernel)
    found = integer_arguments(layout, program.rows, program.columns)
    tensors = [i.name for i in program.inputs if not i.number]
    pointers = {f"{identifier(n)}_ptr" for n in (*tensors, *(o.name for o in program.outputs))}
    numbers = tuple(i.name for i in program.inputs if i.number)
    integers = [found[a] for a in kernel.arguments if a not in pointers and a not in numbers]
    held = {m: p for p in packs for m in p.members}
    inputs = tuple(dict.fromkeys(held[n].name if n in held else n for n in tensors))
    made = allocations(program, plan.shares, held)
    order = {n: k for k, n in enumerate((*inputs, *(a.name for a in made)))}
    dtypes = {i.name: i.dtype for i in program.inputs} | {o.name: o.dtype for o in program.outputs}

    def place(name: str) -> tuple[int, int, int]:
        size = getattr(torch, dtypes[name]).itemsize
        if name not in held:
            return order[name], 0, size
        pack = held[name]
        return order[pack.name], pack.members.index(name) * pack.pitch, size

    names = [*tensors, *(o.name for o in program.outputs)]
    return Launch(
        function=getattr(module, kernel.name),
        module=module,
        kernel=kernel,
        grid=(plan.programs or -(-program.rows // plan.ROWS), 1, 1),
        device=device,
        inputs=inputs,
        outputs=made,
        places=tuple(map(place, names)),
        sizes=tuple(shape_of(program, n, plan.shares) for n in names),
        numbers=numbers,
        integers=tuple(integers),
        options=dict(kernel.constants)
        | {"num_warps": plan.num_warps, "num_stages": plan.num_stages},
        origin=origin,
    )


def shape_of(program: Program, name: str, shares: int) -> tuple[int, ...]:
    """Of an input as it lies in a pack, or of an output as the kernel writes it."""
    output = next((o for o in program.outputs if o.name == name), None)
    if output is None:
        return output_shape(program, program.by_name[name])
    shape = output_shape(program, output)
    return (shares, *shape) if output.summed else shape


def allocations(program: Program, shares: int, held: Mapping[str, Pack]) -> tuple[Allocation, ...]:
    """One for each output, or for each pack of them.

    NOTE: Triton's interpreter truncates to bfloat16 (3.6 to 3.9): torch rounds instead.
    """
    found: dict[str, Allocation] = {}
    for o in program.outputs:
        dtype = getattr(torch, o.dtype)
        written = torch.float32 if driver.interpreting() and dtype == torch.bfloat16 else dtype
        pack = held.get(o.name)
        name = o.name if pack is None else pack.name
        shape = shape_of(program, o.name, shares) if pack is None else pack.shape
        found[name] = Allocation(name, shape, dtype, written)
    return tuple(found.values())
