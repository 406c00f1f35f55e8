"""Indices, loads and stores of a row kernel: offsets from strides, masks, conversions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedreduce.declare.record import POSITION_KINDS
from fusedreduce.ir.expr import Expr, const, names, substitute, var
from fusedreduce.kernels.body import Body
from fusedreduce.kernels.names import identifier
from fusedreduce.plan.layout import Layout, contiguous
from fusedreduce.program import dtype_kind

INDEX_LIMIT = 2**30  # int32 holds twice as much: masked columns of a last tile lie beyond the row


@dataclass
class Access:
    """Where numbers lie: indices, offsets, masks; remembers which arguments it used."""

    body: Body
    layout: Layout
    used: dict[str, None] = field(default_factory=dict)
    strided: dict[str, str] = field(default_factory=dict)  # a stride's argument -> its tensor
    column_text: str = "column"
    firsts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = self.body.program
        self.plan = self.body.plan
        self.wide_columns = reach(self.layout) >= INDEX_LIMIT

    # -- indices

    def rows(self, tile: str = "tl.program_id(0).to(tl.int64)") -> None:
        """`row` (int64) and, for several outer axes, `row_0`, `row_1`, ..."""
        w = self.body.writer
        if self.plan.tiled:
            w.line(f"row = {tile} * ROWS + tl.arange(0, ROWS)", "(ROWS,)")
            w.line("row_inside = row < M", "(ROWS,)")
            self.used["M"] = None
        else:
            w.line("row = tl.program_id(0).to(tl.int64)")
        self.split("row", "row", self.layout.outer, "R")

    def column(self) -> None:
        """`column`: the columns of a block."""
        w = self.body.writer
        wide = ".to(tl.int64)" if self.wide_columns else ""
        if self.plan.parts == 1:
            w.line(f"column = tl.arange(0, BLOCK){wide}", "(BLOCK,)")
            return
        w.line("parts = tl.cdiv(N, BLOCK)")
        w.line("share = tl.program_id(0) // parts")
        first = "(tl.program_id(0) % parts) * BLOCK"
        w.line(f"column = {first} + tl.arange(0, BLOCK){wide}", "(BLOCK,)")

    def split(self, text: str, base: str, sizes: Sequence[int], letter: str) -> None:
        """One index a collapsed axis: the last varies fastest."""
        if len(sizes) == 1:
            return
        w = self.body.writer
        bare = text if text.isidentifier() else f"({text})"
        divisor = ""
        for k in reversed(range(len(sizes))):
            shape = self.body.shape(base)
            quotient = f"{bare} // {divisor}" if divisor else bare
            size = f"{letter}{k}"
            if k:
                self.used[size] = None
                w.line(f"{base}_{k} = {quotient} % {size}", shape)
                divisor = f"({size} * {divisor.strip('()')})" if divisor else size
            else:
                w.line(f"{base}_0 = {quotient}", shape)

    def columns(self, text: str) -> None:
        """The tile's columns: the mask `inside`, the index `j` where it is used."""
        w = self.body.writer
        self.column_text = text
        split = len(self.layout.reduced) > 1
        if text != "column" and (split or self.plan.tiled or self.uses_j()):
            w.line(f"j = {text}", "(BLOCK,)")
            self.column_text = "j"
        self.body.bind(var("j"), self.column_text, "column")
        self.split(self.column_text, "column", self.layout.reduced, "C")
        self.used["N"] = None
        if self.plan.tiled:
            w.line(
                f"inside = row_inside[:, None] & ({self.column_text} < N)[None, :]",
                "(ROWS, BLOCK)",
            )
        elif not self.plan.even or self.needs_inside():
            w.line(f"inside = {self.column_text} < N", "(BLOCK,)")

    def uses_j(self) -> bool:
        """Does some term or output read the index?"""
        stages = self.program.stages
        exprs = [o.expr for o in self.program.outputs]
        exprs += [f.term for s in stages for f in s.record.fields if f.term is not None]
        exprs += [e for s in stages for e in (*s.record.lift, *(e for _, e in s.operands))]
        positions = any(f.kind in POSITION_KINDS[1:] for s in stages for f in s.record.fields)
        return positions or "j" in names(*exprs)

    def needs_inside(self) -> bool:
        """A general form lifts every element at full shape."""
        return any(s.record.form == "general" for s in self.program.stages)

    # -- offsets

    def varies_by_column(self, name: str) -> bool:
        return name in self.program.by_name and self.place_of(name) in ("element", "column")

    def place_of(self, name: str) -> str:
        if name in self.program.by_name:
            return self.program.place_of_name(name)
        axes = next(o.axes for o in self.program.outputs if o.name == name)
        return self.program.place_of_axes(axes)

    def target(self, name: str) -> str:
        return self.place_of(name)

    def terms(self, name: str, first: bool = False) -> list[tuple[str, str]]:
        """(index text, place) of each part of the offset."""
        outer, reduced = self.layout.of(name)
        place = self.place_of(name)
        # A tensor expanded along an axis has stride 0 there: the offset still needs its shape.
        flat_rows = self.plan.tiled and place in ("element", "row") and not any(outer)
        flat_columns = place in ("element", "column") and not any(reduced)
        parts: list[tuple[str, str]] = []
        for k, stride in enumerate(outer):
            if stride or (flat_rows and k == 0):
                index = "row" if len(outer) == 1 else f"row_{k}"
                parts.append((self.product(index, name, "row", k, len(outer), stride), "row"))
        for k, stride in enumerate(reduced):
            if (stride or (flat_columns and k == 0)) and not first:
                index = self.column_text if len(reduced) == 1 else f"column_{k}"
                parts.append(
                    (self.product(index, name, "column", k, len(reduced), stride), "column")
                )
        return parts

    def product(self, index: str, name: str, side: str, k: int, many: int, stride: int) -> str:
        if stride == 1 and side == "column":
            return index
        argument = f"{identifier(name)}_{side}_stride" + (f"_{k}" if many > 1 else "")
        self.used[argument] = None
        self.strided[argument] = name
        if not index.isidentifier():
            index = f"({index})"
        return f"{index} * {argument}"

    def pointer(self, name: str, first: bool = False) -> str:
        place = self.place_of(name)
        texts = []
        for text, side in self.terms(name, first):
            if self.plan.tiled and place == "element" and not first:
                index, _, stride = text.partition(" * ")
                bracket = "[:, None]" if side == "row" else "[None, :]"
                index = index if index.isidentifier() else f"({index})"
                text = f"{index}{bracket}" + (f" * {stride}" if stride else "")
            texts.append(text)
        return " + ".join([f"{identifier(name)}_ptr", *texts])

    def mask(self, place: str) -> str:
        if self.plan.tiled:
            return {
                "element": "inside",
                "row": "row_inside",
                "column": f"{self.column_text} < N",
            }.get(place, "")
        return "inside" if place in ("element", "column") and not self.plan.even else ""

    # -- loads and stores

    def load(self, name: str) -> None:
        """x = tl.load(...), converted to the state's dtype."""
        if self.program.by_name[name].number:
            self.body.bind(var(name), name, "scalar")
            return
        place = self.place_of(name)
        mask = self.mask(place)
        text = self.converted(name, self.pointer(name), mask)
        self.body.writer.line(f"{identifier(name)} = {text}", self.body.shape(place))
        self.body.bind(var(name), identifier(name), place)

    def converted(self, name: str, pointer: str, mask: str) -> str:
        dtype = self.program.by_name[name].dtype
        other = ", mask=" + mask + ", other=0" + (".0" if "float" in dtype else "") if mask else ""
        text = f"tl.load({pointer}{other})"
        kind = dtype_kind(dtype)
        wanted = {"float": self.program.state, "int": "int64", "bool": "int1"}[kind]
        return text if dtype == wanted else f"{text}.to(tl.{wanted})"

    def first(self, expr: Expr, wish: str = "") -> Expr:
        """The operand at the first column: a row value, loaded as `wish` if that is all it is."""
        table: dict[str, Expr] = {"j": const(0)}
        for n in names(expr):
            if n in self.program.by_name and self.varies_by_column(n):
                table[n] = var(f"{n}_first")
                if n not in self.firsts:
                    place = "row" if self.place_of(n) == "element" else "scalar"
                    mask = "row_inside" if self.plan.tiled and place == "row" else ""
                    text = self.converted(n, self.pointer(n, first=True), mask)
                    wishes = [*([wish] if wish and expr is var(n) else []), f"{n}_first"]
                    name = self.body.assign(wishes, text, "row")
                    self.firsts[n] = name
                    self.body.bind(var(f"{n}_first"), name, place)
        return substitute(expr, table)

    def store(self, name: str, text: str) -> None:
        place = self.place_of(name)
        mask = self.mask(place)
        if place in ("column", "scalar"):  # every row has it: the first row writes it
            alone = "row == 0" if not self.plan.tiled else "tl.program_id(0) == 0"
            mask = f"({mask}) & ({alone})" if mask else alone
        extra = f", mask={mask}" if mask else ""
        self.body.writer.line(f"tl.store({self.pointer(name)}, {text}{extra})")

    def store_sums(self, name: str, text: str) -> None:
        """One row of partial sums a program."""
        mask = "" if self.plan.even else ", mask=column < N"
        self.used["N"] = None
        share = "tl.program_id(0)" if self.plan.parts == 1 else "share"
        pointer = f"{identifier(name)}_ptr + {share}.to(tl.int64) * N + column"
        self.body.writer.line(f"tl.store({pointer}, {text}{mask})")

    # -- the signature

    def arguments(self) -> list[str]:
        """Pointers, numbers, M, N, sizes, strides: in the order of the signature."""
        tensors = [i.name for i in self.program.inputs if not i.number]
        pointers = [f"{identifier(n)}_ptr" for n in tensors]
        pointers += [f"{identifier(o.name)}_ptr" for o in self.program.outputs]
        numbers = [i.name for i in self.program.inputs if i.number]
        sizes: list[str] = [s for s in ("M", "N") if s in self.used]
        sizes += sorted(s for s in self.used if s[0] in "RC" and s[1:].isdigit())
        order = {n: k for k, n in enumerate([*tensors, *(o.name for o in self.program.outputs)])}
        strides = sorted(self.strided, key=lambda u: (order[self.strided[u]], "_column_" in u, u))
        return [*pointers, *numbers, *sizes, *strides]


def reach(layout: Layout) -> int:
    """How far from its first element a row reaches, in any tensor: is int32 enough for columns?

    NOTE: the indices of a row that is not one stride are quotients, and those of int64 are slow.
    """
    return max(
        sum(n * stride for n, stride in zip(layout.reduced, r, strict=True))
        for r in (*(r for _, _, r in layout.strides), contiguous(layout.reduced))
    )


def integer_arguments(layout: Layout, rows: int, columns: int) -> dict[str, int]:
    """Every integer argument a printed row kernel may ask for, by name."""
    found: dict[str, int] = {"M": rows, "N": columns}
    found |= {f"R{k}": n for k, n in enumerate(layout.outer)}
    found |= {f"C{k}": n for k, n in enumerate(layout.reduced)}
    for name, outer, reduced in layout.strides:
        base = identifier(name)
        for side, strides in (("row", outer), ("column", reduced)):
            for k, stride in enumerate(strides):
                suffix = f"_{k}" if len(strides) > 1 else ""
                found[f"{base}_{side}_stride{suffix}"] = stride
    return found
