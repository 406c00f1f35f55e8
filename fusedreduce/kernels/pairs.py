"""The pair skeleton, forward: query blocks outside, key blocks inside, the state in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, is_const, names, substitute, var, walk
from fusedreduce.kernels.base_two import LOG2_E, counts_in_twos, in_base_two, scaled, tested
from fusedreduce.kernels.lower import lower, lowered
from fusedreduce.kernels.pair_access import PairAccess
from fusedreduce.kernels.pair_first import First
from fusedreduce.kernels.pair_frame import Blocks, Frame
from fusedreduce.kernels.pair_header import header
from fusedreduce.kernels.pair_loops import PairLoops
from fusedreduce.kernels.pair_stage import PairGeneral, PairState, absorbs, underflows
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.pair import INDICES, Pair, Result, is_moderate
from fusedreduce.plan.pairs import PairPlan, chunks
from fusedreduce.program import Axis, Input, Program, Stage

BY_INDEX = tuple(n for n in INDICES if n != "j")


@dataclass
class ForwardPrinter:
    """Prints one pair for one plan.

    positive    numbers that are known to be positive
    precision   of float32 products: "ieee", "tf32"
    """

    pair: Pair
    plan: PairPlan
    blocks: Blocks
    title: str
    certificates: Sequence[str] = ()
    positive: Sequence[str] = ()
    precision: str = ""
    frame: Frame = field(init=False)

    def __post_init__(self) -> None:
        self.frame = Frame(self.pair, self.plan, self.blocks, self.title, (), self.precision)
        self.body, self.w = self.frame.body, self.frame.body.writer
        self.access, self.loops = PairAccess(self.frame), PairLoops(self.frame)
        self.prepare()

    # -- expressions

    def prepare(self) -> None:
        """Operands, mask, state and results as the kernel computes them."""
        pair, frame = self.pair, self.frame
        operands = dict(pair.operands)
        results = {r.name: r.expr for r in pair.results}
        record, weights = pair.record, pair.weights
        self.natural: dict[Expr, str] = {}  # names of fields in natural units
        moved = in_base_two(record) if counts_in_twos(pair) else None
        if moved is not None:
            record, x, back = moved
            operands[x] = scaled(operands[x], LOG2_E, frame.is_scalar)
            results = {n: tested(substitute(e, back)) for n, e in results.items()}
            self.natural = {e: f"natural_{n}" for n, e in back.items()}
            weights = replace(pair, record=record).weights
        self.first = First.of(frame, record, "" if moved is None else x)
        self.x = next((n for n in operands), "")
        self.operands = {n: frame.lowered(e) for n, e in operands.items()}
        self.mask = None if pair.mask is None else frame.lowered(pair.mask)
        stage = self.lowered_stage(record)
        fields = {f.name: f.result for f in record.fields} | {s.name: s.type for s in record.slots}
        self.results = {n: lower(e, fields, pair.state, None) for n, e in results.items()}
        made = PairState if record.form == "corrected" else PairGeneral
        self.state = made(self.body, stage)
        self.state.user |= self.natural
        self.record = stage.record
        self.unguarded = replace(
            self.record, guards=frozenset(g for g in self.record.guards or () if self.is_needed(g))
        )
        first = self.first is None or self.spares_guards(self.first)
        self.finite = self.record.guards is not None and pair.bounded and first
        self.vectors = [f for f in stage.record.fields if f.name in pair.weights]
        if isinstance(self.state, PairState):
            kinds = dict.fromkeys((*record.operands, *BY_INDEX, "j"), "float") | fields
            self.state.vectors = frozenset(f.name for f in self.vectors)
            self.state.weights = {
                n: lower(e, kinds | dict.fromkeys(INDICES, "int"), pair.state, None)
                for n, e in weights.items()
            }
            self.state.positive = self.positive_scale()
            self.state.moderate = frozenset(n for n, e in pair.drawn if is_moderate(e))

    def spares_guards(self, first: First) -> bool:
        """May whole blocks go without guards beside an element that may be infinite?

        Where it is, they are left to the loop of partial ones: it has to be there.
        """
        return first.outweighs is not None and self.loops.ends_masked

    def is_needed(self, guard: str) -> bool:
        """On a tile of which nothing is masked and every score is finite?"""
        rule, _, name = guard.partition(":")
        return rule != "neutral" and not (rule == "old" and underflows(self.record, name))

    def lowered_stage(self, record: Record) -> Stage:
        """The record lowered, over this kernel's operands and indices."""
        pair = self.pair
        inputs = [Input(n, (("i",), ("j",)), pair.state) for n, _ in pair.operands]
        inputs += [Input(n, (("i",), ("j",)), "int64") for n in BY_INDEX]
        inputs += [Input(n, (("i",), ("j",)), pair.state) for n in pair.record.payloads]
        axes = (Axis("i", 2, reduced=False), Axis("j", 2, reduced=True))
        operands = tuple((i.name, var(i.name)) for i in inputs)
        stage = Stage("pair", record, operands, 0)
        program = Program(self.title, axes, tuple(inputs), (stage,), (), pair.state)
        record = lowered(program, None).stages[0].record
        real = (*self.operands.items(), *((n, var(n)) for n in BY_INDEX))
        return Stage("pair", record, tuple(real), 0)

    def positive_scale(self) -> Expr | None:
        """The scalar that multiplies the raw score in x, where it is known to be positive."""
        x = self.operands.get(self.x)
        if x is None or x.op != "mul" or x.args[0] is not var("score"):
            return None
        scale = x.args[1]
        known = all(n in self.positive for n in names(scale))
        plain = all(n.op in ("var", "mul", "const") for n in walk(scale))
        signs = all((n.value or 0) > 0 for n in walk(scale) if n.op == "const")  # type: ignore[operator]
        return scale if known and plain and signs and self.frame.is_scalar(scale) else None

    # -- the kernel

    def print(self) -> PrintedKernel:
        self.begin()
        if isinstance(self.state, PairState) and self.first is not None:
            self.state.begun = self.first.printed(self.access, self.state.user)
        self.state.start()
        self.start_vectors()
        exprs = [*self.operands.values(), *([] if self.mask is None else [self.mask])]
        self.frame.use(*exprs)
        for e in exprs:
            for node in walk(e):
                if node.op == "mul" and is_const(node.args[1], LOG2_E):
                    self.body.user[node] = "scale_log2_e"
        self.frame.scalars(*exprs)
        self.access.load_reads(exprs, ("scalar", "row"), masked=True)
        self.body.hoist(exprs, lambda n: var(n) in self.body.known)
        odd = self.first.odd() if self.first is not None and self.finite else ""
        self.loops.visit(self.step, odd)
        self.state.after()
        self.state.read = {}
        self.store()
        return self.finished()

    def begin(self) -> None:
        w = self.w
        self.loops.programs("Sq", "QUERIES", last_first=True)
        w.line("b = bh // H")
        w.line("h = bh % H")
        w.line("hk = h // group" if self.blocks.grouped else "hk = h")
        w.line("i0 = block * QUERIES")
        if self.blocks.ranges is not None:
            w.line("i1 = tl.minimum(i0 + QUERIES, Sq)")
        w.line("i = i0 + tl.arange(0, QUERIES)", "(QUERIES,)")
        w.line("key = tl.arange(0, KEYS)", "(KEYS,)")
        terms = [f.term for f in self.record.fields if f.term is not None]
        read = self.frame.indices([*self.operands.values(), *terms, *self.record.lift])
        positions = any(f.kind in ("ArgMax", "ArgMin") for f in self.record.fields)
        self.reads_j = positions or "j" in read or self.record.form == "general"
        self.access.bases("h", "q")
        self.access.bases("hk", "k", *["v"] * bool(self.vectors))
        self.q = self.access.load("q", self.pair.D, "i0", "QUERIES", "h")

    def start_vectors(self) -> None:
        """The payload fields: a tile for each part of the payload's width."""
        self.parts: dict[str, list[str]] = {}
        widths = chunks(self.pair.DV) if self.vectors else ()
        for f in self.vectors:
            names_ = [f.name + (f"_{k}" if len(widths) > 1 else "") for k in range(len(widths))]
            self.parts[f.name] = [self.body.namer.claim(n) for n in names_]
            for name, width in zip(self.parts[f.name], widths, strict=True):
                shape = f"(QUERIES, {width})"
                self.w.line(f"{name} = tl.full({shape}, 0.0, tl.{self.pair.state})", shape)

    def step(self, start: str, masked: bool) -> None:
        """One block of keys."""
        w, state = self.w, self.state
        if masked or self.reads_j or not self.plan.descriptors:
            w.line(f"j = {start} + key", "(KEYS,)")
        k = self.access.load("k", self.pair.D, start, "KEYS", "hk", not masked)
        exprs = [
            *self.operands.values(),
            *([self.mask] if masked and self.mask is not None else []),
        ]
        self.access.load_reads(exprs, ("column", "element"), masked)
        general = isinstance(state, PairGeneral)
        if masked or general:
            tests = [self.mask] if masked and self.mask is not None else []
            self.loops.inside(tests, whole=general)
        w.line(f"score = {self.access.dot(self.q, k)}", "(QUERIES, KEYS)")
        if isinstance(state, PairState):
            state.even = not masked
            state.record = self.unguarded if not masked and self.finite else self.record
            state.absorbed = masked and absorbs(state.record, state.parts, self.x)
            if state.absorbed:
                text = self.body.text(self.operands[self.x], "element")
                w.line(f'x = tl.where(inside, {text}, float("-inf"))', "(QUERIES, KEYS)")
                self.body.bind(self.operands[self.x], "x", "element")
                if not self.operands[self.x].args:  # x is the raw score itself
                    self.body.known[self.operands[self.x]] = "x"
        state.begin_step()
        new = state.update()
        self.step_vectors(start, masked)
        state.settle(new)

    def step_vectors(self, start: str, masked: bool) -> None:
        if not self.vectors:
            return
        assert isinstance(self.state, PairState)
        weights = [self.state.weight(f) for f in self.vectors]
        v = self.access.load("v", self.pair.DV, start, "KEYS", "hk", not masked)
        if masked and self.mask is not None:
            self.loops.drop("seen_key", v)
        for f, p in zip(self.vectors, weights, strict=True):
            for part, tile in zip(self.parts[f.name], v, strict=True):
                moved = self.state.corrected_vector(f, part)
                given = p if self.pair.dtype == self.pair.state else f"{p}.to({tile}.dtype)"
                self.w.line(f"{part} = {self.access.product(given, tile, moved)}")

    # -- results

    def store(self) -> None:
        row = "bh.to(tl.int64) * Sq + i"
        row = f"({row}) * splits + split" if self.blocks.splits else row
        self.w.line(f"row = {row}", "(QUERIES,)")
        for r in self.pair.results:
            expr = self.results[r.name]
            (self.store_vector if r.vector else self.store_row)(r, expr)

    def store_row(self, r: Result, expr: Expr) -> None:
        self.frame.pointers[f"{_plain(r.name)}_ptr"] = None
        text = self.state.apply(f"finish_{_plain(r.name)}", expr, "row")
        self.w.line(f"tl.store({_plain(r.name)}_ptr + row, {text}, mask=i < Sq)")

    def store_vector(self, r: Result, expr: Expr) -> None:
        """Each part of the width: where a row holds nothing, what the declaration says."""
        name = _plain(r.name)
        parameters = list(dict.fromkeys(names(expr)))
        call_ = ""
        if expr.args:
            call_ = self.body.functions.define(
                f"finish_{name}", [p.replace(".", "_") for p in parameters], expr, self.natural
            )
        texts = []
        for k in range(len(chunks(self.pair.DV))):
            given = [self.parts[p][k] if p in self.parts else f"{self.state.value[p]}[:, None]"
                     for p in parameters]  # fmt: skip
            texts.append(f"{call_}({', '.join(given)})" if call_ else given[0])
        self.access.store(name, texts, self.pair.DV, "i < Sq")

    def finished(self) -> PrintedKernel:
        return self.frame.printed(header(self.pair, self.plan, self.title, self.certificates))


def _plain(name: str) -> str:
    return name.replace(".", "_")
