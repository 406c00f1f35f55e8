"""What a backward kernel computes of one block of pairs: p, d score, gradients of tables, dp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedreduce.gradient.pair_tables import TableSum
from fusedreduce.gradient.pair_widths import DP
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import Expr, is_const, names, var, walk
from fusedreduce.ir.show import shared
from fusedreduce.kernels.base_two import LOG2_E, counts_in_twos, exponentials
from fusedreduce.kernels.pair_access import PairAccess
from fusedreduce.kernels.pair_frame import Frame
from fusedreduce.kernels.pair_loops import PairLoops
from fusedreduce.kernels.stage import tight


@dataclass
class PairElements:
    """Prints the formulas of a backward into a frame, whole tiles that are 0 where masked.

    score, weight   d score and the weight of d v; None where the kernel has no use for them
    sums            the gradients of reads that the kernel sums up
    """

    frame: Frame
    backward: PairBackward
    score: Expr | None
    weight: Expr | None
    sums: Sequence[TableSum]
    tables: dict[str, Expr] = field(init=False)  # by the name of the sum

    def __post_init__(self) -> None:
        body, pair = self.frame.body, self.frame.pair
        self.access, self.loops = PairAccess(self.frame), PairLoops(self.frame)
        body.bind(var(DP), "dp", "element")
        body.namer.taken |= {"dp"}
        for n in self.frame.rows:
            body.places[var(n)] = "row"
        self.mask = None if pair.mask is None else self.frame.lowered(pair.mask)
        self.score = None if self.score is None else self.prepared(self.score)
        self.weight = None if self.weight is None else self.prepared(self.weight)
        self.tables = {s.name: self.prepared(s.expr) for s in self.sums}
        body.user |= {self.frame.lowered(e): n for n, e in pair.drawn}
        body.user |= {self.tables[s.name]: f"d_{s.read.table}" for s in self.sums}
        body.user |= {} if self.score is None else {self.score: "ds"}
        self.common = [n for n in shared(*self.exprs) if body.place(n) == "element"]
        body.user |= {} if self.weight is None else {self.weight: "p"}

    def prepared(self, e: Expr) -> Expr:
        e = self.frame.lowered(e)
        twos = counts_in_twos(self.frame.pair)
        return exponentials(e, self.frame.is_scalar) if twos else e

    @property
    def exprs(self) -> list[Expr]:
        found = [e for e in (self.score, self.weight) if e is not None]
        return [*found, *self.tables.values()]

    @property
    def deep(self) -> bool:
        """Do they need dp = <d_out, v>?"""
        return DP in names(*self.exprs)

    @property
    def slopes(self) -> bool:
        """Do results depend on the score at all?"""
        return self.score is not None and not is_const(self.score, 0)

    # -- before and in the loop

    def use(self, *more: Expr) -> list[Expr]:
        """Arguments, and names for scalars; answers all that the kernel will print."""
        every = [*self.exprs, *([] if self.mask is None else [self.mask]), *more]
        self.frame.use(*every)
        for e in every:
            for node in walk(e):
                if node.op == "mul" and is_const(node.args[1], LOG2_E):
                    scalar = self.frame.is_scalar(node)
                    self.frame.body.user[node] = "scale_log2_e" if scalar else "natural"
        self.frame.scalars(*every)
        return every

    def load_rows(self, masked: bool = True) -> None:
        """The row values of these queries; in a whole block every one exists."""
        dtypes = {r.name: r.dtype for r in self.frame.pair.results}
        for n in self.frame.rows:
            name = n.replace(".", "_")
            self.frame.pointers[f"{name}_ptr"] = None
            dtype = dtypes.get(n, self.frame.pair.state)
            other = "0.0" if "float" in dtype else "0"
            mask = f", mask=i < Sq, other={other}" if masked else ""
            text = f"tl.load({name}_ptr + first_row + i{mask})"
            body = self.frame.body
            body.bind(var(n), body.assign([name], text, "row"), "row")

    def before(self, places: Sequence[str], masked: bool) -> None:
        """What is read at these places, and which pairs count."""
        mask = [self.mask] if masked and self.mask is not None else []
        self.access.load_reads([*self.exprs, *mask], places, masked)
        if masked:
            self.loops.inside(mask)

    def slope(self, masked: bool, sides: tuple[Sequence[str], Sequence[str]]) -> tuple[str, str]:
        """The tiles of p and ds of one block; `sides`: those of d_out and v, the outer one first.

        A masked p is cleared for d v alone.
        """
        weight = "" if self.weight is None else self.tile(self.weight, "p")
        self.product(sides)
        slope = self.tile(self.score, "ds") if self.slopes and self.score is not None else ""
        if masked:
            keys = self.frame.plan.direction == "keys"
            for n in dict.fromkeys((weight if keys else "", slope)):
                if n:
                    self.clear(n)
        return weight, slope

    def product(self, sides: tuple[Sequence[str], Sequence[str]]) -> None:
        """dp, where it is needed."""
        if self.deep:
            line = f"dp = {self.access.dot(*sides)}"
            self.frame.body.writer.line(line, self.frame.body.shape("element"))

    def table(self, name: str, masked: bool) -> str:
        """The tile of a gradient; d score itself is cleared already."""
        known = self.tables[name] is self.score
        tile = self.tile(self.tables[name], name.removeprefix("sum_"))
        return tile if known or not masked else f"tl.where(inside, {tile}, 0.0)"

    def clear(self, tile: str) -> None:
        shape = self.frame.body.shape("element")
        self.frame.body.writer.line(f"{tile} = tl.where(inside, {tile}, 0.0)", shape)

    def tile(self, e: Expr, name: str) -> str:
        """A name for an expression as a whole tile, whatever it varies with."""
        body = self.frame.body
        for node in self.common:
            if node is not e and node not in body.known and node in walk(e):
                body.define(node)
        text, place = body.text(e), body.place(e)
        if place == "element":
            return body.define(e)
        shape = body.shape("element")
        if place == "scalar":
            text = f"tl.full({shape}, {text}, tl.{self.frame.pair.state})"
        else:
            text = f"tl.broadcast_to({body.at(tight(text), place, 'element')}, {shape})"
        return body.assign([name], text, "element")

    def widened(self, v: str) -> str:
        """v beside its adjoint, which lies in the state's dtype where a state is the result."""
        pair = self.frame.pair
        dtype = {r.name: r.dtype for r in pair.results}[self.backward.vector]
        return v if dtype == pair.dtype else f"{v}.to(tl.{dtype})"
