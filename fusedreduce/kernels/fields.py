"""A field of the corrected form on one tile: its term, its monoid's product, the edge rules."""

from __future__ import annotations

from collections.abc import Mapping

from fusedreduce.declare import edges
from fusedreduce.declare.record import Field
from fusedreduce.ir.expr import const, names, substitute
from fusedreduce.kernels.spelling import literal
from fusedreduce.kernels.stage import StagePrinter, tight

UNITS = {"Sum": "0.0", "Prod": "1.0"}


class FieldPrinter(StagePrinter):
    """Prints what a field is on one tile alone.

    vectors   fields that somebody else prints (a pair's payload fields)
    """

    vectors: frozenset[str] = frozenset()
    LENGTH = "N"  # a position that no element has

    def numbers(self) -> list[Field]:
        return [f for f in self.record.fields if f.name not in self.vectors]

    # -- on a tile

    def contribution(self, f: Field) -> str:
        """The term of a field on this tile."""
        assert f.term is not None
        text = self.apply(f"term_{f.name}", f.term, self.term_place(f))
        if f.type == "int" and f.kind in ("Sum", "Prod") and f.term.op != "const":
            text = f"{tight(text)}.to(tl.int64)"
        return text

    def tile_of(self, f: Field) -> str:
        """The field of one tile alone: its monoid's product over the tile."""
        place = self.term_place(f)
        if f.kind in ("Any", "All"):
            unit = "0" if f.kind == "Any" else "1"
            text = f"{tight(self.contribution(f))}.to(tl.int32)"
            fold = "Max" if f.kind == "Any" else "Min"
            return f"{self.reduced(fold, self.masked(text, unit, place))} != 0"
        if f.kind in ("Max", "Min"):
            text = self.masked(self.contribution(f), literal(f.identity), place)
            return self.extreme(f, text)
        return self.reduced(
            f.kind,
            self.masked(self.contribution(f), self.unit(f), place, self.present(f)),
        )

    def extreme(self, f: Field, text: str) -> str:
        if self.propagates(f):
            helper = f"{f.kind.lower()}_propagating"
            self.body.functions.library[helper] = None
            return f"tl.reduce({text}, {self.axis}, {helper})"
        return self.reduced(f.kind, text)

    def propagates(self, f: Field) -> bool:
        """Must a NaN element make the extreme NaN by itself? Integers have none."""
        return f.type == "float" and self.record.guarded(f"nan:{f.name}")

    def unit(self, f: Field) -> str:
        return literal(int(UNITS[f.kind][0])) if f.type == "int" else UNITS[f.kind]

    # -- edge rules

    def present(self, f: Field) -> str:
        """Edge rule (a): the element counts for this field, as text; "" when it always does."""
        if not self.record.guarded(f"present:{f.name}"):
            return ""
        tests = []
        for reference in self.record.free_references(f.name):
            assert reference.term is not None
            text = self.apply(f"term_{reference.name}", reference.term, "element")
            tests.append(f"({text} != {literal(reference.identity)})")
        return " & ".join(tests)

    def is_count(self, f: Field) -> bool:
        """Every element contributes the same: the sum is N times it."""
        return (
            f.kind == "Sum"
            and self.term_place(f) in ("scalar", "row")
            and not f.reads
            and not self.present(f)
        )

    def count(self, f: Field, elements: str) -> str:
        number = f"tl.cast({elements}, {self.dtype(f.type)})"
        assert f.term is not None
        if f.term.op == "const" and f.term.value == 1:
            return number
        return f"{number} * {self.apply(f'term_{f.name}', f.term, 'row')}"

    def first(self, f: Field) -> None:
        """The first element of the row, read once: it never moves, nothing is corrected for it."""
        assert f.term is not None
        expr = substitute(f.term, {**self.first_operands, "j": const(0)})
        name = self.body.text(expr, "row")
        if not name.isidentifier():
            name = self.row(self.claim(f.name), name)
        self.value[f.name] = self.read[f.name] = name
        self.old[f.name] = name

    def readable(self, f: Field, value: str) -> str:
        """Edge rule (b): the variable that terms read."""
        if f.kind == "First" or not self.is_read(f):
            return value
        if not self.record.guarded(f"neutral:{f.name}") or self.counts(f):
            return value
        text = self.neutral(f, self.value)
        return self.row(self.claim(f"{f.name}_read"), text)

    def neutral(self, f: Field, state: Mapping[str, str]) -> str:
        """Edge rule (b) as a call: what is read of a reference of this state."""
        expr = edges.readable_expr(self.record, f.name)
        return self.helper(
            f"neutral_{f.name}", expr, [state[n] for n in dict.fromkeys(names(expr))]
        )

    def counts(self, f: Field) -> bool:
        """Does the formula read a count? Every row has an element, so it is not at its identity."""
        read = [self.record.by_name[n] for n in names(f.term or const(0)) if f.is_bound]
        return any(self.is_count(g) and g.term is not None and g.term.op == "const" for g in read)

    def is_read(self, f: Field) -> bool:
        return any(f.name in g.reads for g in self.record.fields)

    def formula(self, f: Field, suffix: str = "") -> str:
        assert f.term is not None
        return self.apply(f"reference_{f.name}", f.term, "row")

    def argextreme(self, f: Field) -> tuple[str, str]:
        """The value and the smallest position that attains it, on this tile."""
        kind = f.kind.removeprefix("Arg")
        helper = f"{kind.lower()}_propagating"
        self.body.functions.library[helper] = None
        assert f.term is not None
        term, place = self.contribution(f), self.term_place(f)
        masked = self.masked(term, literal(f.identity), place)
        best = self.once(f"{f.name}_best", f"tl.reduce({masked}, {self.axis}, {helper})")
        here = f"({term} == {self.body.at(best, 'row', 'element')})"
        if f.type == "float":
            here = f"({here} | ({term} != {term}))"
        j = self.body.at(self.argument("j", "column"), "column", "element")
        condition = here[1:-1] if self.everyone else f"inside & {here}"
        at = f"tl.min(tl.where({condition}, {j}, {self.LENGTH}), {self.axis}).to(tl.int64)"
        return best, at

    @property
    def everyone(self) -> bool:
        """Is no element of the tile padding?"""
        return self.body.plan.even and not self.body.plan.tiled
