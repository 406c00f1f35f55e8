"""The gradient of a program as expressions: what flows into each input, last stage first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from fusedreduce.declare.record import Record
from fusedreduce.gradient.element import element_gradient, mark
from fusedreduce.gradient.extras import extras
from fusedreduce.ir.differentiate import gradient
from fusedreduce.ir.expr import Expr, is_const, names, substitute, var
from fusedreduce.program import Output, Program, Stage, widest


@dataclass
class Parts:
    """Collects the parts of every gradient, from the last stage to the first."""

    program: Program
    wanted: tuple[str, ...]
    total: Record
    stages: list[Stage] = field(default_factory=list)
    parts: dict[str, Expr] = field(default_factory=dict)  # of inputs and of stages' results
    elements: dict[str, Expr] = field(default_factory=dict)  # what is still to be summed over a row
    places: dict[str, str] = field(default_factory=dict)
    level: int = 0

    def __post_init__(self) -> None:
        self.results = tuple(self.program.stage_of)
        self.kinds = self.program.kinds
        self.places |= {k.name: "row" for s in self.program.stages for k in kept(s)}
        self.upstream = {o.name: f"d_{o.name}" for o in self.program.outputs}
        self.float_inputs = tuple(
            i.name for i in self.program.inputs if i.kind == "float" and not i.number
        )

    # -- parts that flow into inputs and into results of stages

    def send(self, expr: Expr, seed: Expr, *, each: bool = False) -> None:
        """Give seed * d expr to every input and every stage's result that expr reads.

        each   this is for one element of a row: what is the same for all comes from N of them
        """
        read = [n for n in dict.fromkeys(names(expr)) if self.kinds.get(n) == "float"]
        targets = [n for n in read if n in self.results or n in self.float_inputs]
        for name, part in gradient(expr, targets, seed).items():
            if is_const(part, 0):
                continue
            flat, whole = self.place(part) in _FLAT, self.place_of_name(name) in _FLAT
            table = self.elements if whole and not flat else self.parts
            part = part * float(self.program.columns) if each and whole and flat else part
            table[name] = table[name] + part if name in table else part

    def gradient(self, name: str, wish: str) -> Expr | None:
        """All that flows into a name; into one value a row, the sum over the row."""
        part, element = self.parts.pop(name, None), self.elements.pop(name, None)
        total = None if element is None else self.over_row(element, wish)
        return part + total if part is not None and total is not None else part or total

    def place(self, expr: Expr) -> str:
        """element, row, column or scalar, for expressions over gradients too."""
        return widest(self.place_of_name(n) for n in names(expr))

    def place_of_name(self, name: str) -> str:
        return self.places.get(name) or self.program.place_of_name(name)

    # -- from the last stage to the first

    def build(self) -> None:
        for o in self.program.outputs:
            if "float" in o.dtype:
                self.places[self.upstream[o.name]] = self.program.place_of_axes(o.axes)
                self.send(o.expr, self.shared(o))
        for level in reversed(self.program.levels):
            sums = {s.name: self.summed(s) for s in level}
            for s in level:
                self.through(s, sums[s.name])

    def shared(self, o: Output) -> Expr:
        """The gradient of an output; where it misses axes of the rows, each of them has a share.

        NOTE gradients are linear: what every row takes is summed up where the input misses them.
        """
        upstream = var(self.upstream[o.name])
        times = prod(a.size for a in self.program.outer if a.name not in o.axes)
        return upstream if times == 1 else upstream / float(times)

    def summed(self, s: Stage) -> dict[str, Expr]:
        """The adjoint of each result of a stage, as a row value; of slots by `state.<slot>`."""
        names_of = {o: s.result(o) for o in s.record.outputs}
        names_of |= {f"state.{x.name}": s.slot(x.name) for x in s.record.slots}
        answer = {}
        for output, result in names_of.items():
            wish = f"d_{s.name}_{output}" if output else f"d_{s.name}"
            part = self.gradient(result, wish.replace(".", "_"))
            if part is not None:
                answer[output] = part
        return answer

    def over_row(self, part: Expr, name: str) -> Expr:
        """sum_j part_j, by a stage of its own."""
        depth = 1 + max((self.depth(n) for n in names(part)), default=-1)
        stage = Stage(name, self.total, (("x", part),), depth)
        self.stages.append(stage)
        self.places[f"{name}.value"] = "row"
        return var(f"{name}.value")

    def depth(self, name: str) -> int:
        return next((s.level for s in self.stages if f"{s.name}.value" == name), -1)

    def through(self, s: Stage, adjoint: Mapping[str, Expr]) -> None:
        """From the adjoints of a stage's results to its operands."""
        if not adjoint:
            return
        operands = dict(s.operands)
        inside = {mark(n): e for n, e in operands.items()}
        extra = {k.result: var(k.name) for k in kept(s) if k.result}
        for name, part in element_gradient(s.record, adjoint, saved_state(s), extra).items():
            self.send(operands[name], substitute(part, inside), each=True)


_FLAT = ("row", "scalar")  # one value for all elements of a row


@dataclass(frozen=True)
class Kept:
    """One row value that the forward may save for the backward.

    name    of the saved tensor
    value   the variable of the forward program that holds it
    type    bool, int or float
    result  the field of `extras` it is; "" for a slot of the state
    """

    name: str
    value: str
    type: str
    result: str = ""


def kept(s: Stage) -> tuple[Kept, ...]:
    """The slots of a stage's state, and the fields of `extras`."""
    slots = [Kept(slot_name(s, x.name), s.slot(x.name), x.type) for x in s.record.slots]
    more = extra_stage(s)
    return (
        *slots,
        *(Kept(f"{s.name}_{f.name}", more.result(f.name), f.result, f.name)
          for f in more.record.fields),
    )  # fmt: skip


def extra_stage(s: Stage) -> Stage:
    """The stage beside `s` that computes what only a gradient needs."""
    return Stage(f"{s.name}_extra", extras(s.record), s.operands, s.level)


def slot_name(stage: Stage, slot: str) -> str:
    return f"{stage.name}_{slot}"


def saved_state(s: Stage) -> dict[str, Expr]:
    """Every field of a stage over its saved slots; bound references by their formula."""
    state: dict[str, Expr] = {}
    for f in s.record.fields:
        if f.is_bound and f.term is not None:
            state[f.name] = substitute(f.term, state)
        else:
            state[f.name] = var(slot_name(s, f.name))
    return state
