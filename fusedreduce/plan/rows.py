"""The schedule of a row kernel: columns a step, rows a program, warps."""

from __future__ import annotations

from dataclasses import dataclass

from fusedreduce.ir.expr import names
from fusedreduce.plan.device import WARP
from fusedreduce.plan.layout import Layout
from fusedreduce.program import Output, Program

BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip
LOOP_BLOCK = 4096  # columns of a step when the row does not fit
REREAD_BLOCK = 16384  # and when it is read a second time
MAX_BLOCK = 16384  # the longest row kept in registers, in 4-byte values
SHORT_TILE = 2048  # elements of a program that takes several short rows
OWNED_BLOCK = 4096  # columns of a program that owns part of a row
IN_FLIGHT = 8192  # numbers a multiprocessor and stage, of a persistent kernel
STAGED_BYTES = 163840  # of a multiprocessor's shared memory, for operands of the next two steps
PROCESSORS = 132  # of the device that a plan made without one is for
STRIDED_TILE = (64, 64)  # rows x columns when neighbouring columns lie far apart


@dataclass(frozen=True)
class RowPlan:
    """How a row kernel runs. A function of the row length, dtypes and strides, never of the number
    of rows: a row's bits do not depend on its batch.

    strategy      "block": the row on chip, each operand read once; "loop": BLOCK columns a step,
                  one pass a level and one for the outputs that are elements
    even          N is a multiple of BLOCK: no tile needs a column mask
    programs      0: one program a tile of rows; else so many, each going through its share of them
    parts         into how many parts the columns are cut, each the task of programs of its own
    bytes_moved   of one call, each operand read once a pass and each output written once
    """

    strategy: str
    ROWS: int
    BLOCK: int
    num_warps: int
    num_stages: int
    even: bool
    bytes_moved: int
    passes: int
    programs: int = 0
    parts: int = 1

    @property
    def shares(self) -> int:
        """How many programs share the rows of one part of the columns."""
        return self.programs // self.parts

    @property
    def tiled(self) -> bool:
        """Is a tile (ROWS, BLOCK)? Else one row, (BLOCK,)."""
        return self.ROWS > 1 or self.programs > 0

    def describe(self) -> str:
        if self.programs:
            owned = f", {self.parts} parts of the columns" * (self.parts > 1)
            step = f"{self.ROWS} rows a step, BLOCK {self.BLOCK}, {self.num_warps} warps"
            return f"persistent, {step}{owned}"
        steps = "one program a row" if self.ROWS == 1 else f"{self.ROWS} rows a program"
        passes = "one pass" if self.passes == 1 else f"{self.passes} passes"
        how = "the row in one block" if self.strategy == "block" else passes
        return f"{steps}, {how}, BLOCK {self.BLOCK}, {self.num_warps} warps"


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def plan(
    program: Program, layout: Layout, strategy: str | None = None, processors: int = PROCESSORS
) -> RowPlan:
    """The schedule for these sizes and strides; `strategy` forces "block" or "loop" (for tests)."""
    columns = program.columns
    block = next_power_of_two(columns)
    strided = reads_strided(program, layout)
    if program.sums:
        return persistent(program, block, processors)
    if strategy is None:
        strategy = "block" if fits(program, layout, block, strided) else "loop"
    if strategy == "loop":
        block = min(block, STRIDED_TILE[1] if strided else loop_block(program, layout))
        if strided:
            split = len(layout.reduced) > 1  # indices of an element take registers of their own
            rows, warps = STRIDED_TILE[0] // (state_width(program) << split), 8
        else:
            rows, warps = 1, max(4, min(block // 512, 16))
    else:
        rows = rows_of_block(program, block, strided)
        warps = warps_of_block(program, block, rows * block)
    passes = passes_of(program) if strategy == "loop" else 1
    return RowPlan(
        strategy=strategy,
        ROWS=rows,
        BLOCK=block,
        num_warps=warps,
        num_stages=3,
        even=columns % block == 0,
        bytes_moved=bytes_moved(program, passes),
        passes=passes,
    )


def persistent(program: Program, block: int, processors: int) -> RowPlan:
    """Few programs that go through all rows with the columns' sums in registers.

    R * k * BLOCK = 8192 numbers in flight a multiprocessor and stage, k programs on each, k * w = 8
    warps: every winner of the measurements behind this holds two stages of as many bytes. Without
    a reduction along the row its columns may be cut: each part has programs of its own.
    """
    if not program.stages:
        block = min(block, OWNED_BLOCK // state_width(program))
    parts = -(-program.columns // block)
    shared = 4 if block <= 256 else 2 if block <= 1024 else 1
    fit = STAGED_BYTES // (2 * shared * staged_bytes(program, block))
    rows = max(1, min(IN_FLIGHT // (block * shared), fit, 8))
    rows = next_power_of_two(rows + 1) // 2
    warps = 8 // shared * state_width(program)
    return RowPlan(
        strategy="block",
        ROWS=rows,
        BLOCK=block,
        num_warps=max(warps // (2 if block <= 256 else 1), 1),
        num_stages=3,
        even=program.columns % block == 0,
        bytes_moved=bytes_moved(program, 1),
        passes=1,
        programs=parts * max(1, min(shared * processors // parts, -(-program.rows // rows))),
        parts=parts,
    )


def sums_fit(program: Program) -> bool:
    """May the columns' sums of a program stay in registers beside a row?"""
    block = next_power_of_two(program.columns)
    small = block * state_width(program) <= IN_FLIGHT
    staged = 2 * staged_bytes(program, block) <= STAGED_BYTES
    return len(program.reduced) == 1 and small and staged


def staged_bytes(program: Program, block: int) -> int:
    """Of one row of every element operand, as it waits in shared memory for its turn."""
    names = [i.name for i in program.inputs if not i.number and is_element(program, i.name)]
    return max(1, block * sum(BYTES[program.by_name[n].dtype] for n in names))


def is_element(program: Program, name: str) -> bool:
    """Does this input vary along outer and reduced axes both?"""
    return program.place_of_name(name) == "element"


def reads_strided(program: Program, layout: Layout) -> bool:
    """Do neighbouring columns of some element operand lie apart while neighbouring rows touch?"""
    tensors = [i.name for i in program.inputs if not i.number and is_element(program, i.name)]
    strides = [layout.of(n) for n in tensors]
    return any(r[-1] != 1 and o[-1] == 1 for o, r in strides)


def fits(program: Program, layout: Layout, block: int, strided: bool) -> bool:
    """May a whole row stay in registers?"""
    limit = SHORT_TILE if strided else MAX_BLOCK
    general = [s.record for s in program.stages if s.record.form == "general"]
    if general:
        limit = min(limit, LOOP_BLOCK)
    if not element_outputs(program):
        limit //= 2
    slots = max((len(r.slots) for r in general), default=0)
    return block * state_width(program) * max(live_tiles(program, layout), slots) <= limit


def live_tiles(program: Program, layout: Layout) -> float:
    """How many values of a row's length are alive at once.

    Operands and outputs that are elements count whole, those that are columns half (they are shared
    and read late), and the indices of a row that is not one stride two.
    """
    tensors = [i.name for i in program.inputs if not i.number]
    places = [program.place_of_name(n) for n in tensors]
    elements = places.count("element") + len(element_outputs(program)) - 1
    return max(elements, 1) + places.count("column") / 2 + 2 * (len(layout.reduced) > 1)


def state_width(program: Program) -> int:
    """Registers of one number of the state."""
    return 2 if program.state == "float64" else 1


def rows_of_block(program: Program, block: int, strided: bool) -> int:
    """Several rows a program when they are short."""
    if block <= 512 or strided:
        tile = SHORT_TILE * 2 if strided else SHORT_TILE
        return max(1, min(tile // block, 64))
    return 2 if block == 1024 and not element_outputs(program) else 1


def warps_of_block(program: Program, block: int, elements: int) -> int:
    """16 to 32 numbers a thread; 64 where some operands only wait for the reductions.

    They wait as they lie in memory. d log_softmax of bf16 rows of 4096 on an H200, GB/s with 2, 4
    and 8 warps: 4263, 4064, 3830; d softmax, which reduces over both operands: 3602, 3999, 3994.
    """
    if block <= 512:
        return 4
    numbers = 64 if waits(program) else 32
    warps = elements * state_width(program) // (WARP * numbers)
    return max(2, min(next_power_of_two(max(warps, 1)), 32))


def waits(program: Program) -> bool:
    """Is an operand that is an element read by outputs alone, beside one that is reduced?"""
    elements = {i.name for i in program.inputs if not i.number and is_element(program, i.name)}
    reduced = elements & {n for s in program.stages for _, e in s.operands for n in names(e)}
    return bool(reduced) and reduced < elements


def loop_block(program: Program, layout: Layout) -> int:
    """Columns of a step.

    A row that is read a second time is to lie in the L2 cache still: few rows in flight, by fat
    tiles. bf16 rows of 32768, GB/s with 4096 columns and 8 warps, then with 16384 and 16, on an
    H200: softmax 2753, 3369; its backward 2553, 3027; layer norm 2740, 3353.
    """
    if any(s.record.form == "general" for s in program.stages):
        return LOOP_BLOCK // 4
    twice = program.stages and element_outputs(program) and state_width(program) == 1
    split = len(layout.reduced) > 1  # group norm with 16384: 1972, with 4096: 2886
    return REREAD_BLOCK if twice and not split else LOOP_BLOCK


def element_outputs(program: Program) -> tuple[Output, ...]:
    """Outputs that vary along the reduced axes: they need a pass of their own in a loop."""
    reduced = {a.name for a in program.reduced}
    return tuple(o for o in program.outputs if o.axes & reduced and not o.summed)


def passes_of(program: Program) -> int:
    return len(program.levels) + bool(element_outputs(program))


def bytes_moved(program: Program, passes: int) -> int:
    """Each input read once a pass, each output written once."""
    total = 0
    for i in program.inputs:
        if not i.number:
            repeat = passes if is_element(program, i.name) else 1
            total += repeat * BYTES[i.dtype] * count(program, i.axes)
    return total + sum(BYTES[o.dtype] * count(program, o.axes) for o in program.outputs)


def count(program: Program, axes: frozenset[str]) -> int:
    n = 1
    for a in axes:
        n *= program.size[a]
    return n
