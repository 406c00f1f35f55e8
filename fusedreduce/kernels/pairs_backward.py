"""The pair skeleton, backward: key blocks outside for d k and d v, query blocks outside for d q.

Scores are recomputed from q and k; what a query needs beside them was saved or is a sum over its
width. Gradients of tables are summed along the inner axis, a number for each position of the outer
one. Nothing is added to memory by two programs, so the bits repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedreduce.gradient.pair_state import adjoint
from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import Expr, const, is_const, names, rewrite, var
from fusedreduce.ir.show import show
from fusedreduce.kernels.names import identifier
from fusedreduce.kernels.pair_access import PairAccess
from fusedreduce.kernels.pair_elements import PairElements
from fusedreduce.kernels.pair_frame import Blocks, Frame
from fusedreduce.kernels.pair_header import header
from fusedreduce.kernels.pair_loops import PairLoops
from fusedreduce.kernels.rows import PrintedKernel
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
        self.sums = [s for s in b.table_sums if s.direction == self.plan.direction]
        rows = b.rows_in(s.expr for s in self.sums)
        self.frame = Frame(self.pair, self.plan, self.blocks, self.title, rows, self.precision)
        self.body, self.w = self.frame.body, self.frame.body.writer
        self.access, self.loops = PairAccess(self.frame), PairLoops(self.frame)
        self.factor = self.frame.lowered(b.factor)
        within = self.keys and self.varies_by_head
        score = b.score * b.factor if within else b.score
        self.factor = const(1.0) if within else self.factor
        self.elements = PairElements(self.frame, b, score, b.weight, self.sums)
        self.slopes, self.deep = self.elements.slopes, self.elements.deep
        self.weighed = b.weight is not None
        self.valued = self.weighed or self.deep

    @property
    def varies_by_head(self) -> bool:
        """Is the scalar factor of d score another one for each head? d k adds heads up."""
        return any(n == "h" or n in self.frame.read_of for n in names(self.factor))

    # -- the kernel

    def print(self) -> PrintedKernel:
        self.begin()
        every = self.elements.use(self.factor)
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
        self.access.bases("h", "q", *[self.d_name] * self.valued)
        self.access.load_reads(every, ("scalar", "column"), masked=True)
        self.begin_sums("KEYS")
        self.loops.visit(self.step_keys)
        if self.sums:
            first = "(b * H + h)" if self.blocks.grouped else "bh"
            self.w.line(f"column = {first}.to(tl.int64) * Sk + j", "(KEYS,)")
            self.store_sums("column", "j < Sk")

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
            self.access.bases("hk", "k", *["v"] * self.valued)
            self.k = self.access.load("k", self.pair.D, "j0", "KEYS", "hk")
            self.v = self.values("j0", "hk") if self.valued else []
            self.dk = self.accumulators("dk", self.pair.D, "KEYS") if self.slopes else []
            self.dv = self.accumulators("dv", self.pair.DV, "KEYS") if self.weighed else []
            return
        w.line("i = i0 + tl.arange(0, QUERIES)", "(QUERIES,)")
        w.line("first_row = bh.to(tl.int64) * Sq")
        w.line("key = tl.arange(0, KEYS)", "(KEYS,)")
        self.access.bases("h", "q", *[self.d_name] * self.deep)
        self.access.bases("hk", "k", *["v"] * self.deep)
        self.q = self.access.load("q", self.pair.D, "i0", "QUERIES", "h")
        self.d = self.adjoints("i0") if self.deep else []
        self.elements.load_rows()
        self.dq = self.accumulators("dq", self.pair.D, "QUERIES") if self.slopes else []
        self.begin_sums("QUERIES")

    @property
    def d_name(self) -> str:
        return identifier(adjoint(self.backward.vector))

    def adjoints(self, start: str, whole: bool = False) -> list[str]:
        return self.access.load(self.d_name, self.pair.DV, start, "QUERIES", "h", whole)

    def values(self, start: str, head: str, whole: bool = False) -> list[str]:
        return self.access.load("v", self.pair.DV, start, "KEYS", head, whole)

    def accumulators(self, name: str, width: int, size: str) -> list[str]:
        parts = chunks(width)
        found = [f"{name}_{k}" if len(parts) > 1 else name for k in range(len(parts))]
        for n, part in zip(found, parts, strict=True):
            self.body.namer.taken.add(n)
            self.w.line(
                f"{n} = tl.full(({size}, {part}), 0.0, tl.{self.pair.state})", f"({size}, {part})"
            )
        return found

    def begin_sums(self, size: str) -> None:
        for s in self.sums:
            self.body.namer.taken.add(s.name)
            self.w.line(f"{s.name} = tl.full(({size},), 0.0, tl.{self.pair.state})", f"({size},)")

    # -- one block

    def narrow(self, name: str, like: str) -> str:
        return name if self.pair.dtype == self.pair.state else f"{name}.to({like}.dtype)"

    def step_keys(self, start: str, masked: bool) -> None:
        w = self.w
        w.line(f"i = {start} + query", "(QUERIES,)")
        q = self.access.load("q", self.pair.D, start, "QUERIES", "h", not masked)
        d = self.adjoints(start, not masked) if self.valued else []
        self.elements.load_rows(masked and not self.blocks.whole)
        self.elements.before(("row", "element"), masked)
        if masked and self.pair.mask is not None:
            self.loops.drop("seen_query", (*q, *d))
        w.line(f"score = {self.access.dot(self.k, q)}", self.body.shape("element"))
        # NOTE: d v right after p needs fewer registers, and was 2 to 8 % slower on an H200.
        v = [self.elements.widened(n) for n in self.v]
        p, ds = self.elements.slope(masked, (v, d))
        self.add_sums(masked)
        for n, t in zip(self.dv, d if self.weighed else [], strict=True):
            w.line(f"{n} = {self.access.product(self.narrow(p, t), t, n)}")
        for n, t in zip(self.dk, q if self.slopes else [], strict=True):
            w.line(f"{n} = {self.access.product(self.narrow(ds, t), t, n)}")

    def step_queries(self, start: str, masked: bool) -> None:
        w = self.w
        if masked or not self.plan.descriptors or "j" in self.frame.indices(self.elements.exprs):
            w.line(f"j = {start} + key", "(KEYS,)")
        k = self.access.load("k", self.pair.D, start, "KEYS", "hk", not masked)
        v = self.values(start, "hk", not masked) if self.deep else []
        self.elements.before(("column", "element"), masked)
        if masked and self.pair.mask is not None:
            self.loops.drop("seen_key", k)
        w.line(f"score = {self.access.dot(self.q, k)}", self.body.shape("element"))
        _, ds = self.elements.slope(masked, (self.d, [self.elements.widened(n) for n in v]))
        self.add_sums(masked)
        for n, t in zip(self.dq, k if self.slopes else [], strict=True):
            w.line(f"{n} = {self.access.product(self.narrow(ds, t), t, n)}")

    def add_sums(self, masked: bool) -> None:
        """Along the inner axis, the second of a tile in both directions."""
        for s in self.sums:
            self.w.line(f"{s.name} += tl.sum({self.elements.table(s.name, masked)}, 1)")

    # -- results

    def store(self) -> None:
        w = self.w
        if not self.keys:
            w.line("row = first_row + i", "(QUERIES,)")
            if self.dq:
                self.access.store("dq", self.scaled(self.dq), self.pair.D, "i < Sq")
            self.store_sums("row", "i < Sq")
            return
        w.line("row = bh.to(tl.int64) * Sk + j", "(KEYS,)")
        if self.dk:
            self.access.store("dk", self.scaled(self.dk), self.pair.D, "j < Sk")
        if self.dv:
            self.access.store("dv", self.dv, self.pair.DV, "j < Sk")

    def store_sums(self, place: str, inside: str) -> None:
        for s in self.sums:
            self.frame.pointers[f"{s.name}_ptr"] = None
            self.w.line(f"tl.store({s.name}_ptr + {place}, {s.name}, mask={inside})")

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
        inner = "i" if self.keys else "j"
        formulas += [(s.name, f"sum over {inner} of {show(s.expr)}") for s in self.sums]
        head = header(self.pair, self.plan, self.title, self.certificates, formulas)
        return self.frame.printed(head)
