"""The pair skeleton of a table's gradient: (query block, key block) outside, what is summed inside.

A program keeps a tile of sums in registers and visits its blocks of pairs: one of each batch and
head that the read does not tell apart, in "diagonals" of each step along a diagonal of blocks too,
as elements at one place of such a tile have one distance. The visits may be dealt to several parts,
which write beside one another; nothing is added to memory by two programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from fusedreduce.gradient.pair_state import adjoint
from fusedreduce.gradient.pair_tables import TableSum
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import Expr, names, var
from fusedreduce.ir.show import show
from fusedreduce.kernels.names import identifier
from fusedreduce.kernels.pair_access import PairAccess
from fusedreduce.kernels.pair_elements import PairElements
from fusedreduce.kernels.pair_frame import Blocks, Frame
from fusedreduce.kernels.pair_header import header
from fusedreduce.kernels.pair_loops import PairLoops
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.pair import SCORE
from fusedreduce.plan.pairs import PairPlan

EVERYWHERE = ("scalar", "row", "column", "element")
TAKEN = ("rows", "columns", "tile", "tiles", "outer", "part", "parts", "apart", "summed", "each",
         "visit", "visits", "ahead")  # fmt: skip


@dataclass
class TablePrinter:
    """Prints the kernel of one sum.

    blocks   `lists`: the visits of each program come as tables, whole ones first; `even`: both
             lengths are multiples of their blocks
    """

    backward: PairBackward
    sum: TableSum
    plan: PairPlan
    blocks: Blocks
    title: str
    certificates: Sequence[str] = ()
    precision: str = ""
    frame: Frame = field(init=False)

    def __post_init__(self) -> None:
        b = self.backward
        self.pair, self.diagonal = b.forward, self.plan.direction == "diagonals"
        rows = b.rows_in([self.sum.expr])
        self.frame = Frame(self.pair, self.plan, self.blocks, self.title, rows, self.precision)
        self.w, self.shape = self.frame.body.writer, self.frame.body.shape("element")
        self.access, self.loops = PairAccess(self.frame), PairLoops(self.frame)
        self.elements = PairElements(self.frame, b, None, None, [self.sum])
        self.frame.body.namer.taken |= {*TAKEN, self.sum.name}
        self.summed = "".join(n for n in "bh" if n not in self.sum.kept)
        self.once = not self.summed and not self.diagonal

    # -- programs

    def print(self) -> PrintedKernel:
        self.elements.use()
        self.begin()
        name = self.sum.name
        self.w.line(f"{name} = tl.full((QUERIES, KEYS), 0.0, tl.{self.pair.state})", self.shape)
        if self.blocks.lists:
            self.visit_lists()
        else:
            self.visit_all()
        self.store()
        return self.finished()

    def begin(self) -> None:
        """Which tile of sums a program keeps, and which part of the visits it makes."""
        w = self.w
        w.line("rows = tl.cdiv(Sq, QUERIES)")
        w.line("columns = tl.cdiv(Sk, KEYS)")
        w.line(f"tiles = rows {'+ columns - 1' if self.diagonal else '* columns'}")
        w.line("tile = tl.program_id(0) % tiles")
        w.line("outer = tl.program_id(0) // tiles")
        if not self.once:
            self.frame.integers |= {"parts": None} | dict.fromkeys(["summed"] * bool(self.summed))
            w.line("part = outer % parts")
        kept = "outer" if self.once else "outer // parts"
        if self.sum.kept or self.blocks.lists:
            w.line(f"apart = {kept}")
        self.decode(self.sum.kept, "apart")
        if self.diagonal:
            w.line("ahead = tile - (columns - 1)")  # blocks of queries, of blocks of keys
            w.line("first = tl.maximum(0, -ahead)")
        else:
            self.positions("tile // columns", "tile % columns")
            self.access.load_reads(self.alike(), EVERYWHERE, not self.blocks.even)

    def alike(self) -> list[Expr]:
        """What is read of tables alike in all visits."""
        read = [n for n in names(*self.elements.exprs) if n in self.frame.read_of]
        return [var(n) for n in read if self.frame.indices([var(n)]).isdisjoint(self.summed)]

    def decode(self, letters: str, number: str) -> None:
        """Batch and head from a number that counts both, or one."""
        if letters == "bh":
            self.w.line(f"b = {number} // H")
            self.w.line(f"h = {number} % H")
        elif letters:
            self.w.line(f"{letters} = {number}")

    def positions(self, row: str, column: str) -> None:
        self.w.line(f"i0 = {row} * QUERIES")
        self.w.line(f"j0 = {column} * KEYS")
        self.w.line("i = i0 + tl.arange(0, QUERIES)", "(QUERIES,)")
        self.w.line("j = j0 + tl.arange(0, KEYS)", "(KEYS,)")

    # -- visits

    def visit_lists(self) -> None:
        w = self.w
        w.line("listed = apart * tiles + tile")
        if self.diagonal:
            w.line(f"visits = {self.times_summed('tl.minimum(rows, columns)')}")
        for kind, masked in (("full", False), ("partial", True)):
            for what in ("counts", *["ids"] * (not self.once)):
                self.frame.pointers[f"{kind}_{what}_ptr"] = None
            w.line(f"count = tl.load({kind}_counts_ptr + listed)")
            with self.some("count", "n"):
                if not self.once:
                    visits = "visits" if self.diagonal else "summed"
                    w.line(f"visit = tl.load({kind}_ids_ptr + listed * {visits} + n)")
                self.visit(masked)

    def visit_all(self) -> None:
        if self.once:
            self.visit(False)
            return
        if self.diagonal:
            steps = "tl.minimum(columns, rows - ahead) - first"
            self.w.line(f"count = {self.times_summed(steps)}")
        with self.some("count" if self.diagonal else "summed", "visit"):
            self.visit(self.diagonal and not self.blocks.even)

    def times_summed(self, steps: str) -> str:
        if not self.summed:
            return steps
        return f"{steps if steps.endswith(')') else f'({steps})'} * summed"

    def some(self, count: str, name: str) -> AbstractContextManager[None]:
        """The loop over this part of so many visits."""
        if self.once:
            return self.loops.inner(f"for {name} in range({count}):")
        self.w.line(f"each = tl.cdiv({count}, parts)")
        end = f"tl.minimum({count}, (part + 1) * each)"
        return self.loops.inner(f"for {name} in range(part * each, {end}):")

    def visit(self, masked: bool) -> None:
        """One block of pairs; of a diagonal only whole ones are not masked."""
        w = self.w
        if self.diagonal:
            step = "visit // summed" if self.summed else "visit"
            w.line(f"column = first + {step}")
            self.positions("(column + ahead)", "column")
        self.decode(self.summed, "visit % summed" if self.diagonal else "visit")
        w.line("hk = h // group" if self.blocks.grouped else "hk = h")
        w.line("first_row = (b * H + h).to(tl.int64) * Sq")
        whole = not masked and (self.diagonal or self.blocks.even)
        exprs = self.elements.exprs
        scored = SCORE in names(*exprs)
        q, k = self.load("q", "k", self.pair.D, whole) if scored else ([], [])
        d_out = identifier(adjoint(self.backward.vector))
        d, v = self.load(d_out, "v", self.pair.DV, whole) if self.elements.deep else ([], [])
        self.elements.load_rows(not whole)
        mask = [self.elements.mask] if masked and self.elements.mask is not None else []
        self.access.load_reads([*exprs, *mask], EVERYWHERE, not whole)
        if masked:
            self.loops.inside(mask, whole=self.diagonal)
        if scored:
            w.line(f"score = {self.access.dot(q, k)}", self.shape)
        self.elements.product((d, [self.elements.widened(n) for n in v]))
        w.line(f"{self.sum.name} += {self.elements.table(self.sum.name, masked)}")

    def load(self, row: str, column: str, width: int, whole: bool) -> tuple[list[str], list[str]]:
        self.access.bases("h", row)
        self.access.bases("hk", column)
        return (
            self.access.load(row, width, "i0", "QUERIES", "h", whole),
            self.access.load(column, width, "j0", "KEYS", "hk", whole),
        )

    # -- results

    def store(self) -> None:
        w, name = self.w, self.sum.name
        self.frame.pointers[f"{name}_ptr"] = None
        if self.diagonal:
            w.line("first_row = (outer.to(tl.int64) * tiles + tile) * QUERIES")
            w.line("row = first_row + tl.arange(0, QUERIES)", "(QUERIES,)")
            place, mask = "row[:, None] * KEYS + tl.arange(0, KEYS)[None, :]", ""
        else:
            w.line("row = outer.to(tl.int64) * Sq + i", "(QUERIES,)")
            place, mask = "row[:, None] * Sk + j[None, :]", "(i < Sq)[:, None] & (j < Sk)[None, :]"
        w.line(f"tl.store({name}_ptr + {place}, {name}{f', mask={mask}' if mask else ''})")

    def finished(self) -> PrintedKernel:
        over = ", ".join([*self.summed, *["i - j"] * self.diagonal])
        text = f"sum over {over} of {show(self.sum.expr)}" if over else show(self.sum.expr)
        formulas = [(self.sum.name, text)]
        head = header(self.pair, self.plan, self.title, self.certificates, formulas)
        return self.frame.printed(head)
