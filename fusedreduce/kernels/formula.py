"""A program as the plain formula in PyTorch: every reduction over the whole row, in float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fusedreduce.declare.record import Field
from fusedreduce.ir.check import kind_of, kind_of_dtype
from fusedreduce.ir.expr import Expr, names, substitute, var, walk
from fusedreduce.ir.show import ATOM, number, shared
from fusedreduce.kernels.names import TAKEN, Namer, describe
from fusedreduce.kernels.plain import (
    literals,
    plain,
    spelled,
    tensor_arguments,
    unnamed,
    unrounded,
)
from fusedreduce.kernels.writer import Writer
from fusedreduce.program import Program, Stage

METHODS = {
    "Max": "amax", "Min": "amin", "Sum": "sum", "Prod": "prod", "Any": "any", "All": "all",
    "ArgMax": "argmax", "ArgMin": "argmin",
}  # fmt: skip


@dataclass
class Formula:
    """Writes the formula as statements; `known` maps an expression to the name it has.

    Tensors are (rows..., N): a reduction is over the last axis and keeps it. The field `m` of the
    stage `r` is the variable `r:m`, beside the result `r.m`.
    """

    program: Program
    namer: Namer
    writer: Writer
    known: dict[Expr, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    user: dict[Expr, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)  # a statement's text -> its name

    def __post_init__(self) -> None:
        self.kinds = dict(self.program.kinds)
        self.operands = {s.name: self.variables(s) for s in self.program.stages}
        for e, n in self.program.names:
            self.user.setdefault(self.plain(e), n)
        stages = [e for s in self.program.stages for e in self.expressions(s)]
        self.everything = [*stages, *(self.plain(o.expr) for o in self.program.outputs)]

    # -- expressions

    def variables(self, stage: Stage) -> dict[str, Expr]:
        """What the names in a record stand for: operands and fields."""
        table = dict(stage.operands)
        for f in stage.record.fields:
            name = f"{stage.name}:{f.name}"
            self.kinds[name] = f.result
            table[f.name] = var(name)
        return table

    def of(self, stage: Stage, expr: Expr) -> Expr:
        """An expression of a record over inputs, results and fields."""
        return self.plain(substitute(expr, self.operands[stage.name]))

    def expressions(self, stage: Stage) -> list[Expr]:
        record = stage.record
        terms = [f.term for f in record.fields if f.term is not None]
        return [self.of(stage, e) for e in (*terms, *record.lift, *(e for _, e in record.finish))]

    def plain(self, expr: Expr) -> Expr:
        return plain(expr, self.kinds, self.program.state)

    def needs_tensor(self, given: str) -> bool:
        """Is this number an argument of a torch function, which takes tensors only?"""
        return any(
            given in names(a)
            for node in walk(*self.everything)
            for a in tensor_arguments(node)
            if not self.has_tensor(a)
        )

    def has_tensor(self, expr: Expr) -> bool:
        return any(n not in self.program.by_name or not self.program.by_name[n].number
                   for n in names(expr))  # fmt: skip

    def varies(self, expr: Expr) -> bool:
        """Does a value differ from column to column?"""
        read = [n for n in names(expr) if ":" not in n]
        return any(self.program.place_of_name(n) in ("element", "column") for n in read)

    def roundings(self) -> set[str]:
        """The dtypes that the function itself rounds to on the way."""
        found = {str(n.value) for n in walk(*self.everything) if n.op == "cast"}
        return {d for d in found if kind_of_dtype(d) == "float"} - {"float64"}

    # -- statements

    def bind(self, name: str, text: str) -> None:
        self.known[var(name)] = text

    def text(self, expr: Expr, bare: int = 0) -> str:
        return spelled(expr, literals(expr) | self.known, bare)

    def define(self, expr: Expr, wishes: Iterable[str], text: str = "") -> None:
        """A statement `name = text`, unless the expression is known by a name already."""
        if not text and expr in self.known:
            return
        text = text or self.text(expr)
        if not text.isidentifier() and text not in self.made:
            self.made[text] = self.namer.claim_first(wishes)
            self.writer.line(f"{self.made[text]} = {text}")
        self.known[expr] = self.made.get(text, text)

    def name_parts(self, exprs: Sequence[Expr], wishes: Mapping[Expr, str]) -> None:
        """Name what the user named, and what is used more than once."""
        repeated = set(shared(*exprs))
        for node in unnamed(exprs, self.known):
            inner = node in repeated or (node in self.user and node not in exprs)
            ready = all((n in self.kinds and ":" not in n) or var(n) in self.known
                        for n in names(node))  # fmt: skip
            if inner and ready:
                wish = self.user.get(node) or wishes.get(node) or describe(node)
                self.define(node, [wish])

    # -- stages

    def stages(self) -> None:
        if any("j" in names(e) for e in self.everything):
            self.define(var("j"), ["j"], "torch.arange(N)")
        for level in self.program.levels:
            for stage in level:
                if stage.record.form == "general":
                    self.general(stage)
                else:
                    self.fields(stage)
                self.finish(stage)

    def fields(self, stage: Stage) -> None:
        terms = {f.name: self.of(stage, f.term) for f in stage.record.fields if f.term is not None}
        wishes = {self.plain(e): n for n, e in stage.operands}
        self.name_locals(stage)
        self.name_parts(list(terms.values()), wishes)
        for f in stage.record.fields:
            wish = [f.name, f"{stage.name}_{f.name}"]
            self.define(var(f"{stage.name}:{f.name}"), wish, self.total(f, terms[f.name]))
            if stage.state and f.kind in ("ArgMax", "ArgMin"):
                best = self.reduced(f.kind.removeprefix("Arg"), terms[f.name])
                self.define(var(stage.slot(f.position)), [f.position], best)
            if stage.state and f.kind == "First":
                self.bind(stage.slot(f.position), "torch.tensor(0)")

    def name_locals(self, stage: Stage) -> None:
        """The user's local names inside the functions of a declaration."""
        for e, n in stage.record.names:
            if set(names(e)) <= {*self.operands[stage.name], "j"}:
                self.user.setdefault(self.of(stage, e), n)

    def total(self, f: Field, term: Expr) -> str:
        """The field of the whole row."""
        if f.is_bound:
            return self.text(term)
        if self.varies(term):
            if f.kind == "First":
                return f"{self.text(term, ATOM)}[..., :1]"
            return self.reduced(f.kind, term)
        if f.kind == "Sum":
            one = term.op == "const" and term.value == 1
            return f"torch.tensor({'float(N)' if f.type == 'float' else 'N'})" if one else (
                f"N * {self.text(self.tensor(term), ATOM)}")  # fmt: skip
        if f.kind in ("ArgMax", "ArgMin"):
            return "torch.tensor(0)"
        return self.text(term) + (" ** N" if f.kind == "Prod" else "")

    def reduced(self, kind: str, term: Expr) -> str:
        return f"{self.text(term, ATOM)}.{METHODS[kind]}(-1, keepdim=True)"

    def tensor(self, expr: Expr) -> Expr:
        """The expression, by a name for its tensor where it is a bare number."""
        if not self.has_tensor(expr):
            self.known[expr] = f"torch.tensor({self.text(expr)})"
        return expr

    def finish(self, stage: Stage) -> None:
        exprs = [self.of(stage, e) for _, e in stage.record.finish]
        self.name_parts(exprs, {})
        for (output, _), expr in zip(stage.record.finish, exprs, strict=True):
            plain_name = output.replace(".", "_") or stage.name
            wishes = [plain_name, f"{stage.name}_{plain_name}"]
            self.define(expr, wishes)
            self.bind(stage.result(output), self.known[expr])
        if stage.state:
            for f in stage.record.fields:
                self.bind(stage.slot(f.name), self.known[var(f"{stage.name}:{f.name}")])

    # -- the general form

    def general(self, stage: Stage) -> None:
        """Element after element, from the first: merge(state, lift(element))."""
        record = stage.record
        fields = [f.name for f in record.fields]
        parameters = list(dict.fromkeys(names(*record.lift)))
        operands = {n: self.operands[stage.name].get(n, var(n)) for n in parameters}
        for n, e in operands.items():
            self.define(self.plain(e), [n, f"{stage.name}_{n}"])
        kinds = {n: kind_of(e, self.kinds) for n, e in stage.operands} | {"j": "int"}
        lift = self.function("lift", parameters, record.lift, kinds, {})
        kinds = {f"{s}.{f.name}": f.type for s in "ab" for f in record.fields}
        sides = [f"{s}_{n}" for s in "ab" for n in fields]
        merge = self.function("merge", sides, record.merge, kinds, dict(record.names))

        def lifted(columns: str) -> str:
            given = [self.known[self.plain(e)] + f"[..., {columns}]" * self.varies(e)
                     for e in operands.values()]  # fmt: skip
            return f"{lift}({', '.join(given)})"

        self.writer.line()
        star = "*" if len(fields) > 1 else ""
        state = self.namer.claim("state")
        self.writer.line(f"{state} = {lifted(':1')}")
        with self.writer.block("for column in range(1, N):"):
            self.writer.line(
                f"{state} = {merge}({star}{state}, {star}{lifted('column : column + 1')})"
            )
        made = [self.namer.claim_first([n, f"{stage.name}_{n}"]) for n in fields]
        self.writer.line(f"{', '.join(made)} = {state}")
        for n, local in zip(fields, made, strict=True):
            self.bind(f"{stage.name}:{n}", local)
            self.bind(stage.slot(n), local)

    def function(
        self, wish: str, parameters: Sequence[str], exprs: Sequence[Expr],
        kinds: Mapping[str, str], user: Mapping[Expr, str],
    ) -> str:  # fmt: skip
        """Write `def wish(parameters)`, its results as tensors; answers its name."""
        name = self.namer.claim(wish)
        self.writer.line()
        exprs = [plain(e, kinds, self.program.state) for e in exprs]
        taken = Namer({*TAKEN, *parameters})
        local = {e: f"torch.tensor({number(e.value).text})" for e in exprs if e.op == "const"}
        repeated = shared(*exprs)
        with self.writer.block(f"def {name}({', '.join(parameters)}):"):
            for node in walk(*exprs):
                if node.args and (node in user or node in repeated):
                    text = spelled(node, literals(node) | local)
                    local[node] = taken.claim(user.get(node) or describe(node))
                    self.writer.line(f"{local[node]} = {text}")
            results = [spelled(e, literals(e) | local) for e in exprs]
            self.writer.line(f"return {', '.join(results)}")
        return name

    # -- outputs

    def outputs(self) -> list[str]:
        """What each output should be, as text."""
        exprs = [unrounded(self.plain(o.expr)) for o in self.program.outputs]
        self.name_parts(exprs, {})
        return [self.text(self.tensor(e)) for e in exprs]
