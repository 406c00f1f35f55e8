"""What the printers of pair kernels share: names and places, tables, tiles of operands, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fusedreduce.ir.expr import Expr, call, cast, const, names, rewrite, var, walk
from fusedreduce.kernels.body import Body
from fusedreduce.kernels.functions import FUNCTIONS, with_needs
from fusedreduce.kernels.lower import lower
from fusedreduce.kernels.names import TAKEN
from fusedreduce.masks.ranges import Ranges
from fusedreduce.pair import INDICES, SCORE, SIZES, Pair, Read
from fusedreduce.plan.pairs import PairPlan, chunks
from fusedreduce.program import Axis, Program

NO_INDEX = var("no index")  # positions are int32 in a pair kernel; offsets are widened by hand
OWNERS = {"scalar": "head", "row": "query", "column": "key", "element": "pair"}
PRINTED = frozenset((
    "b", "h", "hk", "i", "j", "i0", "i1", "j0", "j1", "block", "blocks", "bh", "H", "group", "Sq",
    "Sk", "QUERIES", "KEYS", "query", "key", "q", "k", "v", "score", "end", "count", "n", "g",
    "place", "together", "first_bh", "full", "full_end", "first_block", "listed", "width",
    "seen_key", "seen_query",
))  # fmt: skip


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
    grouped        several heads of q share one of k
    """

    ranges: Ranges | None = None
    lists: bool = False
    batch: bool = False
    heads: bool = False
    even: bool = False
    grouped: bool = True


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
        self.body.namer.taken |= taken
        self.body.writer.depth = 1
        self.reads = {r.node: var(f"{r.table}_{k}") for k, r in enumerate(self.pair.reads)}
        self.read_of = {str(v.value): r for r, v in zip(self.pair.reads, self.reads.values(),
                                                       strict=True)}  # fmt: skip
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
        return self.pair.place(call("read", var(read.table), _total(read.indices)))

    def lowered(self, e: Expr) -> Expr:
        """An expression over score, indices and rows, as the kernel computes it."""
        return lower(rewrite(e, self.reads.get), self.kinds, self.pair.state, NO_INDEX)

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
        """Before the loop: a name for what is made of run-time numbers alone."""
        for node in walk(*exprs):
            used = any(node in n.args and not self.is_scalar(n) for n in walk(*exprs))
            number = any(n in self.pair.numbers for n in names(node))
            if node.args and self.is_scalar(node) and used and number:
                self.body.define(node)

    def indices(self, exprs: Iterable[Expr]) -> set[str]:
        """The names that expressions depend on, through tables too."""
        found: set[str] = set()
        for n in names(*exprs):
            read = self.read_of.get(n)
            found |= {n} if read is None else self.indices(map(self.lowered, read.indices))
        return found

    # -- tables

    def load_reads(self, exprs: Iterable[Expr], places: Sequence[str], masked: bool) -> None:
        """Load what the expressions read of tables, of these places, unless it has a name."""
        for n in names(*exprs):
            read = self.read_of.get(n)
            if read is None or var(n) in self.body.known:
                continue
            indices = [self.lowered(e) for e in read.indices]
            self.load_reads(indices, places, masked)
            if self.body.places[var(n)] in places:
                self.load_read(n, read, indices, masked)

    def load_read(self, name: str, read: Read, indices: Sequence[Expr], masked: bool) -> None:
        place = self.body.places[var(name)]
        steps = [cast(e, "int64") * var(f"{read.table}_stride_{k}")
                 for k, e in enumerate(indices) if e.op != "const" or e.value]  # fmt: skip
        self.use(*steps)
        offset = _total(steps)
        text = f"{read.table}_ptr" + (f" + {self.body.text(offset, place)}" if steps else "")
        checks = self.in_range(read, indices, place, masked)
        dtype = next(t.dtype for t in self.pair.tables if t.name == read.table)
        other = ", other=0" + (".0" if "float" in dtype else "")
        text = f"tl.load({text}" + (f", mask={checks}{other})" if checks else ")")
        kind = self.kinds[name]
        wanted = {"float": self.pair.state, "int": "int64", "bool": "int1"}[kind]
        text += "" if dtype == wanted else f".to(tl.{wanted})"
        self.pointers[f"{read.table}_ptr"] = None
        wish = f"{read.table}_of_{OWNERS[place]}"
        self.body.bind(var(name), self.body.assign([wish], text, place))

    def in_range(self, read: Read, indices: Sequence[Expr], place: str, masked: bool) -> str:
        """Padded rows and columns read nothing, and neither do indices beyond the table."""
        tests: list[Expr] = []
        if place in ("row", "element"):
            tests.append(call("lt", var("i"), var("Sq")))
        if place in ("column", "element") and (masked or place == "column"):
            tests.append(call("lt", var("j"), var("Sk")))
        for k, e in enumerate(indices):
            if e.op == "const" or (e.op == "var" and e.value in INDICES):
                continue
            tests.append(call("ge", e, 0))
            tests.append(call("lt", e, var(f"{read.table}_size_{k}")))
        self.use(*tests)
        texts = [self.body.at(f"({self.body.text(t)})", self.body.place(t), place) for t in tests]
        return texts[0][1:-1] if len(texts) == 1 and texts[0].endswith(")") else " & ".join(texts)

    # -- operands

    def load(
        self, name: str, width: int, at: str, size: str, head: str, whole: bool = False
    ) -> list[str]:
        """The rows of q, k, v or d_out from `at` on: one tile a part of the width.

        whole   every row exists (a descriptor does not need to know)
        """
        parts, found, first = chunks(width), [], 0
        for k, part in enumerate(parts):
            suffix = f"_{k}" if len(parts) > 1 else ""
            if self.plan.descriptors:
                self.pointers[f"{name}_desc{suffix}"] = None
                place = f"[b, {head}, {at}, {first}]"
                text = f"{name}_desc{suffix}.load({place}).reshape({size}, {part})"
            else:
                text = self.by_pointer(name, first, part, width, size, whole)
            self.body.writer.line(f"{name}{suffix} = {text}", f"({size}, {part})")
            found.append(f"{name}{suffix}")
            first += part
        return found

    def by_pointer(
        self, name: str, first: int, part: int, width: int, size: str, whole: bool
    ) -> str:
        """The same by addresses, where there are no descriptors: `base` was printed before."""
        index, length = ("i", "Sq") if size == "QUERIES" else ("j", "Sk")
        self.integers[f"{name}_stride_2"] = None
        columns = f"tl.arange(0, {part})[None, :]"
        columns = f"{first} + {columns}" if first else columns
        rows = f"{index}.to(tl.int64)[:, None] * {name}_stride_2"
        tests = [] if whole else [f"({index} < {length})[:, None]"]
        if first + part > width:
            tests.append(f"({columns} < {width})")
        mask = f", mask={' & '.join(tests)}, other=0.0" if tests else ""
        return f"tl.load({name}_base + {rows} + {columns}{mask})"

    def bases(self, head: str, *operands: str) -> None:
        """Where the rows of this batch and head begin."""
        if self.plan.descriptors:
            return
        for name in operands:
            self.pointers[f"{name}_ptr"] = None
            for k in (0, 1):
                self.integers[f"{name}_stride_{k}"] = None
            at = f"b.to(tl.int64) * {name}_stride_0 + {head}.to(tl.int64) * {name}_stride_1"
            self.body.writer.line(f"{name}_base = {name}_ptr + {at}")

    def dot(self, a: Sequence[str], b: Sequence[str], into: str = "") -> str:
        """a b^T over the parts of a width, as nested products that accumulate."""
        text = into
        for x, y in zip(a, b, strict=True):
            text = self.product(x, f"{y}.T", text)
        return text

    def product(self, a: str, b: str, into: str = "") -> str:
        precision = f', input_precision="{self.precision}"' if self.precision else ""
        more = "" if self.pair.state == "float32" else f", out_dtype=tl.{self.pair.state}"
        return f"tl.dot({a}, {b}{', ' + into if into else ''}{precision}{more})"

    # -- programs and loops

    def programs(self, outer: str, size: str, last_first: bool) -> None:
        """Which block of which head a program takes: where ranges differ, the long ones first.

        So many heads side by side as fit in the second-level cache together.
        """
        w = self.body.writer
        w.line(f"blocks = tl.cdiv({outer}, {size})")
        if self.blocks.ranges is None:
            w.line("block = tl.program_id(0) % blocks")
            w.line("bh = tl.program_id(0) // blocks")
            return
        w.line("place = tl.program_id(0) % (blocks * together)")
        w.line(f"block = {'blocks - 1 - ' * last_first}place // together")
        w.line("first_bh = tl.program_id(0) // (blocks * together) * together")
        w.line("bh = first_bh + place % together")

    def inside(self, exprs: Sequence[Expr], whole: bool = False) -> None:
        """`inside`: the pairs of a partial block that count; of full shape if `whole`."""
        tests = [call("lt", var("j"), var("Sk"))]
        if self.plan.direction == "keys" or whole:
            tests.append(call("lt", var("i"), var("Sq")))
        tests += [part for e in exprs for part in conjuncts(e)]
        parts = []
        for t in tests:
            place = self.body.place(t)
            parts.append(self.body.at(f"({self.body.text(t)})", place, "element"))
        line = " & ".join(parts)
        self.body.writer.line(f"inside = {line}", self.body.shape("element"))
        self.use(*tests)

    def drop(self, seen: str, tiles: Sequence[str]) -> None:
        """Rows of the inner axis that nobody in the block sees count for 0 in a product of tiles.

        They may hold anything, and 0 * NaN is NaN.
        """
        size = "QUERIES" if seen == "seen_query" else "KEYS"
        keys = self.plan.direction == "keys"
        here = "inside" if keys else "(inside & (i < Sq)[:, None])"  # of queries that exist
        text = self.in_range_of_block() or f"tl.max({here}.to(tl.int32), 0) > 0"
        self.body.writer.line(f"{seen} = {text}", f"({size},)")
        for t in tiles:
            self.body.writer.line(f"{t} = tl.where({seen}[:, None], {t}, 0.0)")

    def in_range_of_block(self) -> str:
        """Does somebody in the block see it? Of one comparison the range of the block says so."""
        r, mask = self.blocks.ranges, self.pair.mask
        if r is None or mask is None or mask.op not in ("lt", "le", "gt", "ge"):
            return ""
        index, inner = ("i", "Sq") if self.plan.direction == "keys" else ("j", "Sk")
        lo = self.bound(r.lo)
        tests = [f"{index} >= {lo}"] * (lo != "0")
        tests += [f"{index} < end"] * (self.bound(r.hi) != inner)
        return tests[0] if len(tests) == 1 else " & ".join(f"({t})" for t in tests)

    def visit(self, step: Callable[[str, bool], None]) -> None:
        """The loops over blocks of the inner axis; `step(start, masked)` prints one body.

        NOTE: whole blocks come first: with the masked ones in front d k and d v take 15 to 20 %
        longer (causal, H200, Triton 3.6).
        """
        if self.blocks.lists:
            self.visit_lists(step)
        else:
            self.visit_ranges(step)

    def visit_lists(self, step: Callable[[str, bool], None]) -> None:
        w = self.body.writer
        size = "QUERIES" if self.plan.direction == "keys" else "KEYS"
        inner = "Sq" if self.plan.direction == "keys" else "Sk"
        outer = "blocks"
        planes = {(0, 0): "", (1, 0): "b", (0, 1): "h", (1, 1): "(b * H + h)"}
        plane = planes[self.blocks.batch, self.blocks.heads]
        listed = "listed" if plane else "block"
        if plane:
            w.line(f"listed = {plane} * {outer} + block")
        w.line(f"width = tl.cdiv({inner}, {size})")
        for kind, masked in (("full", False), ("partial", True)):
            self.pointers[f"{kind}_counts_ptr"] = self.pointers[f"{kind}_ids_ptr"] = None
            w.line(f"count = tl.load({kind}_counts_ptr + {listed})")
            with self.inner("for n in range(count):"):
                w.line(f"start = tl.load({kind}_ids_ptr + {listed} * width + n) * {size}")
                step("start", masked)

    def visit_ranges(self, step: Callable[[str, bool], None]) -> None:
        w = self.body.writer
        size, inner = ("QUERIES", "Sq") if self.plan.direction == "keys" else ("KEYS", "Sk")
        r = self.blocks.ranges
        if r is None and self.blocks.even:
            self.loop(step, "0", inner, size, masked=False)
            return
        if r is None:
            w.line(f"end = {inner} // {size} * {size}")
            self.loop(step, "0", "end", size, masked=False)
            self.loop(step, "end", inner, size, masked=True)
            return
        lo, full_lo, full_hi, hi = (self.bound(e) for e in (r.lo, r.full_lo, r.full_hi, r.hi))
        first, before = "0", ""
        if lo != "0":
            w.line(f"first_block = {lo} // {size} * {size}")
            first = "first_block"
        w.line(f"end = {hi}")
        if full_lo != "0":
            whole = f"tl.cdiv({full_lo}, {size}) * {size}"
            w.line(f"full = tl.maximum({first}, tl.minimum({whole}, end))")
            first, before = "full", first
        end = inner
        if not (self.blocks.even and full_hi == hi == inner):
            w.line(f"full_end = tl.maximum({full_hi} // {size} * {size}, {first})")
            end = "full_end"
        self.loop(step, first, end, size, masked=False)
        if before:
            self.loop(step, before, first, size, masked=True)
        if end != inner:
            self.loop(step, end, "end", size, masked=True)

    def bound(self, e: Expr) -> str:
        """A limit of a range over i0, i1 (or j0, j1), sizes and offsets."""
        self.use(e)
        for n in names(e):
            self.body.bind(var(n), n, "scalar")
        return self.body.text(e).replace(", propagate_nan=tl.PropagateNan.ALL", "")

    def loop(self, step: Callable[[str, bool], None], first: str, end: str, size: str,
             masked: bool) -> None:  # fmt: skip
        with self.inner(f"for start in range({first}, {end}, {size}):"):
            step("start", masked)

    @contextmanager
    def inner(self, head: str) -> Iterator[None]:
        """A loop: what is named inside is free again after it."""
        namer, functions = self.body.namer, self.body.functions
        taken = set(namer.taken)
        with self.body.writer.block(head), self.body.inner():
            yield
        namer.taken = taken | set(functions.texts)

    # -- the module

    def module(self, header: str, arguments: Sequence[str], constants: Sequence[str]) -> str:
        functions = self.body.functions
        typed = [f"{a}: tl.float64" if a in self.numbers and self.pair.state == "float64" else a
                 for a in arguments]  # fmt: skip
        parts = ["import triton\nimport triton.language as tl\n"]
        parts += [FUNCTIONS[n].text.strip("\n") + "\n" for n in with_needs(functions.library)]
        parts += list(functions.texts.values())
        kernel = Body(self.body.program, Tile(even=False)).writer
        sizes = [a for a in arguments if a in ("H", "group", "together", *SIZES)]
        kernel.line(f"@triton.jit(do_not_specialize={sizes})".replace("'", '"'))
        signature = [*typed, *(f"{c}: tl.constexpr" for c in constants)]
        kernel.line(f"def {self.title}({', '.join(signature)}):")
        parts.append(kernel.text() + self.body.writer.text())
        return header + "\n" + "\n\n".join(parts)


def conjuncts(e: Expr) -> list[Expr]:
    return [p for a in e.args for p in conjuncts(a)] if e.op == "and" else [e]


def _total(exprs: Sequence[Expr]) -> Expr:
    total: Expr = const(0)
    for e in exprs:
        total = e if total is const(0) else total + e
    return total
