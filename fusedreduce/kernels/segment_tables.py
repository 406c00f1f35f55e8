"""The tables of packed sequences, as a kernel: segments, where they start, how long they are.

A program has BLOCK positions. What cuts them is searched once, by halving; every table that those
segments have is written from there. The rules of `blocks.segments`, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.kernels.writer import Writer

BLOCK = 256  # positions of a program
ARGUMENTS = ("size", "steps", "stride")  # of offsets: how many, halvings of a search, elements
_SEARCH = '''
@triton.jit
def last_not_above(offsets_ptr, size, steps, stride, position):
    """The place of the last offset that is not above the position; -1 where all are."""
    low = tl.zeros_like(position)
    high = low + size
    for _ in range(0, steps):
        middle = low + (high - low) // 2
        at = middle.to(tl.int64) * stride
        offset = tl.load(offsets_ptr + at, mask=low < high, other=0)
        right = (low < high) & (offset <= position)
        low = tl.where(right, middle + 1, low)
        high = tl.where(right, high, middle)
    return low - 1
'''


@dataclass(frozen=True)
class SegmentTable:
    """For each position the segment of offsets `of` that it lies in: `what` of it, else `outside`.

    what   "id", or its "start" or "length" in offsets `among`
    """

    what: str
    of: int
    among: int
    outside: int = 0


def halvings(size: int) -> int:
    """After so many steps a search among `size` offsets has ended.

    >>> halvings(0), halvings(1), halvings(4)
    (0, 1, 3)
    """
    return size.bit_length()


def segment_tables_printed(tables: Sequence[SegmentTable]) -> PrintedKernel:
    """Arguments: offsets c0_ptr, ... and tables t0_ptr, ...; then their integers in that order."""
    read = range(1 + max(max(t.of, t.among) for t in tables))
    pointers = [*(f"c{n}_ptr" for n in read), *(f"t{n}_ptr" for n in range(len(tables)))]
    integers = [f"c{n}_{what}" for n in read for what in ARGUMENTS]
    integers += [f"t{n}_length" for n in range(len(tables))]
    w = Writer()
    with w.block("@triton.jit("), w.block("do_not_specialize=["):
        for name in integers:
            w.line(f'"{name}",')
    w.lines += ["    ]", ")"]
    w.line(f"def segment_tables({', '.join((*pointers, *integers))}, BLOCK: tl.constexpr):")
    w.depth = 1
    w.line("position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "(BLOCK,)")
    for of in dict.fromkeys(t.of for t in tables):
        arguments = ", ".join(f"c{of}_{what}" for what in ("ptr", *ARGUMENTS))
        w.line(f"at_{of} = last_not_above({arguments}, position)", "(BLOCK,)")
        w.line(f"inside_{of} = (at_{of} >= 0) & (at_{of} + 1 < c{of}_size)", "(BLOCK,)")
        for n, t in enumerate(tables):
            if t.of == of:
                _store(w, n, t)
    text = f"{_header(tables)}\nimport triton\nimport triton.language as tl\n\n{_SEARCH}\n\n"
    names = (*pointers, *integers)
    return PrintedKernel("segment_tables", text + w.text(), names, (("BLOCK", BLOCK),))


def _store(w: Writer, n: int, t: SegmentTable) -> None:
    inside, value = f"inside_{t.of}", f"at_{t.of}"
    if t.what != "id":
        w.line(f"place_{n} = c{t.among}_ptr + at_{t.of}.to(tl.int64) * c{t.among}_stride")
        value = f"start_{n}"
        w.line(f"{value} = tl.load(place_{n}, mask={inside}, other=0)", "(BLOCK,)")
    if t.what == "length":
        w.line(f"end_{n} = tl.load(place_{n} + c{t.among}_stride, mask={inside}, other=0)")
        value = f"end_{n} - {value}"
    w.line(f"found_{n} = tl.where({inside}, {value}, {t.outside}).to(tl.int32)", "(BLOCK,)")
    w.line(f"tl.store(t{n}_ptr + position, found_{n}, mask=position < t{n}_length)")


def _header(tables: Sequence[SegmentTable]) -> str:
    lines = [
        "# segment_tables / pairs / the tables of packed sequences",
        "#",
        "# Printed by fusedreduce, the same for all masks that read these tables.",
        "#   c   offsets (size,), not decreasing: segment s has c[s] <= position < c[s + 1]",
    ]
    for n, t in enumerate(tables):
        what = "the segment" if t.what == "id" else f"its {t.what} in c{t.among}"
        lines.append(f"#   t{n}  {what} of each position that c{t.of} cuts, {t.outside} outside")
    return "\n".join(lines) + "\n"
