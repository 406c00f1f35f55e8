"""Ahead-of-time compilation of printed pair kernels, and what the machine code needs."""

from __future__ import annotations

from typing import Any

from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.pair import Pair
from fusedreduce.plan.pairs import chunks
from fusedreduce.run.pair_launch import Loaded
from tests.compile.aot import TYPES, Needs, needs

COUNTS = ("partial_counts_ptr", "partial_ids_ptr", "full_counts_ptr", "full_ids_ptr")


def compile_for(ready: Loaded, pair: Pair, b: PairBackward | None, capability: int) -> Needs:
    """Compile for one architecture, specialised as a launch with aligned tensors would."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    signature = {n: type_of(n, ready, pair, b) for n in ready.kernel.arguments}
    constants: dict[str, Any] = dict(ready.kernel.constants)
    order = {name: k for k, name in enumerate(ready.function.arg_names)}
    pointers = [n for n in signature if n.endswith("_ptr") or "_stride_" in n]
    source = ASTSource(
        ready.function,
        signature | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(order[n],): [["tt.divisibility", 16]] for n in pointers},
    )
    options = {"num_warps": ready.plan.num_warps, "num_stages": ready.plan.num_stages}
    target = GPUTarget("cuda", capability, 32)
    return needs(triton.compile(source, target=target, options=options))


def type_of(name: str, ready: Loaded, pair: Pair, b: PairBackward | None) -> str:
    if "_desc" in name:
        operand, _, part = name.partition("_desc")
        rows = ready.plan.KEYS if operand in ("k", "v") else ready.plan.QUERIES
        width = chunks(pair.D if operand in ("q", "k") else pair.DV)[int(part[1:] or 0)]
        return f"tensordesc<{TYPES[pair.dtype]}[1,1,{rows},{width}]>"
    if name in COUNTS:
        return "*i32"
    if name.endswith("_ptr"):
        return f"*{TYPES[dtype_of(name.removesuffix('_ptr'), pair)]}"
    return "fp32" if name in pair.numbers else "i32"


def dtype_of(name: str, pair: Pair) -> str:
    known = {r.name: r.dtype for r in pair.results} | {t.name: t.dtype for t in pair.tables}
    wide = name in ("q", "k", "v", "dq", "dk", "dv") or name.startswith("d_")
    return known.get(name, pair.dtype if wide and name != "d_lse" else pair.state)
