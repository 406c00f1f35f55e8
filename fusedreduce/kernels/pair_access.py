"""What a pair kernel reads: tiles of q, k, v and d_out, elements of tables; their products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusedreduce.ir.expr import Expr, call, cast, names, var
from fusedreduce.kernels.pair_frame import Frame, total
from fusedreduce.pair import INDICES, Read
from fusedreduce.plan.pairs import chunks

OWNERS = {"scalar": "head", "row": "query", "column": "key", "element": "pair"}


@dataclass(frozen=True)
class PairAccess:
    """Prints loads into a frame."""

    frame: Frame

    # -- tables

    def load_reads(self, exprs: Iterable[Expr], places: Sequence[str], masked: bool) -> None:
        """Load what the expressions read of tables, of these places, unless it has a name."""
        for n in names(*exprs):
            read = self.frame.read_of.get(n)
            if read is None or var(n) in self.frame.body.known:
                continue
            indices = [self.frame.lowered(e) for e in read.indices]
            self.load_reads(indices, places, masked)
            if self.frame.body.places[var(n)] in places:
                self.load_read(n, read, indices, masked)

    def load_read(self, name: str, read: Read, indices: Sequence[Expr], masked: bool) -> None:
        place = self.frame.body.places[var(name)]
        steps = [cast(e, "int64") * var(f"{read.table}_stride_{k}")
                 for k, e in enumerate(indices) if e.op != "const" or e.value]  # fmt: skip
        for e in (s.args[0] for s in steps if s.args[0].args[0].op == "const"):
            self.frame.body.bind(e, f"tl.full((), {e.args[0].value}, tl.int64)")
        self.frame.use(*steps)
        offset = total(steps)
        text = f"{read.table}_ptr" + (f" + {self.frame.body.text(offset, place)}" if steps else "")
        checks = self.in_range(read, indices, place, masked)
        dtype = next(t.dtype for t in self.frame.pair.tables if t.name == read.table)
        other = ", other=0" + (".0" if "float" in dtype else "")
        text = f"tl.load({text}" + (f", mask={checks}{other})" if checks else ")")
        kind = self.frame.kinds[name]
        wanted = {"float": self.frame.pair.state, "int": "int64", "bool": "int1"}[kind]
        text += "" if dtype == wanted else f".to(tl.{wanted})"
        self.frame.pointers[f"{read.table}_ptr"] = None
        wish = f"{read.table}_of_{OWNERS[place]}"
        self.frame.body.bind(var(name), self.frame.body.assign([wish], text, place))

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
        self.frame.use(*tests)
        texts = [
            self.frame.body.at(f"({self.frame.body.text(t)})", self.frame.body.place(t), place)
            for t in tests
        ]
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
            if self.frame.plan.descriptors:
                self.frame.pointers[f"{name}_desc{suffix}"] = None
                place = f"[b, {head}, {at}, {first}]"
                text = f"{name}_desc{suffix}.load({place}).reshape({size}, {part})"
            else:
                text = self.by_pointer(name, first, part, width, size, whole)
            self.frame.body.writer.line(f"{name}{suffix} = {text}", f"({size}, {part})")
            found.append(f"{name}{suffix}")
            first += part
        return found

    def by_pointer(
        self, name: str, first: int, part: int, width: int, size: str, whole: bool
    ) -> str:
        """The same by addresses, where there are no descriptors: `base` was printed before."""
        index, length = ("i", "Sq") if size == "QUERIES" else ("j", "Sk")
        self.frame.integers[f"{name}_stride_2"] = None
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
        if self.frame.plan.descriptors:
            return
        for name in operands:
            self.frame.pointers[f"{name}_ptr"] = None
            for k in (0, 1):
                self.frame.integers[f"{name}_stride_{k}"] = None
            at = f"b.to(tl.int64) * {name}_stride_0 + {head}.to(tl.int64) * {name}_stride_1"
            self.frame.body.writer.line(f"{name}_base = {name}_ptr + {at}")

    def dot(self, a: Sequence[str], b: Sequence[str], into: str = "") -> str:
        """a b^T over the parts of a width, as nested products that accumulate."""
        text = into
        for x, y in zip(a, b, strict=True):
            text = self.product(x, f"{y}.T", text)
        return text

    def product(self, a: str, b: str, into: str = "") -> str:
        precision = f', input_precision="{self.frame.precision}"' if self.frame.precision else ""
        more = (
            "" if self.frame.pair.state == "float32" else f", out_dtype=tl.{self.frame.pair.state}"
        )
        return f"tl.dot({a}, {b}{', ' + into if into else ''}{precision}{more})"

    def store(self, name: str, texts: Sequence[str], width: int, inside: str) -> None:
        """A contiguous result at `row`: a text for each part of its width."""
        body, first = self.frame.body, 0
        self.frame.pointers[f"{name}_ptr"] = None
        for text, part in zip(texts, chunks(width), strict=True):
            at = f"{first} + tl.arange(0, {part})" if first else f"tl.arange(0, {part})"
            d = body.assign(["d"], at, "")
            mask = f"({inside})[:, None]"
            if first + part > width:
                mask += f" & ({d} < {width})[None, :]"
            pointer = f"{name}_ptr + row[:, None] * {width} + {d}[None, :]"
            body.writer.line(f"tl.store({pointer}, {text}, mask={mask})")
            first += part
