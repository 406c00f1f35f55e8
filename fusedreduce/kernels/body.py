"""The body of a kernel while it is printed: what has a name, where it varies, what was defined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from fusedreduce.ir.expr import Expr, names, var, walk
from fusedreduce.ir.show import helpers, shared, spell
from fusedreduce.kernels.names import TAKEN, Namer, describe, identifier
from fusedreduce.kernels.spelling import wide_constants
from fusedreduce.kernels.writer import Writer
from fusedreduce.program import Program, widest


@dataclass
class Functions:
    """Printed helpers in order of definition; equal text is defined once."""

    namer: Namer
    state: str
    texts: dict[str, str] = field(default_factory=dict)  # name -> text
    library: dict[str, None] = field(default_factory=dict)  # helpers of kernels/functions.py

    def define(
        self, wish: str, parameters: Sequence[str], expr: Expr, user: Mapping[Expr, str]
    ) -> str:
        """Print `def wish(parameters): return expr`, with the user's local names."""
        lines, (result,) = self.bodies((expr,), parameters, user)
        return self.add(wish, parameters, [*lines, f"return {result}"])

    def bodies(
        self, exprs: Sequence[Expr], parameters: Sequence[str], user: Mapping[Expr, str]
    ) -> tuple[list[str], list[str]]:
        """Statements for the user's names and for what is used twice; then each result's text."""
        for e in exprs:
            self.library |= dict.fromkeys(helpers(e))
        taken = Namer({*TAKEN, *parameters})
        keep = {n: user[n] for n in walk(*exprs) if n in user and n.args}
        for n in shared(*exprs):
            keep.setdefault(n, describe(n))
        if len(exprs) == 1:
            keep.pop(exprs[0], None)
        local = wide_constants(exprs, self.state)
        lines = []
        for node in walk(*exprs):
            if node in keep:
                text = spell(node, "triton", local)
                local[node] = taken.claim(keep[node])
                lines.append(f"{local[node]} = {text}")
        return lines, [spell(e, "triton", local) for e in exprs]

    def add(self, wish: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
        def text(name: str) -> str:
            w = Writer()
            w.line("@triton.jit")
            with w.block(f"def {name}({', '.join(parameters)}):"):
                for line in lines:
                    w.line(line)
            return w.text()

        base = identifier(wish)
        if self.texts.get(base) == text(base):
            return base
        name = self.namer.claim(wish)
        self.texts[name] = text(name)
        return name


class Schedule(Protocol):
    """What printing an expression asks of a plan."""

    @property
    def strategy(self) -> str: ...

    @property
    def tiled(self) -> bool: ...

    @property
    def even(self) -> bool: ...

    @property
    def parts(self) -> int: ...


@dataclass
class Body:
    """Prints expressions as statements; `known` maps an expression to its name and place."""

    program: Program
    plan: Schedule
    namer: Namer = field(default_factory=Namer)
    writer: Writer = field(default_factory=Writer)
    known: dict[Expr, str] = field(default_factory=dict)
    places: dict[Expr, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)  # in one block: a row's text -> its name
    ROWS: str = "ROWS"
    COLUMNS: str = "BLOCK"
    transposed: bool = False  # is a tile (COLUMNS, ROWS)?
    functions: Functions = field(init=False)

    def __post_init__(self) -> None:
        self.functions = Functions(self.namer, self.program.state)
        self.user = dict(self.program.names)

    # -- places and shapes

    def place(self, expr: Expr) -> str:
        """Where a value varies; values defined by the printer say so themselves."""
        return self.places.get(expr) or widest(self.place_of_name(n) for n in names(expr))

    def place_of_name(self, name: str) -> str:
        node = var(name)
        return self.places.get(node) or self.program.place(node)

    def shape(self, place: str) -> str:
        """The comment at the end of a line; single numbers need none."""
        rows, columns = self.ROWS, self.COLUMNS
        element = f"({columns}, {rows})" if self.transposed else f"({rows}, {columns})"
        tiled = {"element": element, "row": f"({rows},)", "column": f"({columns},)"}
        flat = {"element": f"({columns},)", "column": f"({columns},)"}
        return (tiled if self.plan.tiled else flat).get(place, "")

    def at(self, text: str, place: str, target: str) -> str:
        """The text of a value used where a value of another place is wanted."""
        if not self.plan.tiled or place == target or target != "element":
            return text
        brackets = ["[:, None]", "[None, :]"][:: -1 if self.transposed else 1]
        return text + dict(zip(("row", "column"), brackets, strict=True)).get(place, "")

    # -- statements

    @contextmanager
    def inner(self) -> Iterator[None]:
        """A loop body: what is named inside is forgotten after it."""
        before = dict(self.known), dict(self.places)
        yield
        self.known, self.places = before

    def bind(self, expr: Expr, name: str, place: str | None = None) -> None:
        self.known[expr] = name
        if place is not None:
            self.places[expr] = place

    def assign(self, wishes: Sequence[str], text: str, place: str) -> str:
        name = self.namer.claim_first(wishes)
        self.writer.line(f"{name} = {text}", self.shape(place))
        return name

    def text(self, expr: Expr, target: str | None = None) -> str:
        """Spell an expression from what has a name; first name what deserves one."""
        target = target or self.place(expr)
        self.prepare(expr)
        table = wide_constants((expr,), self.program.state) | {
            n: self.at(self.known[n], self.place(n), target) for n in walk(expr) if n in self.known
        }
        self.functions.library |= dict.fromkeys(helpers(expr, table))
        return spell(expr, "triton", table)

    def prepare(self, expr: Expr) -> None:
        """Name subexpressions: the user's own, those used twice, those that vary less."""
        if expr in self.known:
            return
        place = self.place(expr)
        repeated = set(shared(expr))
        for node in _unnamed(expr, self.known):
            if node is expr or not node.args or node in self.known:
                continue
            here = self.place(node)
            if (
                (here != place and self.plan_hoists(here) and self.is_largest(node, expr, here))
                or node in self.user
                or node in repeated
            ):
                self.define(node)

    def plan_hoists(self, place: str) -> bool:
        return place in ("row", "column")

    def is_largest(self, node: Expr, root: Expr, place: str) -> bool:
        """Is some use of the node in a value that varies more?"""
        return any(node in n.args and self.place(n) != place for n in walk(root))

    def define(self, expr: Expr, wishes: Sequence[str] = ()) -> str:
        """A statement `name = expr`; answers the name, the old one where there is one."""
        if expr in self.known:
            return self.known[expr]
        if expr.op == "const":
            return self.text(expr)
        place = self.place(expr)
        text = self.text(expr)
        name = self.assign(wishes or [self.user.get(expr) or describe(expr)], text, place)
        self.known[expr] = name
        return name

    def hoist(self, exprs: Iterable[Expr], ready: Callable[[str], bool]) -> None:
        """Before a loop: name what varies by row alone and is `ready` already."""
        for expr in exprs:
            for node in list(walk(expr)):
                if (
                    node.args
                    and node not in self.known
                    and self.place(node) == "row"
                    and all(ready(n) for n in names(node))
                    and (node is expr or self.is_largest(node, expr, "row"))
                ):
                    self.define(node)


def _unnamed(root: Expr, known: Mapping[Expr, str]) -> list[Expr]:
    """The nodes under root that will be printed, arguments first."""
    order: list[Expr] = []
    seen: set[Expr] = set()

    def visit(node: Expr) -> None:
        if node in seen or node in known:
            return
        seen.add(node)
        for a in node.args:
            visit(a)
        order.append(node)

    visit(root)
    return order
