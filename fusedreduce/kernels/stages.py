"""How one declared reduction is printed: terms, references, one correction a tile, finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedreduce.declare import edges
from fusedreduce.declare.record import NO_POSITION, Field
from fusedreduce.ir.expr import Expr, const, names, substitute, var
from fusedreduce.kernels.body import Body
from fusedreduce.kernels.spelling import TYPES, literal
from fusedreduce.program import Stage

UNITS = {"Sum": "0.0", "Prod": "1.0"}


@dataclass
class StagePrinter:
    """Prints one stage into a body.

    `value` maps a field (or `field_position`, ...) to the variable that holds it; `read` maps a
    reference to the variable that terms read; `now` and `before` are the sides of a correction.
    """

    body: Body
    stage: Stage
    value: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    old: dict[str, str] = field(default_factory=dict)
    operand_text: dict[str, Expr] = field(default_factory=dict)
    _claimed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.record = self.stage.record
        self.operand_text = dict(self.stage.operands)
        self.first_operands: dict[str, Expr] = {}
        self.user = dict(self.record.names)

    # -- names and types

    @property
    def axis(self) -> int:
        return 1 if self.body.plan.tiled else 0

    def dtype(self, type_: str) -> str:
        return TYPES[type_] if type_ != "float" else f"tl.{self.body.program.state}"

    def wish(self, name: str) -> list[str]:
        return [name, f"{self.stage.name}_{name}"]

    def claim(self, name: str) -> str:
        return self.body.namer.claim_first(self.wish(name))

    def row(self, name: str, text: str) -> str:
        """A statement of row shape."""
        self.body.writer.line(f"{name} = {text}", self.body.shape("row"))
        return name

    # -- pieces of text

    def argument(self, parameter: str, target: str) -> str:
        """What a printed helper's parameter gets: an operand, a reference, the index."""
        if parameter in self.read:
            return self.body.at(self.read[parameter], "row", target)
        if parameter in self.value:
            return self.body.at(self.value[parameter], "row", target)
        expr = var("j") if parameter == "j" else self.operand_text[parameter]
        if expr.args:
            self.body.define(expr, parameter)
        return self.body.at(self.body.text(expr), self.body.place(expr), target)

    def apply(self, wish: str, expr: Expr, target: str) -> str:
        """Call a printed helper for `expr`; a bare variable or constant needs none."""
        parameters = list(dict.fromkeys(names(expr)))
        arguments = [self.argument(p, target) for p in parameters]
        if expr.op == "const":
            return literal(expr.value)
        if expr.op == "var":
            return arguments[0]
        name = self.body.functions.define(
            wish, [p.replace(".", "_") for p in parameters], expr, self.user
        )
        return f"{name}({', '.join(arguments)})"

    def term_place(self, f: Field) -> str:
        assert f.term is not None
        places = [self.place_of(n) for n in names(f.term)]
        if "element" in places or {"row", "column"} <= set(places):
            return "element"
        return next((p for p in ("row", "column") if p in places), "scalar")

    def place_of(self, parameter: str) -> str:
        if parameter in self.record.by_name:
            return "row"
        expr = var("j") if parameter == "j" else self.operand_text[parameter]
        return self.body.place(expr)

    def masked(self, text: str, identity: str, place: str, present: str = "") -> str:
        """where(the element counts, text, identity); nothing where every element counts."""
        plan = self.body.plan
        inside = "" if plan.even and not (plan.tiled and place != "element") else "inside"
        condition = " & ".join(c for c in (inside, present) if c)
        return f"tl.where({condition}, {text}, {identity})" if condition else text

    def reduced(self, kind: str, text: str) -> str:
        """One number a row from a tile."""
        if kind in ("Max", "Min"):
            return f"tl.{kind.lower()}({text}, {self.axis})"
        if kind == "Prod":
            self.body.functions.library["multiply"] = None
            return f"tl.reduce({text}, {self.axis}, multiply)"
        return f"tl.sum({text}, {self.axis})"

    # -- fields of the corrected form

    def contribution(self, f: Field) -> str:
        """The term of a field on this tile."""
        assert f.term is not None
        text = self.apply(f"term_{f.name}", f.term, self.term_place(f))
        if f.type == "int" and f.kind in ("Sum", "Prod") and f.term.op != "const":
            text = f"{_tight(text)}.to(tl.int64)"
        return text

    def tile_of(self, f: Field) -> str:
        """The field of one tile alone: its monoid's product over the tile."""
        place = self.term_place(f)
        if f.kind in ("Any", "All"):
            unit = "0" if f.kind == "Any" else "1"
            text = f"{_tight(self.contribution(f))}.to(tl.int32)"
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
        """The first element of the row, read once: it never moves, so nothing is corrected for it."""
        assert f.term is not None
        expr = substitute(f.term, {**self.first_operands, "j": const(0)})
        name = self.claim(f.name)
        self.row(name, self.body.text(expr, "row"))
        self.value[f.name] = self.read[f.name] = name
        self.old[f.name] = name

    def readable(self, f: Field, value: str) -> str:
        """Edge rule (b): the variable that terms read."""
        if f.kind == "First" or not self.is_read(f):
            return value
        if not self.record.guarded(f"neutral:{f.name}") or f.identity is None:
            return value
        text = self.helper(f"neutral_{f.name}", edges.readable_expr(f), [value])
        return self.row(self.claim(f"{f.name}_read"), text)

    def helper(self, wish: str, expr: Expr, arguments: Sequence[str]) -> str:
        parameters = [p.replace(".", "_") for p in dict.fromkeys(names(expr))]
        name = self.body.functions.define(wish, parameters, expr, {})
        return f"{name}({', '.join(arguments)})"

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
        term = self.apply(f"term_{f.name}", f.term, self.term_place(f))
        place = self.term_place(f)
        masked = self.masked(term, literal(f.identity), place)
        best = self.claim(f"{f.name}_best")
        self.row(best, f"tl.reduce({masked}, {self.axis}, {helper})")
        here = f"({term} == {self.body.at(best, 'row', 'element')})"
        if f.type == "float":
            here = f"({here} | ({term} != {term}))"
        j = self.body.at(self.argument("j", "column"), "column", "element")
        condition = here if self.body.plan.even and not self.body.plan.tiled else f"inside & {here}"
        at = f"tl.min(tl.where({condition}, {j}, N), {self.axis}).to(tl.int64)"
        return best, at

    # -- the whole row in one block

    def block(self) -> None:
        if self.record.form == "general":
            self.general_tile(self.value)
            return
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
            name = self.claim(f.name)
            self.row(name, text)
            self.value[f.name] = name
            if f.is_reference:
                self.read[f.name] = self.readable(f, name)

    # -- a tile at a time

    def start(self) -> None:
        """Before the loop: the identity of every field."""
        shape = "(ROWS,)" if self.body.plan.tiled else "()"
        if self.record.form == "general":
            for f in self.record.fields:
                self.value[f.name] = self.full(f.name, f.identity, f.type, shape)
            return
        for f in self.record.fields:
            if f.kind == "First":
                self.first(f)
            elif f.kind in ("ArgMax", "ArgMin"):
                self.value[f.position] = self.full(f.position, f.identity, f.type, shape)
                self.value[f.name] = self.full(f.name, NO_POSITION, "int", shape)
            else:
                identity = 0.0 if f.identity is None else f.identity
                self.value[f.name] = self.full(f.name, identity, f.type, shape)

    def full(self, name: str, identity: object, type_: str, shape: str) -> str:
        return self.row(
            self.claim(name), f"tl.full({shape}, {literal(identity)}, {self.dtype(type_)})"
        )

    def step(self) -> None:
        """Inside the loop: tile references, corrections, tile sums."""
        if self.record.form == "general":
            self.general_step()
            return
        kept = self.kept()
        new: dict[str, str] = {}
        for f in self.record.fields:
            if f.kind == "First":
                continue
            if f.kind in ("ArgMax", "ArgMin"):
                self.arg_step(f)
                continue
            text = self.stepped(f)
            if f.name in kept:
                new[f.name] = self.claim(f"{f.name}_new")
                self.row(new[f.name], text)
                self.old[f.name] = self.value[f.name]
                self.value[f.name] = new[f.name]
            else:
                self.row(self.value[f.name], text)
            if f.is_reference:
                self.read[f.name] = self.readable(f, self.value[f.name])
                self.old[f.name] = self.old_reference(f)
        for name, current in new.items():
            before = self._claimed[name]
            self.row(before, current)
            self.value[name] = before

    def begin_step(self) -> None:
        """Remember which variables the loop carries."""
        self._claimed = dict(self.value)

    def kept(self) -> set[str]:
        """Fields whose old value is still needed after the new one is known."""
        read = {
            n.partition(".")[2]
            for f in self.record.fields
            if self.is_corrected(f) and f.correct is not None
            for n in names(f.correct)
            if n.startswith("old.")
        }
        return read | {f.name for f in self.record.fields if f.is_reference and f.kind != "First"}

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
            f"old.{f.name}" in names(g.correct)
            for g in self.record.fields
            if g.correct is not None
        )
        before = self._claimed[f.name]
        if not used:
            return before
        name = f"{f.name}_old"
        if f.is_bound:
            self.need_first()
            return self.row(self.claim(name), f"tl.where(first, {self.read[f.name]}, {before})")
        if not self.record.guarded(f"old:{f.name}"):
            if self.record.guarded(f"neutral:{f.name}"):
                text = self.helper(f"neutral_{f.name}", edges.readable_expr(f), [before])
                return self.row(self.claim(name), text)
            return before
        expr = edges.readable_old_expr(f)
        given = {f"old.{f.name}": before, f"new.{f.name}": self.read[f.name]}
        text = self.helper(f"old_or_new_{f.name}", expr, [given[n] for n in dict.fromkeys(names(expr))])
        return self.row(self.claim(name), text)

    def need_first(self) -> None:
        """`first`: is this the first tile? Printed once a loop."""
        if not self.body.known.get(var("first")):
            self.body.writer.line("first = tl.cast(start, tl.int64) == 0")
            self.body.bind(var("first"), "first", "scalar")

    def arg_step(self, f: Field) -> None:
        best, at = self.argextreme(f)
        sign = ">" if f.kind == "ArgMax" else "<"
        value, position = self.value[f.position], self.value[f.name]
        better = f"({best} {sign} {value}) | ({position} == {NO_POSITION})"
        if f.type == "float":
            better += f" | (({best} != {best}) & ({value} == {value}))"
        name = self.row(self.claim(f"{f.name}_better"), better)
        self.row(position, f"tl.where({name}, {at}, {position})")
        self.row(value, f"tl.where({name}, {best}, {value})")

    # -- the general form

    def merge_helper(self) -> str:
        fields = [f.name for f in self.record.fields]
        parameters = [f"{s}_{n}" for s in ("a", "b") for n in fields]
        lines, local = self.body.functions.bodies(self.record.merge, parameters, self.user)
        lines.append(f"return {', '.join(local)}")
        return self.body.functions.add(
            f"merge_{self.stage.name}", parameters, lines
        )

    def present_helper(self, merge: str) -> str:
        """Edge rule (e): a side with no element is not merged."""
        fields = [f.name for f in self.record.fields]
        parameters = [f"{s}_{n}" for s in ("a", "b") for n in ("present", *fields)]
        sides = ", ".join(f"{s}_{n}" for s in ("a", "b") for n in fields)
        lines = [f"{', '.join(fields)} = {merge}({sides})"]
        for n in fields:
            lines.append(f"{n} = tl.where(b_present == 0, a_{n}, {n})")
            lines.append(f"{n} = tl.where(a_present == 0, b_{n}, {n})")
        lines.append(f"return a_present | b_present, {', '.join(fields)}")
        return self.body.functions.add(f"{merge}_present", parameters, lines)

    def general_tile(self, into: dict[str, str], suffix: str = "") -> None:
        """Lift every element and merge the tile: unordered when the merge commutes, else a scan."""
        merge = self.merge_helper()
        plan = self.body.plan
        lifted = [self.lifted(f, e) for f, e in zip(self.record.fields, self.record.lift, strict=True)]
        variables = [self.claim(f"{f.name}{suffix}") for f in self.record.fields]
        everyone = plan.even and not plan.tiled
        if not everyone:
            merge = self.present_helper(merge)
            present = self.claim("present")
            self.body.writer.line(f"{present} = inside.to(tl.int32)", self.body.shape("element"))
            lifted.insert(0, present)
        targets = variables if everyone else ["_", *variables]
        if self.record.commutative:
            self.body.writer.line(
                f"{', '.join(targets)} = tl.reduce({tuple_of(lifted)}, {self.axis}, {merge})"
            )
        else:
            self.scan(targets, lifted, merge)
        into.update(zip((f.name for f in self.record.fields), variables, strict=True))

    def scan(self, targets: Sequence[str], lifted: Sequence[str], merge: str) -> None:
        """The merge does not commute, and tl.reduce reorders: scan in order and take the last."""
        w = self.body.writer
        folded = ["_" if t == "_" else f"{t}_scan" for t in targets]
        w.line(
            f"{', '.join(folded)} = tl.associative_scan("
            f"{tuple_of(lifted)}, {self.axis}, {merge})"
        )
        last = "tl.arange(0, BLOCK) == BLOCK - 1"
        last = f"({last})[None, :]" if self.body.plan.tiled else last
        for t, f in zip(targets, folded, strict=True):
            if t != "_":
                self.row(t, f"tl.sum(tl.where({last}, {f}, 0), {self.axis})")

    def lifted(self, f: Field, expr: Expr) -> str:
        """One component of the lift, at full tile shape and in the field's dtype."""
        dtype = self.dtype(f.type)
        if expr.op == "const" and expr.value == f.identity:
            shape = "(ROWS, BLOCK)" if self.body.plan.tiled else "(BLOCK,)"
            text = f"tl.full({shape}, {literal(f.identity)}, {dtype})"
        else:
            text = self.apply(f"lift_{f.name}", expr, "element")
            text = f"tl.where(inside, {text}, {literal(f.identity)})"
            text += "" if dtype == "tl.float32" else f".to({dtype})"
        name = self.claim(f"{f.name}_lift")
        self.body.writer.line(f"{name} = {text}", self.body.shape("element"))
        return name

    def general_step(self) -> None:
        tile: dict[str, str] = {}
        self.general_tile(tile, "_tile")
        merge = self.merge_helper()
        fields = [f.name for f in self.record.fields]
        new = [self.claim(f"{n}_new") for n in fields]
        sides = [*(self.value[n] for n in fields), *(tile[n] for n in fields)]
        self.body.writer.line(f"{', '.join(new)} = {merge}({', '.join(sides)})")
        self.need_first()
        for n, t in zip(fields, new, strict=True):
            self.row(self.value[n], f"tl.where(first, {tile[n]}, {t})")

    # -- after the row

    def after(self) -> None:
        """After the loop: what the loop carried is the state of the row."""
        self.value |= {n: v for n, v in self._claimed.items()}

    def finish(self) -> None:
        """The outputs of the stage, as row values that later stages and the epilogue read."""
        self.read = {}
        for output, expr in self.record.finish:
            parameters = list(dict.fromkeys(names(expr)))
            result = self.stage.result(output)
            wish = f"finish_{output}" if output else "finish"
            text = self.apply(wish, expr, "row")
            empty = dict(self.record.empty).get(output)
            if empty is not None and parameters and self.can_be_empty():
                text = f"tl.where({self.nonempty()}, {text}, {literal(empty)})"
            if text.isidentifier():
                name = text
            else:
                wishes = self.result_names(output)
                name = self.body.namer.claim_first(wishes)
                self.row(name, text)
            self.body.bind(var(result), name, "row")
        if self.stage.state:
            self.bind_state()

    def can_be_empty(self) -> bool:
        """May every element of a row be absent?"""
        infinite = any(f.has_infinite_identity for f in self.record.references)
        return infinite or self.record.form == "general"

    def nonempty(self) -> str:
        """Edge: does the row hold an element? A state at its identity in every slot does not."""
        tests = []
        for slot in self.record.slots:
            if slot.name in self.value:
                tests.append(f"({self.value[slot.name]} != {literal(slot.identity)})")
        return " | ".join(tests)

    def result_names(self, output: str) -> list[str]:
        result = var(self.stage.result(output))
        written = [o.name for o in self.body.program.outputs if o.expr is result]
        plain = output.replace(".", "_") or self.stage.name
        return [*written, plain, f"{self.stage.name}_{plain}"]

    def bind_state(self) -> None:
        for slot in self.record.slots:
            f = self.record.by_name[slot.field]
            name = self.value.get(slot.name, "")
            if f.kind == "First" and slot.name == f.position:
                shape = "(ROWS,)" if self.body.plan.tiled else "()"
                name = self.full(slot.name, 0, "int", shape)
            self.body.bind(var(f"{self.stage.name}.{slot.name}"), name, "row")


def tuple_of(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _tight(text: str) -> str:
    """text, safe in front of a method call."""
    return text if text.isidentifier() or text.endswith(")") and text.count("(") == 1 else f"({text})"


