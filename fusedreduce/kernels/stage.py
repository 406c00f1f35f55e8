"""What the printers of both forms share: names, helper calls, the finish of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedreduce.declare import edges
from fusedreduce.declare.record import Field, Record
from fusedreduce.declare.restrict import alone
from fusedreduce.ir.expr import Expr, names, var
from fusedreduce.kernels.body import Body
from fusedreduce.kernels.spelling import TYPES, literal
from fusedreduce.kernels.writer import WIDTH, brackets, split_operators
from fusedreduce.program import Stage, widest


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

    def once(self, wish: str, text: str) -> str:
        """A name for a value of row shape; in one block the same text has one name."""
        if self.body.plan.strategy != "block":
            return self.row(self.claim(wish), text)
        if text not in self.body.made:
            self.body.made[text] = self.row(self.claim(wish), text)
        return self.body.made[text]

    def advance(self, name: str, text: str) -> None:
        """A step of what the loop carries, as `name += tile` where it is that.

        A correction and a tile too long for one line are two statements.
        """
        before, sign, tile = accumulation(text)
        long = len(name) + len(text) + 3 + 4 * self.body.writer.depth > WIDTH
        if sign and before != name and long:
            self.row(name, before)
            before = name
        if before == name:
            self.body.writer.line(f"{name} {sign}= {tile}", self.body.shape("row"))
        else:
            self.row(name, text)

    # -- pieces of text

    def argument(self, parameter: str, target: str) -> str:
        """What a printed helper's parameter gets: an operand, a reference, the index."""
        if parameter in self.read:
            return self.body.at(self.read[parameter], "row", target)
        if parameter in self.value:
            return self.body.at(self.value[parameter], "row", target)
        expr = var("j") if parameter == "j" else self.operand_text[parameter]
        if expr.args:
            self.body.define(expr, [parameter, f"{self.stage.name}_{parameter}"])
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
        return widest(self.place_of(n) for n in names(f.term))

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

    def helper(self, wish: str, expr: Expr, arguments: Sequence[str]) -> str:
        parameters = [p.replace(".", "_") for p in dict.fromkeys(names(expr))]
        name = self.body.functions.define(wish, parameters, expr, {})
        return f"{name}({', '.join(arguments)})"

    # -- a loop

    def full(self, name: str, identity: object, type_: str) -> str:
        """A row variable that starts at an identity."""
        shape = f"({self.body.ROWS},)" if self.body.plan.tiled else "()"
        return self.row(
            self.claim(name), f"tl.full({shape}, {literal(identity)}, {self.dtype(type_)})"
        )

    def begin_step(self) -> None:
        """Remember which variables the loop carries."""
        self._claimed = dict(self.value)

    def need_first(self) -> None:
        """`first`: is this the first tile? Printed once a loop."""
        if not self.body.known.get(var("first")):
            self.body.writer.line("first = tl.cast(start, tl.int64) == 0")
            self.body.bind(var("first"), "first", "scalar")

    # -- after the row

    def finish(self) -> None:
        """The outputs of the stage, as row values that later stages and the epilogue read."""
        self.read = {}
        for output, expr in self.record.finish:
            parameters = list(dict.fromkeys(names(expr)))
            result = self.stage.result(output)
            wish = f"finish_{output}" if output else "finish"
            text = self.apply(wish, expr, "row")
            empty = dict(self.record.empty).get(output)
            part = alone(self.record, output)
            if empty is not None and parameters and edges.can_be_empty(part):
                text = f"tl.where({self.nonempty(part)}, {text}, {literal(empty)})"
            if text.isidentifier():
                name = text
            else:
                wishes = self.result_names(output)
                name = self.body.namer.claim_first(wishes)
                self.row(name, text)
            self.body.bind(var(result), name, "row")
        if self.stage.state:
            self.bind_state()

    def nonempty(self, part: Record) -> str:
        """Edge: does the row hold an element? A state at its identity in every slot does not."""
        tests = []
        for slot in part.slots:
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
                name = self.full(slot.name, 0, "int")
            self.body.bind(var(self.stage.slot(slot.name)), name, "row")


def accumulation(text: str) -> tuple[str, str, str]:
    """before, operator, tile of `before + tile`; empty ones of anything else.

    >>> accumulation("correct(s, m) + tl.sum(x + y, 0)")
    ('correct(s, m)', '+', 'tl.sum(x + y, 0)')
    """
    parts = split_operators(text)
    if len(parts) != 2 or parts[1][:2] not in ("+ ", "* ", "| ", "& "):
        return "", "", ""
    tile = parts[1][2:]
    bare = tile.startswith("(") and brackets(tile) == [(0, len(tile) - 1)]
    return parts[0], parts[1][0], tile[1:-1] if bare else tile


def tuple_of(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def tight(text: str) -> str:
    """text, safe in front of a method call."""
    return (
        text
        if text.isidentifier() or (text.endswith(")") and text.count("(") == 1)
        else f"({text})"
    )
