"""What the printers of pair kernels share: names and places of values, arguments, the module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fusedreduce.ir.expr import Expr, call, const, make, names, rewrite, var, walk
from fusedreduce.ir.simplify import simplify
from fusedreduce.kernels.body import Body
from fusedreduce.kernels.functions import FUNCTIONS, with_needs
from fusedreduce.kernels.lower import lower
from fusedreduce.kernels.names import TAKEN
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.masks.ranges import Ranges
from fusedreduce.pair import SCORE, SIZES, Pair, Read
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.program import Axis, Program

PRINTED = frozenset((
    "b", "h", "hk", "i", "j", "i0", "i1", "j0", "j1", "block", "blocks", "bh", "H", "group", "Sq",
    "Sk", "QUERIES", "KEYS", "query", "key", "q", "k", "v", "score", "end", "count", "n", "g",
    "place", "together", "first_bh", "full", "full_end", "first_block", "listed", "width",
    "seen_key", "seen_query",
))  # fmt: skip
SPLIT = frozenset(("split", "splits", "program", "share", "begin", "stop"))
#: Indices that are known in a loop only, by direction.
LATE = {"keys": ("h",), "tables": ("b", "h"), "diagonals": ("b", "h")}
NOT_SPECIALIZED = ("H", "group", "together", "splits", "parts", "summed")


@dataclass(frozen=True)
class Tile:
    """What a StagePrinter asks of a plan: a pair's tile is (QUERIES, KEYS), in a loop."""

    even: bool
    tiled: bool = True
    strategy: str = "loop"
    parts: int = 1


@dataclass(frozen=True)
class Blocks:
    """How a kernel knows the blocks it visits.

    ranges   computed in the kernel; None with `lists`: tables of block indices, partial then full
    batch, heads   does the map differ from batch to batch, from head to head?
    even           the inner length is a multiple of the block: no block is cut off at its end
    whole          of ranges: so are both lengths
    grouped        several heads of q share one of k
    splits         the keys of a block of queries are split over programs: each writes its state
    """

    ranges: Ranges | None = None
    lists: bool = False
    batch: bool = False
    heads: bool = False
    even: bool = False
    whole: bool = False
    grouped: bool = True
    splits: bool = False


@dataclass
class Frame:
    """A pair kernel while it is printed.

    rows    row values that are read from memory, by name
    """

    pair: Pair
    plan: PairPlan
    blocks: Blocks
    title: str
    rows: Sequence[str] = ()
    precision: str = ""
    body: Body = field(init=False)
    pointers: dict[str, None] = field(default_factory=dict)
    integers: dict[str, None] = field(default_factory=dict)
    numbers: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        axes = (Axis("i", 2, reduced=False), Axis("j", 2, reduced=True))
        program = Program(self.title, axes, (), (), (), self.pair.state)
        self.body = Body(program, Tile(even=False), ROWS="QUERIES", COLUMNS="KEYS",
                         transposed=self.plan.direction == "keys")  # fmt: skip
        taken = {*TAKEN, *PRINTED, *FUNCTIONS, *self.pair.numbers, self.title}
        taken |= {n for t in self.pair.tables for n in (t.name, *t.integers)}
        taken |= SPLIT if self.blocks.splits else set()
        self.body.namer.taken |= taken
        self.body.writer.depth = 1
        self.reads: dict[Expr, Expr] = {}  # inner ones first: an outer one reads at their names
        self.read_of: dict[str, Read] = {}
        for k, r in enumerate(self.pair.reads):
            name = f"{r.table}_{k}"
            for node in (r.node, simplify(r.node)):  # formulas of gradients are simplified
                args = tuple(rewrite(e, self.reads.get) for e in node.args)
                self.reads[make(node.op, args, node.value)] = var(name)
            self.read_of[name] = r
        scalars = {"b", "h", *SIZES, *self.pair.numbers}
        scalars |= {n for t in self.pair.tables for n in t.integers}
        for n in scalars:
            self.body.bind(var(n), n, "scalar")
        self.body.bind(var("i"), "i", "row")
        self.body.bind(var("j"), "j", "column")
        self.body.bind(var(SCORE), SCORE, "element")
        self.kinds = dict(self.pair.kinds) | dict.fromkeys(self.rows, "float") | {"dp": "float"}
        for name, read in self.read_of.items():
            self.kinds[name] = self.pair.kinds[read.table]
            self.body.places[var(name)] = self.place_of_read(read)

    # -- expressions

    def place_of_read(self, read: Read) -> str:
        return self.pair.place(call("read", var(read.table), total(read.indices)))

    def lowered(self, e: Expr) -> Expr:
        """An expression over score, indices and rows, as the kernel computes it."""
        return lower(rewrite(e, self.reads.get), self.kinds, self.pair.state, None)

    def is_scalar(self, e: Expr) -> bool:
        return self.body.place(e) == "scalar"

    def use(self, *exprs: Expr) -> None:
        """Remember which arguments the kernel needs for these expressions."""
        for n in names(*exprs):
            if n in self.pair.numbers:
                self.numbers[n] = None
            elif n in SIZES or n.endswith("_offset") or self.is_integer(n):
                self.integers[n] = None

    def is_integer(self, name: str) -> bool:
        return any(name in t.integers for t in self.pair.tables)

    def scalars(self, *exprs: Expr) -> None:
        """Before the loop: a name for what is made of run-time numbers, and of what is known here.

        Heads and batches that a kernel loops over are known there, a read once it is loaded.
        """
        late = {*self.read_of, *LATE.get(self.plan.direction, ())}
        for node in walk(*exprs):
            used = any(node in n.args and not self.is_scalar(n) for n in walk(*exprs))
            number = any(n in self.pair.numbers for n in names(node))
            known = late.isdisjoint(names(node))
            if node.args and self.is_scalar(node) and used and number and known:
                self.body.define(node)

    def indices(self, exprs: Iterable[Expr]) -> set[str]:
        """The names that expressions depend on, through tables too."""
        found: set[str] = set()
        for n in names(*exprs):
            read = self.read_of.get(n)
            found |= {n} if read is None else self.indices(map(self.lowered, read.indices))
        return found

    # -- the module

    def printed(self, header: str, more: Sequence[tuple[str, int]] = ()) -> PrintedKernel:
        """The kernel as it stands, with the arguments that it came to need, and more constants."""
        sizes = ["H", *["group"] * self.blocks.grouped, "Sq", "Sk"]
        sizes += ["together"] * (self.blocks.ranges is not None)
        sizes += ["splits"] * self.blocks.splits
        others = [n for n in self.integers if n not in sizes]
        arguments = [*self.pointers, *self.numbers, *sizes, *others]
        constants = (("QUERIES", self.plan.QUERIES), ("KEYS", self.plan.KEYS), *more)
        text = self.module(header, arguments, [c for c, _ in constants])
        return PrintedKernel(self.title, text, tuple(arguments), constants)

    def module(self, header: str, arguments: Sequence[str], constants: Sequence[str]) -> str:
        functions = self.body.functions
        typed = [f"{a}: tl.float64" if a in self.numbers and self.pair.state == "float64" else a
                 for a in arguments]  # fmt: skip
        parts = ["import triton\nimport triton.language as tl\n"]
        parts += [FUNCTIONS[n].text.strip("\n") + "\n" for n in with_needs(functions.library)]
        parts += list(functions.texts.values())
        kernel = Body(self.body.program, Tile(even=False)).writer
        sizes = [a for a in arguments if a in (*NOT_SPECIALIZED, *SIZES)]
        kernel.line(f"@triton.jit(do_not_specialize={sizes})".replace("'", '"'))
        signature = [*typed, *(f"{c}: tl.constexpr" for c in constants)]
        kernel.line(f"def {self.title}({', '.join(signature)}):")
        parts.append(kernel.text() + self.body.writer.text())
        return header + "\n" + "\n\n".join(parts)


def total(exprs: Sequence[Expr]) -> Expr:
    total: Expr = const(0)
    for e in exprs:
        total = e if total is const(0) else total + e
    return total
