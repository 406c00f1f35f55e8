"""The gradient of a program as expressions: what flows into each input, last stage first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce

from fusedreduce.declare import edges
from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.differentiate import gradient
from fusedreduce.ir.expr import Expr, call, is_const, names, substitute, var, where
from fusedreduce.program import Program, Stage, widest


class NoBackward(Exception):
    """The derived backward does not serve this program; the text says why."""


@dataclass
class Parts:
    """Collects the parts of every gradient, from the last stage to the first."""

    program: Program
    wanted: tuple[str, ...]
    total: Record
    stages: list[Stage] = field(default_factory=list)
    grads: dict[str, Expr] = field(default_factory=dict)
    adjoints: dict[str, Expr] = field(
        default_factory=dict
    )  # of stages' results, still to be summed
    places: dict[str, str] = field(default_factory=dict)
    level: int = 0

    def __post_init__(self) -> None:
        self.results = tuple(self.program.stage_of)
        self.kinds = self.program.kinds
        slots = [(s, x.name) for s in self.program.stages for x in s.record.slots]
        self.places |= {slot_name(s, n): "row" for s, n in slots}
        self.upstream = {o.name: f"d_{o.name}" for o in self.program.outputs}
        self.float_inputs = tuple(
            i.name for i in self.program.inputs if i.kind == "float" and not i.number
        )

    # -- parts that flow into inputs and into results of stages

    def send(self, expr: Expr, seed: Expr) -> None:
        """Give seed * d expr to every input and every stage's result that expr reads."""
        read = [n for n in dict.fromkeys(names(expr)) if self.kinds.get(n) == "float"]
        targets = [n for n in read if n in self.results or n in self.float_inputs]
        for name, part in gradient(expr, targets, seed).items():
            table = self.adjoints if name in self.results else self.grads
            if not is_const(part, 0):
                before = table.get(name)
                table[name] = part if before is None else before + part

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
                self.send(o.expr, var(self.upstream[o.name]))
        for level in reversed(self.program.levels):
            sums = {s.name: self.summed(s) for s in level}
            for s in level:
                self.through(s, sums[s.name])

    def summed(self, s: Stage) -> dict[str, Expr]:
        """The adjoint of each result of a stage, as a row value."""
        answer = {}
        for output, _ in s.record.finish:
            part = self.adjoints.pop(s.result(output), None)
            if part is None:
                continue
            answer[output] = self.over_row(
                part, f"d_{s.name}_{output}" if output else f"d_{s.name}"
            )
        return answer

    def over_row(self, part: Expr, name: str) -> Expr:
        """sum_j part_j: a stage of its own where the part is an element."""
        if self.place(part) in ("row", "scalar"):
            return part
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
        record = s.record
        refuse_unserved(record, adjoint)
        fields: dict[str, Expr] = {}
        for output, e in record.finish:
            if output in adjoint:
                for name, part in gradient(e, list(record.by_name), adjoint[output]).items():
                    if not is_const(part, 0):
                        fields[name] = fields[name] + part if name in fields else part
        state = saved_state(s)
        seeds = {n: substitute(e, state) for n, e in fields.items()}
        operands = dict(s.operands)
        for f in record.fields:
            if f.kind == "Sum" and f.term is not None and f.name in seeds:
                self.term(s, f, seeds[f.name], operands, state)

    def term(
        self,
        s: Stage,
        f: Field,
        seed: Expr,
        operands: Mapping[str, Expr],
        state: Mapping[str, Expr],
    ) -> None:
        """seed * d term / d operand, to every operand; an absent element gets nothing."""
        assert f.term is not None
        reads = {r: readable(s.record, r, state) for r in f.reads}
        inside = {n: var(f"@{n}") for n in operands}  # operands kept apart from inputs' names
        term = substitute(f.term, {**reads, **inside})
        absent = self.absent(s, f, operands)
        for name, part in gradient(term, [f"@{n}" for n in operands], seed).items():
            if is_const(part, 0):
                continue
            part = substitute(part, {f"@{n}": e for n, e in operands.items()})
            if absent is not None:
                part = where(absent, 0.0, part)
            self.send(operands[name[1:]], part)

    def absent(self, s: Stage, f: Field, operands: Mapping[str, Expr]) -> Expr | None:
        """Edge rule (a), over inputs."""
        tests = []
        for r in s.record.free_references(f.name):
            assert r.term is not None
            assert r.identity is not None
            tests.append(call("eq", substitute(r.term, operands), r.identity))
        return reduce(lambda a, b: call("or", a, b), tests) if tests else None


def refuse_unserved(record: Record, outputs: Collection[str]) -> None:
    """What the derived backward does not serve yet is run by differentiating the meaning."""
    if record.form != "corrected":
        raise NoBackward(f"{record.name} is a general merge")
    kinds = {f.kind for f in record.fields} & {"Prod", "ArgMax", "ArgMin"}
    read = {n for o, e in record.finish if o in outputs for n in names(e)}
    if any(record.by_name[n].kind == "Prod" for n in read if n in record.by_name):
        raise NoBackward(f"{record.name} has a product ({', '.join(sorted(kinds))})")
    loose = [o or "its result" for o in outputs if o not in record.gauge and record.references]
    extreme = [n for n in read if n in record.by_name and record.by_name[n].kind in ("Max", "Min")]
    if loose or (extreme and not record.references):
        raise NoBackward(f"{', '.join(loose) or record.name} depends on a reference itself")


def refuse_structure(program: Program) -> None:
    """All outputs and stages vary along all rows: else a gradient's parts miss different axes."""
    rows = {a.name for a in program.outer if a.size != 1}
    for o in program.outputs:
        if rows - o.axes and "float" in o.dtype:
            raise NoBackward(f"the output {o.name} does not vary along all rows")
    for s in program.stages:
        if s.state:
            raise NoBackward(f"the state of {s.name} is a result")
        read = {n for _, e in s.operands for n in names(e)}
        axes = frozenset().union(*(program.by_name[n].axes for n in read if n in program.by_name))
        if rows - axes and not any(n in program.stage_of for n in read):
            raise NoBackward(f"the reduction {s.name} does not vary along all rows")


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


def readable(record: Record, name: str, state: Mapping[str, Expr]) -> Expr:
    """Edge rule (b) in the saved state."""
    if not record.guarded(f"neutral:{name}") or record.by_name[name].is_bound:
        return state[name]
    return substitute(edges.readable_expr(record, name), state)
