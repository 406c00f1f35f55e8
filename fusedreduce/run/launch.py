"""Launching printed kernels: the only door to Triton."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from fusedreduce.errors import BackendError, message
from fusedreduce.kernels.access import integer_arguments
from fusedreduce.kernels.names import identifier
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.plan.layout import Layout, contiguous
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Output, Program
from fusedreduce.run import cache
from fusedreduce.version import __version__


def triton_version() -> str:
    """The installed Triton's version; BackendError when there is none."""
    try:
        import triton
    except ImportError as error:
        raise BackendError(
            message(
                "Triton is not installed",
                expected="triton >= 3.6",
                do='install it, or choose impl="tiles" or impl="eager"',
            )
        ) from error
    return str(triton.__version__)


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def load(kernel: PrintedKernel) -> ModuleType:
    return cache.load(kernel.name, kernel.source, (__version__, triton_version()))


@dataclass(frozen=True)
class Allocation:
    """An output to be made: its shape, and the dtype the kernel writes (see `make_outputs`)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    written: torch.dtype


@dataclass
class Launch:
    """A kernel with everything that does not change from call to call.

    Triton specialises a build to which pointers are 16-byte aligned; everything else it looks at is
    fixed here. So `built` keeps one build for each pattern of alignment, and a call whose pattern
    was seen goes straight to it.
    """

    function: Any
    module: ModuleType
    kernel: PrintedKernel
    grid: tuple[int, int, int]
    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    outputs: tuple[Allocation, ...]
    integers: tuple[int, ...]
    options: Mapping[str, int]
    origin: str
    built: dict[tuple[bool, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.constants = tuple(v for _, v in self.kernel.constants)
        self.rounds = any(o.written != o.dtype for o in self.outputs)

    def __call__(self, values: Mapping[str, Any]) -> list[torch.Tensor]:
        """Run on tensors and numbers by input name; answers the outputs in order."""
        inputs = [values[n] for n in self.tensors]
        device = inputs[0].device
        made = [torch.empty(o.shape, dtype=o.written, device=device) for o in self.outputs]
        arguments = (*inputs, *made, *(values[n] for n in self.numbers), *self.integers)
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            self.launch(inputs, arguments)
        else:
            with torch.cuda.device(device):
                self.launch(inputs, arguments)
        if self.rounds:
            return [t.to(o.dtype) for t, o in zip(made, self.outputs, strict=True)]
        return made

    def launch(self, inputs: Sequence[torch.Tensor], arguments: tuple[Any, ...]) -> None:
        aligned = tuple(t.data_ptr() % 16 == 0 for t in inputs)
        ready = self.built.get(aligned)
        if ready is not None:
            ready(*arguments, *self.constants)
            return
        try:
            build = self.function[self.grid](*arguments, **self.options)
        except Exception as error:
            raise self.failed(error) from error
        if build is not None:  # the interpreter builds nothing
            self.built[aligned] = build[self.grid]

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


def output_shape(program: Program, output: Output) -> tuple[int, ...]:
    shape = []
    for axes in output.dims:
        n = 1
        for a in axes:
            n *= program.size[a]
        shape.append(n)
    return tuple(shape)


def program_strides(
    program: Program, tensors: Mapping[str, torch.Tensor]
) -> dict[str, tuple[int, ...]]:
    """The strides of every tensor of a program; new outputs are row-major."""
    strides = {i.name: tuple(tensors[i.name].stride()) for i in program.inputs if not i.number}
    made = {o.name: contiguous(output_shape(program, o)) for o in program.outputs if not o.summed}
    return strides | made


def prepare(
    program: Program, kernel: PrintedKernel, plan: RowPlan, layout: Layout, origin: str
) -> Launch:
    """Build the launch of a printed row kernel."""
    module = load(kernel)
    found = integer_arguments(layout, program.rows, program.columns)
    pointers = {f"{identifier(i.name)}_ptr" for i in program.inputs} | {
        f"{identifier(o.name)}_ptr" for o in program.outputs
    }
    numbers = tuple(i.name for i in program.inputs if i.number)
    integers = [found[a] for a in kernel.arguments if a not in pointers and a not in numbers]
    return Launch(
        function=getattr(module, kernel.name),
        module=module,
        kernel=kernel,
        grid=(plan.programs or -(-program.rows // plan.ROWS), 1, 1),
        tensors=tuple(i.name for i in program.inputs if not i.number),
        numbers=numbers,
        outputs=tuple(allocation(program, o, plan.shares) for o in program.outputs),
        integers=tuple(integers),
        options=dict(kernel.constants)
        | {"num_warps": plan.num_warps, "num_stages": plan.num_stages},
        origin=origin,
    )


def allocation(program: Program, output: Output, shares: int) -> Allocation:
    """NOTE: Triton's interpreter truncates to bfloat16 (3.6 to 3.9): torch rounds instead."""
    dtype = getattr(torch, output.dtype)
    narrow = interpreting() and dtype == torch.bfloat16
    shape = output_shape(program, output)
    shape = (shares, *shape) if output.summed else shape
    return Allocation(shape, dtype, torch.float32 if narrow else dtype)
