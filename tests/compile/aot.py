"""Ahead-of-time compilation of printed row kernels, and what the machine code needs."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusedreduce.kernels.access import integer_arguments
from fusedreduce.kernels.names import identifier
from fusedreduce.pipeline import Printed
from fusedreduce.run import launch

TYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1",
    "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
}  # fmt: skip


@dataclass(frozen=True)
class Needs:
    """registers of a thread, bytes of stack (spilled registers live there), shared bytes."""

    registers: int
    stack: int
    shared: int


def compile_for(made: Printed, capability: int) -> Needs:
    """Compile a printed kernel for one architecture, specialised as a launch would."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    function = getattr(launch.load(made.kernel), made.kernel.name)
    signature, constants, attributes = specialised(made)
    order = {name: k for k, name in enumerate(function.arg_names)}
    source = ASTSource(
        function,
        signature,
        constexprs=constants,
        attrs={(order[n],): [["tt.divisibility", 16]] for n in attributes},
    )
    options = {"num_warps": made.plan.num_warps, "num_stages": made.plan.num_stages}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return needs(binary)


def specialised(made: Printed) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Types, compile-time constants, and the arguments divisible by 16."""
    program = made.traced.program
    dtypes = {f"{identifier(i.name)}_ptr": i.dtype for i in program.inputs if not i.number}
    dtypes |= {f"{identifier(o.name)}_ptr": o.dtype for o in program.outputs}
    integers = integer_arguments(made.layout, program.rows, program.columns)
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(made.kernel.constants)
    divisible = []
    for name in made.kernel.arguments:
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
    return signature | dict.fromkeys(constants, "constexpr"), constants, divisible


def needs(binary: Any) -> Needs:
    """Read from the machine code by the cuobjdump that comes with Triton."""
    import triton.backends.nvidia as nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return Needs(int(found[1]), int(found[2]), binary.metadata.shared)
