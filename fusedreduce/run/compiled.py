"""What the machine code of a printed kernel needs, read from the compiler; without a GPU too."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusedreduce.errors import BackendError, message
from fusedreduce.kernels.access import integer_arguments
from fusedreduce.kernels.names import identifier
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.pair import Pair
from fusedreduce.plan.layout import Layout
from fusedreduce.plan.pairs import PairPlan, chunks
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Program
from fusedreduce.run import driver, launch

TYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1",
    "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64",
}  # fmt: skip
COUNTS = ("partial_counts_ptr", "partial_ids_ptr", "full_counts_ptr", "full_ids_ptr")
Argument = tuple[dict[str, str], dict[str, Any], list[str]]  # types, constants, aligned ones


@dataclass(frozen=True)
class Needs:
    """registers of a thread, bytes of stack (spilled registers live there), shared bytes."""

    registers: int
    stack: int
    shared: int

    def __str__(self) -> str:
        spills = f"{self.stack} bytes of stack (spills)" if self.stack else "no spills"
        return f"{self.registers} registers a thread, {spills}, {self.shared:,} bytes shared"


# ---- row kernels ---------------------------------------------------------------------------------


def row_needs(
    program: Program, kernel: PrintedKernel, plan: RowPlan, layout: Layout, capability: int
) -> Needs:
    """Of a row kernel, specialised as a launch with aligned tensors would."""
    found = row_arguments(program, kernel, layout)
    return built(kernel, found, options(plan), capability)


def row_arguments(program: Program, kernel: PrintedKernel, layout: Layout) -> Argument:
    """Types, compile-time constants, and the arguments divisible by 16."""
    dtypes = {f"{identifier(i.name)}_ptr": i.dtype for i in program.inputs if not i.number}
    dtypes |= {f"{identifier(o.name)}_ptr": o.dtype for o in program.outputs}
    integers = integer_arguments(layout, program.rows, program.columns)
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(kernel.constants)
    divisible = []
    for name in kernel.arguments:
        if name in dtypes:
            signature[name] = f"*{TYPES[dtypes[name]]}"
            divisible.append(name)
        elif name not in integers:
            signature[name] = "fp64" if program.state == "float64" else "fp32"
        elif integers[name] == 1:
            constants[name] = 1
        else:
            signature[name] = "i32" if integers[name] < 2**31 else "i64"
            divisible += [name] * (integers[name] % 16 == 0)
    return signature, constants, divisible


# ---- pair kernels --------------------------------------------------------------------------------


def pair_needs(kernel: PrintedKernel, plan: PairPlan, pair: Pair, capability: int) -> Needs:
    """Of a forward, or of a backward kernel of `pair` (the forward that saves)."""
    types = {n: pair_type(n, plan, pair) for n in kernel.arguments}
    pointers = [n for n in types if n.endswith("_ptr") or "_stride_" in n]
    found = types, dict(kernel.constants), pointers
    return built(kernel, found, options(plan), capability)


def pair_type(name: str, plan: PairPlan, pair: Pair) -> str:
    if "_desc" in name:
        operand, _, part = name.partition("_desc")
        rows = plan.KEYS if operand in ("k", "v") else plan.QUERIES
        width = chunks(pair.D if operand in ("q", "k") else pair.DV)[int(part[1:] or 0)]
        return f"tensordesc<{TYPES[pointed(operand, pair)]}[1,1,{rows},{width}]>"
    if name in COUNTS:
        return "*i32"
    if name == "map_ptr":
        return "*i8"
    if name.endswith("_ptr"):
        return f"*{TYPES[pointed(name.removesuffix('_ptr'), pair)]}"
    if name in pair.numbers:
        return "fp64" if pair.state == "float64" else "fp32"
    return "i32"


def pointed(name: str, pair: Pair) -> str:
    """The dtype of what a pointer points to: a result, a table, a gradient or a row value."""
    known = {r.name.replace(".", "_"): r.dtype for r in pair.results}
    known |= {t.name: t.dtype for t in pair.tables}
    known |= {f"d_{r.name}".replace(".", "_"): r.dtype for r in pair.results if r.vector}
    narrow = name in ("q", "k", "v", "dq", "dk", "dv")
    return known.get(name, pair.dtype if narrow else pair.state)


# ---- both ----------------------------------------------------------------------------------------


def options(plan: RowPlan | PairPlan) -> dict[str, int]:
    return {"num_warps": plan.num_warps, "num_stages": plan.num_stages}


def built(
    kernel: PrintedKernel, given: Argument, options: Mapping[str, int], capability: int
) -> Needs:
    """Compile, then read; `BackendError` where Triton is missing, interprets, or gives up."""
    if driver.interpreting():
        raise BackendError(message("Triton interprets here: TRITON_INTERPRET=1 is set"))
    function = getattr(launch.load(kernel), kernel.name)
    try:
        return read(driver.compiled(function, *given, options, capability))
    except Exception as error:
        told = str(error).strip().partition("\n")[0]
        raise BackendError(
            message(f"{kernel.name} was not compiled for sm_{capability}",
                    came=f"{type(error).__name__}: {told}")
        ) from error  # fmt: skip


def read(binary: Any) -> Needs:
    """From the machine code, by the cuobjdump that comes with Triton."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [str(driver.reading_tool()), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if not found:
        raise BackendError(message("cuobjdump tells no registers", came=text[-200:]))
    return Needs(int(found[1]), int(found[2]), binary.metadata.shared)
