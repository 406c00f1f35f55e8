"""Which blocks a pair kernel visits, in which order; which pairs of a partial block count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fusedreduce.ir.expr import Expr, call, names, var
from fusedreduce.kernels.pair_frame import Frame
from fusedreduce.kernels.positions import ENDS, limit
from fusedreduce.masks.ranges import Ranges

Step = Callable[[str, bool], None]


@dataclass(frozen=True)
class PairLoops:
    """Prints programs and loops into a frame."""

    frame: Frame

    # -- programs and loops

    def programs(self, outer: str, size: str, last_first: bool) -> None:
        """Which block of which head a program takes: where ranges differ, the long ones first.

        So many heads side by side as fit in the second-level cache together.
        """
        w = self.frame.body.writer
        program = "tl.program_id(0)"
        if self.frame.blocks.splits:
            w.line(f"split = {program} % splits")
            w.line(f"program = {program} // splits")
            program = "program"
        w.line(f"blocks = tl.cdiv({outer}, {size})")
        if self.frame.blocks.ranges is None:
            w.line(f"block = {program} % blocks")
            w.line(f"bh = {program} // blocks")
            return
        w.line(f"place = {program} % (blocks * together)")
        w.line(f"block = {'blocks - 1 - ' * last_first}place // together")
        w.line(f"first_bh = {program} // (blocks * together) * together")
        w.line("bh = first_bh + place % together")

    def inside(self, exprs: Sequence[Expr], whole: bool = False) -> None:
        """`inside`: the pairs of a partial block that count; of full shape if `whole`."""
        tests = []
        if not self.frame.blocks.whole:
            tests.append(call("lt", var("j"), var("Sk")))
            if self.frame.plan.direction == "keys" or whole:
                tests.append(call("lt", var("i"), var("Sq")))
        tests += [part for e in exprs for part in conjuncts(e)]
        parts = []
        for t in tests:
            text, place = self.frame.body.text(t), self.frame.body.place(t)
            alone = len(tests) == 1 and place == "element"
            parts.append(text if alone else self.frame.body.at(f"({text})", place, "element"))
        line = " & ".join(parts)
        self.frame.body.writer.line(f"inside = {line}", self.frame.body.shape("element"))
        self.frame.use(*tests)

    def drop(self, seen: str, tiles: Sequence[str]) -> None:
        """Rows of the inner axis that nobody in the block sees count for 0 in a product of tiles.

        They may hold anything, and 0 * NaN is NaN.

        NOTE: a tile that is cleared goes from shared memory through registers and back; where each
        row is seen, none is.
        """
        if self.sees_whole_blocks():
            return
        size = "QUERIES" if seen == "seen_query" else "KEYS"
        keys = self.frame.plan.direction == "keys"
        here = "inside" if keys else "(inside & (i < Sq)[:, None])"  # of queries that exist
        text = self.in_range_of_block() or f"tl.max({here}.to(tl.int32), 0) > 0"
        self.frame.body.writer.line(f"{seen} = {text}", f"({size},)")
        for t in tiles:
            self.frame.body.writer.line(f"{t} = tl.where({seen}[:, None], {t}, 0.0)")

    def seen_range(self) -> Ranges | None:
        """Of one comparison: what lies in the range of a block, somebody in the block sees."""
        mask = self.frame.pair.mask
        compares = mask is not None and mask.op in ("lt", "le", "gt", "ge")
        return self.frame.blocks.ranges if compares else None

    def sees_whole_blocks(self) -> bool:
        """Does the range of a block begin and end with blocks of the inner axis?"""
        r, plan = self.seen_range(), self.frame.plan
        if r is None or not self.frame.blocks.whole:
            return False
        steps = dict.fromkeys(("i0", "i1", "Sq"), plan.QUERIES)
        steps |= dict.fromkeys(("j0", "j1", "Sk"), plan.KEYS)
        size = plan.QUERIES if plan.direction == "keys" else plan.KEYS
        return is_multiple(r.lo, size, steps) and is_multiple(r.hi, size, steps)

    def in_range_of_block(self) -> str:
        """Does somebody in the block see it?"""
        r = self.seen_range()
        if r is None:
            return ""
        index, inner = ("i", "Sq") if self.frame.plan.direction == "keys" else ("j", "Sk")
        lo = self.bound(r.lo)
        tests = [f"{index} >= {lo}"] * (lo != "0")
        tests += [f"{index} < end"] * (self.bound(r.hi) != inner)
        return tests[0] if len(tests) == 1 else " & ".join(f"({t})" for t in tests)

    @property
    def ends_masked(self) -> bool:
        """Is the last loop over a range one for partial blocks?"""
        blocks = self.frame.blocks
        return not blocks.lists and not (blocks.ranges is None and blocks.even)

    def visit(self, step: Step, odd: str = "") -> None:
        """The loops over blocks of the inner axis; `step(start, masked)` prints one body.

        odd   where this holds whole blocks are left to the last loop, as if they were partial

        NOTE: whole blocks come first: with the masked ones in front d k and d v take 15 to 20 %
        longer (causal, H200, Triton 3.6).
        """
        if self.frame.blocks.lists:
            self.visit_lists(step)
        else:
            self.visit_ranges(step, odd)

    def visit_lists(self, step: Step) -> None:
        w = self.frame.body.writer
        size = "QUERIES" if self.frame.plan.direction == "keys" else "KEYS"
        inner = "Sq" if self.frame.plan.direction == "keys" else "Sk"
        outer = "blocks"
        planes = {(0, 0): "", (1, 0): "b", (0, 1): "h", (1, 1): "(b * H + h)"}
        plane = planes[self.frame.blocks.batch, self.frame.blocks.heads]
        listed = "listed" if plane else "block"
        if plane:
            w.line(f"listed = {plane} * {outer} + block")
        w.line(f"width = tl.cdiv({inner}, {size})")
        for kind, masked in (("full", False), ("partial", True)):
            self.frame.pointers[f"{kind}_counts_ptr"] = self.frame.pointers[f"{kind}_ids_ptr"] = (
                None
            )
            w.line(f"count = tl.load({kind}_counts_ptr + {listed})")
            part = "count"
            if self.frame.blocks.splits:
                part = "count * split // splits, count * (split + 1) // splits"
            with self.inner(f"for n in range({part}):"):
                w.line(f"start = tl.load({kind}_ids_ptr + {listed} * width + n) * {size}")
                step("start", masked)

    def visit_ranges(self, step: Step, odd: str) -> None:
        w = self.frame.body.writer
        size, inner = ("QUERIES", "Sq") if self.frame.plan.direction == "keys" else ("KEYS", "Sk")
        r = self.frame.blocks.ranges
        if r is None and self.frame.blocks.even:
            self.split("", inner, size)
            self.loop(step, "0", inner, size, masked=False)
            return
        if r is None:
            self.split("", inner, size)
            w.line(f"end = {unless(odd, f'{inner} // {size} * {size}', '0')}")
            self.loop(step, "0", "end", size, masked=False)
            self.loop(step, "end", inner, size, masked=True)
            return
        lo, full_lo, full_hi, hi = (self.bound(e) for e in (r.lo, r.full_lo, r.full_hi, r.hi))
        first, before = "0", ""
        if lo != "0":
            w.line(f"first_block = {lo} // {size} * {size}")
            first = "first_block"
        w.line(f"end = {hi}")
        self.split("first_block" * (first != "0"), "end", size)
        if full_lo != "0":
            whole = f"tl.cdiv({full_lo}, {size}) * {size}"
            w.line(f"full = tl.maximum({first}, tl.minimum({whole}, end))")
            first, before = "full", first
        end = inner
        if odd or not (self.frame.blocks.even and full_hi == hi == inner):
            last = f"tl.maximum({full_hi} // {size} * {size}, {first})"
            w.line(f"full_end = {unless(odd, last, first)}")
            end = "full_end"
        self.loop(step, first, end, size, masked=False)
        if before:
            self.loop(step, before, first, size, masked=True)
        if end != inner:
            self.loop(step, end, "end", size, masked=True)

    def split(self, first: str, end: str, size: str) -> None:
        """The blocks from `first` ("" for 0) to `end` that this program takes: [begin, stop)."""
        if not self.frame.blocks.splits:
            return
        w = self.frame.body.writer
        visited = f"{end} - {first}" if first else end
        w.line(f"share = tl.cdiv(tl.cdiv({visited}, {size}), splits) * {size}")
        w.line(f"begin = {f'{first} + ' * bool(first)}split * share")
        w.line("stop = begin + share")

    def bound(self, e: Expr) -> str:
        """A limit of a range over i0, i1 (or j0, j1), sizes and offsets."""
        e = limit(e, self.frame.pair.kinds | dict.fromkeys(ENDS, "int"))
        self.frame.use(e)
        for n in names(e):
            self.frame.body.bind(var(n), n, "scalar")
        return self.frame.body.text(e).replace(", propagate_nan=tl.PropagateNan.ALL", "")

    def loop(self, step: Step, first: str, end: str, size: str,
             masked: bool) -> None:  # fmt: skip
        if self.frame.blocks.splits:
            first = "begin" if first in ("0", "first_block") else f"tl.maximum({first}, begin)"
            end = f"tl.minimum({end}, stop)"
        with self.inner(f"for start in range({first}, {end}, {size}):"):
            step("start", masked)

    @contextmanager
    def inner(self, head: str) -> Iterator[None]:
        """A loop: what is named inside is free again after it."""
        namer, functions = self.frame.body.namer, self.frame.body.functions
        taken = set(namer.taken)
        with self.frame.body.writer.block(head), self.frame.body.inner():
            yield
        namer.taken = taken | set(functions.texts)


def unless(odd: str, text: str, other: str) -> str:
    """The text of a number, another one where `odd` holds."""
    return f"tl.where({odd}, {other}, {text})" if odd else text


def is_multiple(e: Expr, size: int, steps: Mapping[str, int]) -> bool:
    """Is an expression surely a multiple of a size, where its names are multiples of `steps`?

    >>> i0, Sk = var("i0"), var("Sk")
    >>> steps = {"i0": 128, "Sk": 64}
    >>> is_multiple(call("minimum", Sk, i0 + 64), 64, steps), is_multiple(i0 + 1, 64, steps)
    (True, False)
    """
    if e.op == "const":
        return isinstance(e.value, int) and e.value % size == 0
    if e.op == "var":
        return str(e.value) in steps and steps[str(e.value)] % size == 0
    summed = e.op in ("add", "sub", "neg", "minimum", "maximum")
    return summed and all(is_multiple(a, size, steps) for a in e.args)


def conjuncts(e: Expr) -> list[Expr]:
    return [p for a in e.args for p in conjuncts(a)] if e.op == "and" else [e]
