"""Lists from a block map, as a kernel: which blocks are partial, and which are full, in order.

The text does not depend on a declaration: a map is a map. A program has one row of it, (0, 1, 2) of
the inner blocks of one outer block, and writes where the ones and where the twos are.
"""

from __future__ import annotations

from fusedreduce.kernels.rows import PrintedKernel

WIDTH = 128  # elements of a row at a time
KINDS = ("partial", "full")
_TEXT = """# block_lists / pairs / which blocks a kernel visits
#
# Printed by fusedreduce, the same for every mask.
#   map    (planes, outer, inner) by its steps: 0 nothing, 1 something, 2 everything counts
#   lists  counts (planes, outer); ids (planes, outer, inner), ascending, the first `count` of them

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["outer", "inner", "plane_step", "outer_step", "inner_step"])
def block_lists(
    map_ptr,
    partial_counts_ptr,
    partial_ids_ptr,
    full_counts_ptr,
    full_ids_ptr,
    outer,
    inner,
    plane_step,
    outer_step,
    inner_step,
    WIDTH: tl.constexpr,
):
    listed = tl.program_id(0).to(tl.int64)
    base = map_ptr + listed // outer * plane_step + listed % outer * outer_step
    partial_count = tl.full((), 0, tl.int32)
    full_count = tl.full((), 0, tl.int32)
    for start in range(0, inner, WIDTH):
        block = start + tl.arange(0, WIDTH)  # (WIDTH,)
        found = tl.load(base + block.to(tl.int64) * inner_step, mask=block < inner, other=0)
        partial = (found == 1).to(tl.int32)  # (WIDTH,)
        full = (found == 2).to(tl.int32)  # (WIDTH,)
        place = listed * inner + partial_count + tl.cumsum(partial, 0) - 1
        tl.store(partial_ids_ptr + place, block, mask=partial == 1)
        place = listed * inner + full_count + tl.cumsum(full, 0) - 1
        tl.store(full_ids_ptr + place, block, mask=full == 1)
        partial_count += tl.sum(partial)
        full_count += tl.sum(full)
    tl.store(partial_counts_ptr + listed, partial_count)
    tl.store(full_counts_ptr + listed, full_count)
"""


def block_lists_printed() -> PrintedKernel:
    tensors = ["map_ptr", *(f"{k}_{what}_ptr" for k in KINDS for what in ("counts", "ids"))]
    integers = ("outer", "inner", "plane_step", "outer_step", "inner_step")
    return PrintedKernel("block_lists", _TEXT, (*tensors, *integers), (("WIDTH", WIDTH),))
