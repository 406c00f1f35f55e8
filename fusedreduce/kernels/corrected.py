"""The corrected form printed: tile references, one correction a tile, tile sums."""

from __future__ import annotations

from fusedreduce.declare import edges
from fusedreduce.declare.record import NO_POSITION, Field
from fusedreduce.ir.expr import const, names
from fusedreduce.kernels.fields import FieldPrinter
from fusedreduce.kernels.spelling import literal


class CorrectedPrinter(FieldPrinter):
    """Prints a stage whose fields are corrected from one reference to another."""

    in_order = True  # are tiles visited in the order of their elements?

    # -- the whole row in one block

    def block(self) -> None:
        for f in self.record.fields:
            if f.kind == "First":
                self.first(f)
                continue
            if f.kind in ("ArgMax", "ArgMin"):
                self.value[f.position], at = self.argextreme(f)
                self.value[f.name] = self.row(self.claim(f.name), at)
                continue
            text = (
                self.formula(f)
                if f.is_bound
                else self.count(f, "N")
                if self.is_count(f)
                else self.tile_of(f)
            )
            self.value[f.name] = name = self.once(f.name, text)
            if f.is_reference:
                self.read[f.name] = self.readable(f, name)

    # -- a tile at a time

    def start(self) -> None:
        """Before the loop: the identity of every field."""
        for f in self.numbers():
            if f.kind == "First":
                self.first(f)
            elif f.kind in ("ArgMax", "ArgMin"):
                self.value[f.position] = self.full(f.position, f.identity, f.type)
                self.value[f.name] = self.full(f.name, NO_POSITION, "int")
            elif self.is_lane_sum(f):
                self.value[f.name] = self.claim(f.name)
                shape = self.body.shape("element")
                zeros = f"tl.full({shape}, {self.unit(f)}, {self.dtype(f.type)})"
                self.body.writer.line(f"{self.value[f.name]} = {zeros}")
            elif self.is_count(f) and self.term_place(f) == "scalar":
                self.value[f.name] = self.claim(f.name)
                self.row(
                    self.value[f.name], f"tl.full((), {literal(f.identity)}, {self.dtype(f.type)})"
                )
            else:
                identity = 0.0 if f.identity is None else f.identity
                self.value[f.name] = self.full(f.name, identity, f.type)

    def step(self) -> None:
        """Inside the loop: tile references, corrections, tile sums."""
        self.settle(self.update())

    def update(self) -> dict[str, str]:
        """The fields after this tile; answers the new ones whose old value is still there."""
        kept = self.kept()
        new: dict[str, str] = {}
        for f in self.numbers():
            if f.kind == "First":
                continue
            if f.kind in ("ArgMax", "ArgMin"):
                self.arg_step(f)
                continue
            text = self.stepped(f)
            if f.name in kept:
                new[f.name] = self.claim(f"{f.name}_new")
                self.advance(new[f.name], text)
                self.old[f.name] = self.value[f.name]
                self.value[f.name] = new[f.name]
            else:
                self.advance(self.value[f.name], text)
            if f.is_reference:
                self.read[f.name] = self.readable(f, self.value[f.name])
                self.old[f.name] = self.old_reference(f)
        return new

    def settle(self, new: dict[str, str]) -> None:
        """What the loop carries gets its new value."""
        for name, current in new.items():
            before = self._claimed[name]
            self.row(before, current)
            self.value[name] = before

    def kept(self) -> set[str]:
        """Fields whose old value is still needed after the new one is known."""
        read = {
            n.partition(".")[2]
            for f in self.record.fields
            if self.is_corrected(f) and f.correct is not None
            for n in names(f.correct)
            if n.startswith("old.")
        }
        bound = [f for f in self.record.fields if f.is_bound and f.term is not None]
        read |= {
            n for f in bound for n in names(f.term or const(0))
        }  # at its identity, if they are
        return read | {f.name for f in self.record.fields if f.is_reference and f.kind != "First"}

    def is_lane_sum(self, f: Field) -> bool:
        """May each lane keep a sum of its own until the loop ends? Nothing there reads it."""
        free = f.kind == "Sum" and not self.is_corrected(f) and f.name not in self.kept()
        return free and not self.is_count(f)

    def after(self) -> None:
        """After the loop: what the loop carried is the state of the row; lanes are summed up."""
        self.value |= self._claimed
        for f in self.numbers():
            if self.is_lane_sum(f):
                name = self.value[f.name]
                self.row(name, self.reduced("Sum", name))

    def is_corrected(self, f: Field) -> bool:
        """Does a reference of this field move inside a row? First never does."""
        return any(r.kind != "First" for r in self.record.all_references(f.name))

    def stepped(self, f: Field) -> str:
        """The field after this tile."""
        before = self.value[f.name]
        if f.is_bound:
            return self.formula(f)
        if self.is_count(f):
            return self.count(f, "tl.minimum(start + BLOCK, N)")
        if self.is_lane_sum(f):
            place = self.term_place(f)
            term = self.masked(self.contribution(f), self.unit(f), place, self.present(f))
            return f"{before} + {term}"
        tile = self.tile_of(f)
        if f.kind in ("Max", "Min"):
            flag = ", propagate_nan=tl.PropagateNan.ALL" if self.propagates(f) else ""
            return f"tl.{f.kind.lower()}imum({before}, {tile}{flag})"
        if f.kind in ("Any", "All"):
            return f"{before} {'|' if f.kind == 'Any' else '&'} ({tile})"
        if f.kind == "Prod":
            return f"{before} * {tile}"
        return f"{self.corrected(f)} + {tile}"

    def corrected(self, f: Field) -> str:
        """The field moved from the old references to the new ones."""
        if not self.is_corrected(f):
            return self.value[f.name]
        assert f.correct is not None
        parameters = list(dict.fromkeys(names(f.correct)))
        name = self.body.functions.define(
            f"correct_{f.name}", [p.replace(".", "_") for p in parameters], f.correct, self.user
        )
        return f"{name}({', '.join(self.side(f, p) for p in parameters)})"

    def side(self, f: Field, parameter: str) -> str:
        """A parameter of a correction: the field, `old.x` or `new.x`."""
        side, _, name = parameter.partition(".")
        if not name:
            return self.value[f.name]
        return self.read[name] if side == "new" else self.old.get(name, self.value[name])

    def old_reference(self, f: Field) -> str:
        """Edge rule (c): the old reference as corrections read it."""
        used = any(
            f"old.{f.name}" in names(g.correct) for g in self.record.fields if g.correct is not None
        )
        before = self._claimed[f.name]
        if not used:
            return before
        name = f"{f.name}_old"
        if not self.record.guarded(f"old:{f.name}"):
            if self.record.guarded(f"neutral:{f.name}"):
                return self.row(self.claim(name), self.neutral(f, self._claimed))
            return before
        expr = edges.readable_old_expr(self.record, f.name)
        given = {f"old.{n}": v for n, v in self._claimed.items()} | {
            f"new.{f.name}": self.read[f.name]
        }
        text = self.helper(
            f"old_or_new_{f.name}", expr, [given[n] for n in dict.fromkeys(names(expr))]
        )
        return self.row(self.claim(name), text)

    def nowhere(self, at: str) -> str:
        """The position on this tile; `NO_POSITION` where the tile holds no element of the row."""
        return at

    def arg_step(self, f: Field) -> None:
        best, at = self.argextreme(f)
        sign = ">" if f.kind == "ArgMax" else "<"
        value, position = self.value[f.position], self.value[f.name]
        better = f"({best} {sign} {value}) | ({position} == {NO_POSITION})"
        if f.type == "float":
            better += f" | (({best} != {best}) & ({value} == {value}))"
        if not self.in_order:
            at = self.row(self.claim(f"{f.name}_here"), self.nowhere(at))
            better += f" | (({best} == {value}) & ({at} < {position}))"
        name = self.row(self.claim(f"{f.name}_better"), better)
        self.row(position, f"tl.where({name}, {at}, {position})")
        self.row(value, f"tl.where({name}, {best}, {value})")
