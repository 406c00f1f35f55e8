"""The block map of a mask as a kernel: for each block of pairs 0 nothing, 1 something, 2 all seen.

The rules of `blocks.classify` where i and j meet in comparisons of integers only: what needs one
index is computed at every position and pooled to (least, largest) of a block; truth values are the
pair (certain, possible). A program has one block of queries and BLOCKS blocks of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from fusedreduce.ir.check import all_kinds, promote
from fusedreduce.ir.dependence import depends
from fusedreduce.ir.expr import Expr, call, cast, const, rewrite, walk
from fusedreduce.ir.grouping import RESTS, grouped
from fusedreduce.ir.show import show
from fusedreduce.ir.simplify import COMPARISONS
from fusedreduce.kernels.header import cut
from fusedreduce.kernels.lower import lower
from fusedreduce.kernels.pair_access import PairAccess
from fusedreduce.kernels.pair_frame import Blocks, Frame
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.pair import INDICES, Pair
from fusedreduce.plan.pairs import PairPlan

BLOCKS = 16  # of keys, that a program classifies
ORDER = {"lt": "<", "le": "<=", "gt": "<", "ge": "<="}  # of the smaller side and the larger one
LOGIC = ("and", "or", "not")
TAKEN = ("rows", "columns", "parts", "part", "row", "outer", "first", "whole", "found")
BOTH = frozenset("ij")


@dataclass(frozen=True)
class Ends:
    """Names of the least and the largest of a block, and of the rests that occur in it."""

    least: str
    largest: str
    rests: str = ""


@dataclass(frozen=True)
class Truth:
    """Names: true at every pair of the block, at some pair perhaps."""

    certain: str
    possible: str


@dataclass
class MapPrinter:
    """Prints the map of a pair's mask, for blocks of the sizes of a plan.

    batch, heads   does the map differ from batch to batch, from head to head?
    """

    pair: Pair
    plan: PairPlan
    title: str
    batch: bool
    heads: bool
    frame: Frame = field(init=False)

    def __post_init__(self) -> None:
        self.frame = Frame(self.pair, self.plan, Blocks(grouped=False), self.title)
        self.frame.body.COLUMNS = "BLOCKS * KEYS"
        self.frame.body.namer.taken |= {*TAKEN, "BLOCKS"}
        self.w, self.access = self.frame.body.writer, PairAccess(self.frame)
        self.done: dict[Expr, Truth] = {}

    @cached_property
    def root(self) -> Expr:
        """The mask over names of what it reads; comparisons have i on one side, j on the other."""
        assert self.pair.mask is not None
        kinds = self.frame.kinds
        return grouped(promote(rewrite(self.pair.mask, self.frame.reads.get), kinds), kinds)

    @cached_property
    def kinds(self) -> Mapping[Expr, str]:
        return all_kinds(self.root, self.frame.kinds)

    @cached_property
    def needs(self) -> Mapping[Expr, frozenset[str]]:
        """The indices that each part depends on, through tables too."""
        read = {n: frozenset(self.frame.indices([v])) & set(INDICES)
                for v in self.frame.reads.values() for n in [str(v.value)]}  # fmt: skip
        return depends(self.root, on={**{n: frozenset((n,)) for n in INDICES}, **read})

    def meets(self, node: Expr) -> bool:
        return self.needs[node] >= BOTH

    @property
    def is_printable(self) -> bool:
        """Can the map be printed: do i and j meet in logic and comparisons of integers alone?"""
        return all(map(self.has_rule, filter(self.meets, walk(self.root))))

    def has_rule(self, node: Expr) -> bool:
        if node.op in LOGIC:
            return all(self.kinds[a] == "bool" for a in node.args)
        whole = all(self.kinds[a] == "int" and not self.meets(a) for a in node.args)
        return node.op in COMPARISONS and whole

    # -- the program

    def print(self) -> PrintedKernel:
        w = self.w
        w.line("rows = tl.cdiv(Sq, QUERIES)")
        w.line("columns = tl.cdiv(Sk, KEYS)")
        w.line("parts = tl.cdiv(columns, BLOCKS)")
        w.line("part = tl.program_id(0) % parts")
        w.line("row = tl.program_id(0) // parts % rows")
        w.line("outer = tl.program_id(0) // parts // rows")
        if self.batch:
            w.line("b = outer // H" if self.heads else "b = outer")
        if self.heads:
            w.line("h = outer % H" if self.batch else "h = outer")
        w.line("i0 = row * QUERIES")
        w.line("first = part * BLOCKS")
        w.line("# positions beyond the end stand for the last one")
        w.line("i = tl.minimum(i0 + tl.arange(0, QUERIES), Sq - 1)", "(QUERIES,)")
        w.line("j = tl.minimum(first * KEYS + tl.arange(0, BLOCKS * KEYS), Sk - 1)")
        found = self.truth(self.root)
        w.line("block = first + tl.arange(0, BLOCKS)", "(BLOCKS,)")
        w.line("whole = (i0 + QUERIES <= Sq) & ((block + 1) * KEYS <= Sk)", "(BLOCKS,)")
        w.line(f"found = {found.possible}.to(tl.int8) + ({found.certain} & whole).to(tl.int8)")
        self.frame.pointers["map_ptr"] = None
        place = "(outer.to(tl.int64) * rows + row) * columns + block"
        w.line(f"tl.store(map_ptr + {place}, found, mask=block < columns)")
        return self.frame.printed(self.header(), (("BLOCKS", BLOCKS),))

    def header(self) -> str:
        assert self.pair.mask is not None
        lines = [
            f"{self.title} / pairs / the block map of a mask",
            "",
            f"Printed by fusedreduce from {self.pair.record.name}. Change that, not this file.",
            f"  counts where {show(self.pair.mask)}",
            "  map  0 nothing, 1 something, 2 everything counts in a block of queries and keys",
        ]
        return "".join(f"# {cut(line)}".rstrip() + "\n" for line in lines)

    # -- truth values of blocks

    def truth(self, node: Expr) -> Truth:
        if node not in self.done:
            self.done[node] = self.met(node) if self.meets(node) else self.pooled_truth(node)
        return self.done[node]

    def met(self, node: Expr) -> Truth:
        """Where i and j meet."""
        if node.op in COMPARISONS:
            return self.compared(node)
        args = [self.truth(a) for a in node.args]
        if node.op == "not":
            return self.named(f"{args[0].possible} == 0", f"{args[0].certain} == 0")
        sign = " & " if node.op == "and" else " | "
        return self.named(sign.join(a.certain for a in args), sign.join(a.possible for a in args))

    def compared(self, node: Expr) -> Truth:
        op, (left, right) = node.op, node.args
        a, b = (self.ends(e, op in ("eq", "ne")) for e in (left, right))
        if op in ("gt", "ge"):
            a, b = b, a
        if op in ORDER:
            sign = ORDER[op]
            return self.named(f"{a.largest} {sign} {b.least}", f"{a.least} {sign} {b.largest}")
        one = f"({a.least} == {a.largest}) & ({b.least} == {b.largest}) & ({a.least} == {b.least})"
        apart = f"({a.largest} < {b.least}) | ({b.largest} < {a.least})"
        if a.rests and b.rests:  # what is equal leaves the same rest
            apart += f" | (({a.rests} & {b.rests}) == 0)"
        same, differ = self.line("same", one), self.line("differ", apart)
        if op == "eq":
            return Truth(same, self.line("possible", f"{differ} == 0"))
        return Truth(differ, self.line("possible", f"{same} == 0"))

    def named(self, certain: str, possible: str) -> Truth:
        return Truth(self.line("certain", certain), self.line("possible", possible))

    def line(self, wish: str, text: str) -> str:
        name = self.frame.body.namer.claim(wish)
        self.w.line(f"{name} = {text}", "(BLOCKS,)")
        return name

    # -- what needs one index, pooled

    def pooled_truth(self, node: Expr) -> Truth:
        value, place = self.value(node)
        if place == "scalar":
            spread = self.line("certain", f"tl.full((BLOCKS,), {value}, tl.int1)")
            return Truth(spread, spread)
        bits = f"{value}.to(tl.int32)"
        certain = self.pool("certain", f"tl.min({self.cut(bits, place)})", " != 0")
        return Truth(certain, self.pool("possible", f"tl.max({self.cut(bits, place)})", " != 0"))

    def ends(self, node: Expr, rests: bool) -> Ends:
        value, place = self.value(node)
        if place == "scalar":
            return Ends(value, value)
        least = self.pool("least", f"tl.min({self.cut(value, place)})")
        largest = self.pool("largest", f"tl.max({self.cut(value, place)})")
        if not rests:
            return Ends(least, largest)
        rest, _ = self.value(call("mod", cast(node, "int64"), const(RESTS)))
        bits = f"(tl.full((), 1, tl.int64) << {rest})"
        self.frame.body.functions.library["union"] = None
        axis = "" if place == "column" else ", 0"
        union = f"tl.reduce({self.cut(bits, place)}{axis}, union)"
        return Ends(least, largest, self.pool("rests", union))

    def value(self, node: Expr) -> tuple[str, str]:
        """The name of a part's value at every position, and where it varies."""
        body = self.frame.body
        expr = lower(node, self.frame.kinds, self.pair.state, None)
        self.frame.use(expr)
        self.access.load_reads([expr], ("scalar", "row", "column"), masked=True)
        return body.define(expr), body.place(expr)

    def cut(self, value: str, place: str) -> str:
        """Positions of keys as (blocks, keys), to be pooled along the second."""
        return f"{value}.reshape(BLOCKS, KEYS), 1" if place == "column" else value

    def pool(self, wish: str, text: str, more: str = "") -> str:
        name = self.frame.body.namer.claim(wish)
        self.w.line(f"{name} = {text}{more}")
        return name


@lru_cache(maxsize=256)
def map_printed(pair: Pair, plan: PairPlan, batch: bool, heads: bool) -> PrintedKernel | None:
    """None where the mask has no such map: `blocks.classify` has one of every mask."""
    printer = MapPrinter(pair, plan, f"{pair.name}_map", batch, heads)
    return printer.print() if printer.is_printable else None
