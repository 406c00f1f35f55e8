"""The pair skeleton, backward: key blocks outside for d k and d v, query blocks outside for d q.

Scores are recomputed from q and k; what a query needs beside them was saved or is a sum over its
width. Nothing is added to memory by two programs, so the bits repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedreduce.gradient.pair_state import adjoint
from fusedreduce.gradient.pair_widths import DP
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import Expr, const, is_const, names, rewrite, var, walk
from fusedreduce.ir.show import shared, show
from fusedreduce.kernels.base_two import LOG2_E, counts_in_twos, exponentials
from fusedreduce.kernels.names import identifier
from fusedreduce.kernels.pair_access import PairAccess
from fusedreduce.kernels.pair_frame import Blocks, Frame
from fusedreduce.kernels.pair_header import header
from fusedreduce.kernels.pair_loops import PairLoops
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.kernels.stage import tight
from fusedreduce.plan.pairs import PairPlan, chunks


@dataclass
class BackwardPrinter:
    """Prints one direction of the backward of a pair."""

    backward: PairBackward
    plan: PairPlan
    blocks: Blocks
    title: str
    certificates: Sequence[str] = ()
    precision: str = ""
    frame: Frame = field(init=False)

    def __post_init__(self) -> None:
        b = self.backward
        self.pair, self.keys = b.forward, self.plan.direction == "keys"
        self.frame = Frame(self.pair, self.plan, self.blocks, self.title, b.rows, self.precision)
        self.body, self.w = self.frame.body, self.frame.body.writer
        self.access, self.loops = PairAccess(self.frame), PairLoops(self.frame)
        for n in b.rows:
            self.body.places[var(n)] = "row"
        self.body.bind(var(DP), "dp", "element")
        self.body.namer.taken |= {"dp"}
        self.mask = None if self.pair.mask is None else self.frame.lowered(self.pair.mask)
        self.factor = self.frame.lowered(b.factor)
        within = self.keys and self.varies_by_head
        self.score = self.prepared(b.score * b.factor if within else b.score)
        self.factor = const(1.0) if within else self.factor
        self.weight = None if b.weight is None else self.prepared(b.weight)
        self.body.user |= {self.frame.lowered(e): n for n, e in self.pair.drawn} | {
            self.score: "ds"
        }
        self.common = [n for n in shared(*self.exprs) if self.body.place(n) == "element"]
        self.body.user |= {} if self.weight is None else {self.weight: "p"}

    def prepared(self, e: Expr) -> Expr:
        e = self.frame.lowered(e)
        return exponentials(e, self.frame.is_scalar) if counts_in_twos(self.pair) else e

    @property
    def varies_by_head(self) -> bool:
        """Is the scalar factor of d score another one for each head? d k adds heads up."""
        return any(n == "h" or n in self.frame.read_of for n in names(self.factor))

    @property
    def slopes(self) -> bool:
        """Do results depend on the score at all?"""
        return not is_const(self.score, 0)

    @property
    def exprs(self) -> list[Expr]:
        return [self.score, *([] if self.weight is None else [self.weight])]

    # -- the kernel

    def print(self) -> PrintedKernel:
        self.begin()
        every = [*self.exprs, *([] if self.mask is None else [self.mask]), self.factor]
        self.frame.use(*every)
        for e in every:
            for node in walk(e):
                if node.op == "mul" and is_const(node.args[1], LOG2_E):
                    scalar = self.frame.is_scalar(node)
                    self.body.user[node] = "scale_log2_e" if scalar else "natural"
        self.frame.scalars(*every)
        if self.keys:
            self.visit_heads(every)
        else:
            self.access.load_reads(every, ("scalar", "row"), masked=True)
            self.body.hoist(every, lambda n: var(n) in self.body.known)
            self.loops.visit(self.step_queries)
        self.store()
        return self.finished()

    def visit_heads(self, every: Sequence[Expr]) -> None:
        """Every head of q that shares this head of k."""
        if not self.blocks.grouped:
            self.w.line("h = hk")
            self.w.line("first_row = bh.to(tl.int64) * Sq")
            self.begin_head(every)
            return
        with self.loops.inner("for g in range(group):"):
            self.w.line("h = hk * group + g")
            self.w.line("first_row = (b * H + h).to(tl.int64) * Sq")
            self.begin_head(every)

    def begin_head(self, every: Sequence[Expr]) -> None:
        self.access.bases("h", "q", *[self.d_name] * (self.weight is not None))
        self.access.load_reads(every, ("scalar", "column"), masked=True)
        self.loops.visit(self.step_keys)

    def begin(self) -> None:
        w = self.w
        outer, size, i0 = ("Sk", "KEYS", "j0") if self.keys else ("Sq", "QUERIES", "i0")
        self.loops.programs(outer, size, last_first=not self.keys)
        if self.keys:
            heads = "(H // group)" if self.blocks.grouped else "H"
            w.line(f"b = bh // {heads}")
            w.line(f"hk = bh % {heads}")
        else:
            w.line("b = bh // H")
            w.line("h = bh % H")
            w.line("hk = h // group" if self.blocks.grouped else "hk = h")
        w.line(f"{i0} = block * {size}")
        if self.blocks.ranges is not None:
            w.line(f"{i0[0]}1 = tl.minimum({i0} + {size}, {outer})")
        if self.keys:
            w.line("j = j0 + tl.arange(0, KEYS)", "(KEYS,)")
            w.line("query = tl.arange(0, QUERIES)", "(QUERIES,)")
            self.access.bases("hk", "k", *["v"] * (self.weight is not None))
            self.k = self.access.load("k", self.pair.D, "j0", "KEYS", "hk")
            if self.weight is not None:
                self.v = self.access.load("v", self.pair.DV, "j0", "KEYS", "hk")
            self.dk = self.accumulators("dk", self.pair.D, "KEYS") if self.slopes else []
            self.dv = self.accumulators("dv", self.pair.DV, "KEYS") if self.weight else []
            return
        w.line("i = i0 + tl.arange(0, QUERIES)", "(QUERIES,)")
        w.line("first_row = bh.to(tl.int64) * Sq")
        w.line("key = tl.arange(0, KEYS)", "(KEYS,)")
        deep = DP in names(self.score)
        self.access.bases("h", "q", *[self.d_name] * deep)
        self.access.bases("hk", "k", *["v"] * deep)
        self.q = self.access.load("q", self.pair.D, "i0", "QUERIES", "h")
        if DP in names(self.score):
            self.d = self.access.load(self.d_name, self.pair.DV, "i0", "QUERIES", "h")
        self.load_rows()
        self.dq = self.accumulators("dq", self.pair.D, "QUERIES")

    @property
    def d_name(self) -> str:
        return identifier(adjoint(self.backward.vector))

    def accumulators(self, name: str, width: int, size: str) -> list[str]:
        parts = chunks(width)
        found = [f"{name}_{k}" if len(parts) > 1 else name for k in range(len(parts))]
        for n, part in zip(found, parts, strict=True):
            self.body.namer.taken.add(n)
            self.w.line(
                f"{n} = tl.full(({size}, {part}), 0.0, tl.{self.pair.state})", f"({size}, {part})"
            )
        return found

    def load_rows(self, masked: bool = True) -> None:
        """The row values of these queries; in a whole block every one exists."""
        dtypes = {r.name: r.dtype for r in self.pair.results}
        for n in self.backward.rows:
            name = n.replace(".", "_")
            self.frame.pointers[f"{name}_ptr"] = None
            dtype = dtypes.get(n, self.pair.state)
            other = "0.0" if "float" in dtype else "0"
            mask = f", mask=i < Sq, other={other}" if masked else ""
            text = f"tl.load({name}_ptr + first_row + i{mask})"
            self.body.bind(var(n), self.body.assign([name], text, "row"), "row")

    # -- one block

    def before(self, start: str, masked: bool) -> None:
        """Positions, and what is read at them."""
        exprs = [*self.exprs, *([self.mask] if masked and self.mask is not None else [])]
        inner = ("row", "element") if self.keys else ("column", "element")
        self.access.load_reads(exprs, inner, masked)
        if masked:
            self.loops.inside([] if self.mask is None else [self.mask])

    def element(self, masked: bool, d: Sequence[str], v: Sequence[str]) -> tuple[str, str]:
        """p and ds of one block, 0 where masked."""
        weight = "" if self.weight is None else self.tile(self.weight, "p")
        if DP in names(self.score):
            shape = self.body.shape("element")
            v = [self.widened(n) for n in v]
            sides = (v, d) if self.keys else (d, v)
            self.w.line(f"dp = {self.access.dot(*sides)}", shape)
        slope = self.tile(self.score, "ds") if self.slopes else ""
        if masked:
            for n in dict.fromkeys((weight if self.keys else "", slope)):
                if n:
                    self.w.line(f"{n} = tl.where(inside, {n}, 0.0)", self.body.shape("element"))
        return weight, slope

    def tile(self, e: Expr, name: str) -> str:
        """A name for an expression as a whole tile, whatever it varies with."""
        for node in self.common:
            if node is not e and node not in self.body.known and node in walk(e):
                self.body.define(node)
        text, place = self.body.text(e), self.body.place(e)
        if place == "element":
            return self.body.define(e)
        shape = self.body.shape("element")
        if place == "scalar":
            text = f"tl.full({shape}, {text}, tl.{self.pair.state})"
        else:
            text = f"tl.broadcast_to({self.body.at(tight(text), place, 'element')}, {shape})"
        return self.body.assign([name], text, "element")

    def widened(self, v: str) -> str:
        """v beside its adjoint, which lies in the state's dtype where a state is the result."""
        dtype = {r.name: r.dtype for r in self.pair.results}[self.backward.vector]
        return v if dtype == self.pair.dtype else f"{v}.to(tl.{dtype})"

    def narrow(self, name: str, like: str) -> str:
        return name if self.pair.dtype == self.pair.state else f"{name}.to({like}.dtype)"

    def step_keys(self, start: str, masked: bool) -> None:
        w = self.w
        w.line(f"i = {start} + query", "(QUERIES,)")
        q = self.access.load("q", self.pair.D, start, "QUERIES", "h", not masked)
        d = (
            self.access.load(self.d_name, self.pair.DV, start, "QUERIES", "h", not masked)
            if self.weight is not None
            else []
        )
        self.load_rows(masked)
        self.before(start, masked)
        if masked and self.mask is not None:
            self.loops.drop("seen_query", (*q, *d))
        w.line(f"score = {self.access.dot(self.k, q)}", self.body.shape("element"))
        # NOTE: d v right after p needs fewer registers, and was 2 to 8 % slower on an H200.
        p, ds = self.element(masked, d, self.v if self.weight is not None else [])
        for n, t in zip(self.dv, d, strict=True):
            w.line(f"{n} = {self.access.product(self.narrow(p, t), t, n)}")
        for n, t in zip(self.dk, q if self.slopes else [], strict=True):
            w.line(f"{n} = {self.access.product(self.narrow(ds, t), t, n)}")

    def step_queries(self, start: str, masked: bool) -> None:
        w = self.w
        if masked or not self.plan.descriptors or "j" in self.frame.indices(self.exprs):
            w.line(f"j = {start} + key", "(KEYS,)")
        k = self.access.load("k", self.pair.D, start, "KEYS", "hk", not masked)
        v = (
            self.access.load("v", self.pair.DV, start, "KEYS", "hk", not masked)
            if DP in names(self.score)
            else []
        )
        self.before(start, masked)
        if masked and self.mask is not None:
            self.loops.drop("seen_key", k)
        w.line(f"score = {self.access.dot(self.q, k)}", self.body.shape("element"))
        _, ds = self.element(masked, self.d if v else [], v)
        for n, t in zip(self.dq, k, strict=True):
            w.line(f"{n} = {self.access.product(self.narrow(ds, t), t, n)}")

    # -- results

    def store(self) -> None:
        w = self.w
        if not self.keys:
            w.line("row = first_row + i", "(QUERIES,)")
            self.access.store("dq", self.scaled(self.dq), self.pair.D, "i < Sq")
            return
        w.line("row = bh.to(tl.int64) * Sk + j", "(KEYS,)")
        if self.dk:
            self.access.store("dk", self.scaled(self.dk), self.pair.D, "j < Sk")
        if self.dv:
            self.access.store("dv", self.dv, self.pair.DV, "j < Sk")

    def scaled(self, tiles: Sequence[str]) -> list[str]:
        """The scalar factor of d score comes in once, here."""
        if is_const(self.factor, 1):
            return [*tiles]
        return [f"{tile} * {self.factor_text()}" for tile in tiles]

    def factor_text(self) -> str:
        text = self.body.text(self.factor, "scalar")
        return text if text.isidentifier() else f"({text})"

    def finished(self) -> PrintedKernel:
        b, drawn = self.backward, {e: var(n) for n, e in self.pair.drawn}
        score = show(rewrite(b.score, drawn.get))
        formulas = [("d score", score if is_const(b.factor, 1) else f"{show(b.factor)} * {score}")]
        if b.weight is not None and self.keys:
            weight = show(rewrite(b.weight, drawn.get))
            formulas.append(("dv", f"sum over i of {weight} * {self.d_name}"))
        head = header(self.pair, self.plan, self.title, self.certificates, formulas)
        return self.frame.printed(head)
