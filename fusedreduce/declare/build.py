"""From the body of a class to a record: traced, checked, in topological order."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from fusedreduce import trace
from fusedreduce.declare.kinds import Declared, Payload, StateField
from fusedreduce.declare.record import (
    FREE_KINDS,
    RESERVED_FIELDS,
    RESERVED_OPERANDS,
    Field,
    Functions,
    Record,
)
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir import expr as ir
from fusedreduce.ir.expr import Expr
from fusedreduce.trace import Kind, Names, StateView, Traced

Body: TypeAlias = "Mapping[str, Declared | Payload | StateField]"
Parts: TypeAlias = "Mapping[str, Any]"
_INDICES = ("b", "h", "i", "j")
_DOMAIN_KINDS = {"int": "int", "index": "int", "bool": "bool"}
_DOMAINS = ("real", "positive", "nonnegative", "int", "index", "bool")


def fault(fact: str, line: str = "", *, expected: str = "", came: str = "", do: str = "") -> DeclarationError:
    return DeclarationError(message(fact, expected=expected, came=came, where=line, do=do))


def build(name: str, body: Body, parts: Parts) -> Record:
    """The record of a declaration called `name`."""
    fields = {n: f for n, f in body.items() if not isinstance(f, Payload)}
    if not fields:
        raise fault(
            f"{name} declares no field",
            trace.user_line(),
            expected="fields such as m = fr.Max(lambda x: x), or fr.state(...) with lift and merge",
        )
    for n in body:
        if n in RESERVED_FIELDS:
            raise fault(
                f"`{n}` cannot be the name of a field",
                getattr(body[n], "line", trace.user_line()),
                expected=f"a name other than {', '.join(sorted(RESERVED_FIELDS))}",
                do="rename the field",
            )
    general = [n for n, f in fields.items() if isinstance(f, StateField)]
    if general and len(general) < len(fields):
        raise fault(
            f"{name} mixes fr.state(...) with field kinds",
            trace.user_line(),
            came=f"state fields {', '.join(general)} beside {', '.join(n for n in fields if n not in general)}",
            do="write all fields by kinds (corrected form), or all by fr.state with lift and merge",
        )
    domain = _domain(parts["domain"])
    builder = _General if general else _Corrected
    return builder(name, body, parts, domain).record()


class _Builder:
    """What both forms share: names, operands, finish, empty."""

    form = ""

    def __init__(self, name: str, body: Body, parts: Parts, domain: Mapping[str, str]) -> None:
        self.name = name
        self.line = trace.user_line()
        self.body = body
        self.parts = parts
        self.domain = domain
        self.payloads = tuple(n for n, f in body.items() if isinstance(f, Payload))
        self.field_names = tuple(n for n in body if n not in self.payloads)
        self.operands: list[str] = []
        self.names = Names()

    def argument(self, name: str, where: str) -> Traced:
        """The traced value of an operand or index called `name`."""
        if name == "self":
            raise fault(
                f"{where} takes `self`",
                trace.user_line(),
                do="leave `self` out: a declaration is never an instance",
            )
        if name in _INDICES:
            return trace.scalar(name, "int")
        if name in RESERVED_OPERANDS:
            raise fault(
                f"`{name}` cannot be the name of an operand",
                trace.user_line(),
                expected=f"a name other than {', '.join(sorted(RESERVED_OPERANDS))}",
                do="rename the parameter",
            )
        if name not in self.operands and name not in self.payloads:
            self.operands.append(name)
            near = difflib.get_close_matches(name, self.field_names, n=1, cutoff=0.75)
            if near and len(name) > 2:
                warnings.warn(
                    f"{self.name}: `{name}` in {where} is no field, so it is an operand; "
                    f"did you mean the field `{near[0]}`?",
                    stacklevel=2,
                )
        return trace.scalar(name, _DOMAIN_KINDS.get(self.domain.get(name, ""), "float"))

    def finish(self, kinds: Mapping[str, Kind]) -> tuple[tuple[str, Expr], ...]:
        fn = self.parts["finish"]
        if fn is None:
            raise fault(
                f"{self.name} has no finish",
                self.line,
                expected="a function from fields to the result",
                do=f"write def finish({', '.join(self.field_names)}): return ...",
            )
        signature = trace.signature(fn, f"{self.name}.finish")
        for p in signature.parameters:
            if p not in kinds:
                hint = (
                    "leave `self` out"
                    if p == "self"
                    else f"its parameters are fields: {', '.join(kinds)}"
                )
                raise fault(
                    f"finish takes `{p}`, which is no field", trace.function_line(fn), do=hint
                )
        value = trace.run(
            fn, {p: trace.scalar(p, kinds[p]) for p in signature.parameters}, self.names
        )
        outputs = value if isinstance(value, dict) else {"": value}
        if not outputs:
            raise fault("finish returns no output", trace.function_line(fn))
        for key, v in outputs.items():
            if not isinstance(key, str) or not (key == "" or key.isidentifier()):
                raise fault(
                    "an output of finish has no usable name",
                    trace.function_line(fn),
                    expected="names such as 'mean'",
                    came=repr(key),
                )
            if isinstance(v, (tuple, list)):
                raise fault(
                    "finish returns a tuple",
                    trace.function_line(fn),
                    expected="one value, or a dict of named outputs",
                    do='write return {"mean": ..., "var": ...}',
                )
        return tuple((k, trace.to_expr(v, k)[0]) for k, v in outputs.items())

    def empty(self, outputs: Sequence[str]) -> tuple[tuple[str, float], ...]:
        given = self.parts["empty"]
        if given is None:
            return ()
        values = given if isinstance(given, dict) else {"": given}
        for key, v in values.items():
            if key not in outputs or not isinstance(v, (bool, int, float)):
                raise fault(
                    "`empty` does not fit finish",
                    self.line,
                    expected=f"numbers for outputs among {', '.join(map(repr, outputs))}",
                    came=f"{key!r}: {v!r}",
                )
        return tuple(values.items())

    def ordered_operands(self) -> tuple[str, ...]:
        """`x` first if there is one."""
        return tuple(sorted(self.operands, key=lambda n: n != "x"))

    def made(self, fields: Sequence[Field], functions: Functions, **more: Any) -> Record:
        finish = self.finish({f.name: f.result for f in fields})
        unknown = set(self.domain) - {*self.operands, *self.payloads}
        if unknown:
            raise fault(
                f"`domain` names {', '.join(sorted(unknown))}",
                self.line,
                expected=f"operands: {', '.join(self.operands)}",
            )
        return Record(
            name=self.name,
            form=self.form,
            fields=tuple(fields),
            operands=self.ordered_operands(),
            payloads=self.payloads,
            domain=tuple(self.domain.items()),
            finish=finish,
            empty=self.empty([k for k, _ in finish]),
            names=tuple(self.names.of.items()),
            line=self.line,
            functions=functions,
            **more,
        )


class _Corrected(_Builder):
    form = "corrected"

    def record(self) -> Record:
        for part in ("lift", "merge"):
            if self.parts[part] is not None:
                raise fault(
                    f"{self.name} has field kinds and a `{part}`",
                    trace.function_line(self.parts[part]),
                    do="write fr.state(...) for the general form, or leave it out",
                )
        declared = {n: f for n, f in self.body.items() if isinstance(f, Declared)}
        fields: dict[str, Field] = {}
        for n in _topological(declared):
            fields[n] = self.field(n, declared[n], fields)
        fields = {n: self.with_correction(f, declared[n], fields) for n, f in fields.items()}
        functions = Functions(
            terms={n: d.fn for n, d in declared.items()},
            corrects={n: d.correct for n, d in declared.items() if d.correct is not None},
            finish=self.parts["finish"],
            definition=self.parts["definition"],
            grad=self.parts["grad"],
        )
        return self.made(tuple(fields.values()), functions)

    def field(self, name: str, declared: Declared, known: Mapping[str, Field]) -> Field:
        where = f"{self.name}.{name}"
        signature = trace.signature(declared.fn, where)
        reads = tuple(p for p in signature.parameters if p in self.body and p in known)
        for p in reads:
            self.check_read(name, declared, known[p])
        arguments = {
            p: trace.scalar(p, known[p].type) if p in known else self.argument(p, where)
            for p in signature.parameters
        }
        term, kind = trace.to_expr(trace.run(declared.fn, arguments, self.names), where)
        if declared.kind in ("Any", "All") and kind != "bool":
            raise fault(
                f"fr.{declared.kind} of a {kind}",
                declared.line,
                expected="a boolean",
                do="compare: lambda x: x > 0",
            )
        if declared.kind == "Sum" and kind == "bool":
            kind = "int"
        if declared.kind in ("ArgMax", "ArgMin"):
            kind = "float" if kind == "float" else "int"
        identity: float | int | bool | None = declared.identity
        if declared.kind == "Reference":
            identity = _bound_identity(declared.fn, [known[p] for p in reads])
        return Field(
            name=name,
            kind=declared.kind,
            identity=identity,
            neutral=declared.neutral,
            term=term,
            reads=() if declared.kind == "Reference" else reads,
            type=kind,
            line=declared.line,
        )

    def check_read(self, name: str, declared: Declared, read: Field) -> None:
        if declared.kind == "Reference":
            return
        if not read.is_reference:
            raise fault(
                f"the term of `{name}` reads `{read.name}`, which is a {read.kind} and no reference",
                declared.line,
                expected=f"a reference: {', '.join(FREE_KINDS)} or Reference",
                do=f"declare fr.Reference(lambda {read.name}: ...) and read that",
            )
        if declared.kind != "Sum":
            raise fault(
                f"`{name}`, a {declared.kind}, reads the reference `{read.name}`",
                declared.line,
                expected="only sums are corrected from one reference to another",
                do=f"take the {declared.kind} of the element itself, and correct in finish",
            )

    def with_correction(self, f: Field, declared: Declared, fields: Mapping[str, Field]) -> Field:
        fn = declared.correct
        if fn is None:
            return f
        where = f"the correction of `{f.name}`"
        signature = trace.signature(fn, where)
        if not f.reads:
            raise fault(
                f"`{f.name}` has a correction but its term reads no reference",
                declared.line,
                do="leave `correct` out, or let the term read the reference",
            )
        if len(signature.parameters) != 3 or signature.parameters[0] != f.name:
            raise fault(
                f"{where} takes ({', '.join(signature.parameters)})",
                declared.line,
                expected=f"({f.name}, old, new): the field, the whole state before, the new references",
            )
        references = {
            n: trace.scalar(f"new.{n}", g.type) for n, g in fields.items() if g.is_reference
        }
        old = {n: trace.scalar(f"old.{n}", g.type) for n, g in fields.items()}
        arguments = dict(
            zip(
                signature.parameters,
                (
                    trace.scalar(f.name, f.type),
                    StateView("old", old),
                    StateView("new", references),
                ),
                strict=True,
            )
        )
        correct, _ = trace.to_expr(trace.run(fn, arguments, self.names), where)
        correct = ir.substitute(correct, {f"old.{f.name}": ir.var(f.name)})
        return replace(f, correct=correct)


class _General(_Builder):
    form = "general"

    def record(self) -> Record:
        lift, merge = self.parts["lift"], self.parts["merge"]
        for part, fn in (("lift", lift), ("merge", merge)):
            if fn is None:
                raise fault(
                    f"{self.name} has fr.state(...) but no {part}",
                    self.line,
                    do=f"write def {part}({'x' if part == 'lift' else 'a, b'}): return ...",
                )
        signature = trace.signature(lift, f"{self.name}.lift")
        arguments = {p: self.argument(p, f"{self.name}.lift") for p in signature.parameters}
        lifted = self.components(lift, trace.run(lift, arguments, self.names))
        fields = [
            Field(
                name=n,
                kind="State",
                identity=f.identity,
                type=_state_type(f.identity, kind),
                line=f.line,
            )
            for (n, f), (_, kind) in zip(self.state_fields().items(), lifted, strict=True)
        ]
        sides = trace.signature(merge, f"{self.name}.merge")
        if len(sides.parameters) != 2:
            raise fault(
                f"merge takes ({', '.join(sides.parameters)})",
                trace.function_line(merge),
                expected="(a, b): two states, read as a.n, b.n",
            )
        views = [
            StateView(side, {f.name: trace.scalar(f"{side}.{f.name}", f.type) for f in fields})
            for side in ("a", "b")
        ]
        merged = self.components(
            merge, trace.run(merge, dict(zip(sides.parameters, views, strict=True)), self.names)
        )
        functions = Functions(
            lift=lift,
            merge=merge,
            finish=self.parts["finish"],
            definition=self.parts["definition"],
            grad=self.parts["grad"],
        )
        return self.made(
            fields,
            functions,
            lift=tuple(e for e, _ in lifted),
            merge=tuple(e for e, _ in merged),
            commutative=False,  # until it is proved
        )

    def state_fields(self) -> dict[str, StateField]:
        return {n: f for n, f in self.body.items() if isinstance(f, StateField)}

    def components(self, fn: Callable[..., Any], value: Any) -> list[tuple[Expr, Kind]]:
        fields = list(self.state_fields())
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        if len(values) != len(fields):
            raise fault(
                f"{fn.__name__} returns {len(values)} values",
                trace.function_line(fn),
                expected=f"{len(fields)}: {', '.join(fields)}",
                came=f"{len(values)} value{'s' * (len(values) != 1)}",
                do="return one value for each field, in the order of fr.state",
            )
        return [trace.to_expr(v, n) for n, v in zip(fields, values, strict=True)]


def _state_type(identity: Any, lifted: Kind) -> Kind:
    if isinstance(identity, bool):
        return "bool"
    return "float" if isinstance(identity, float) else lifted


def _bound_identity(fn: Callable[..., Any], reads: Sequence[Field]) -> float | None:
    """The formula at the identities of the fields it reads; None when it has no value there (0 / 0)."""
    if any(f.identity is None for f in reads):
        return None
    at = {f.name: torch.tensor(float(f.identity or 0.0), dtype=torch.float64) for f in reads}
    value = float(torch.as_tensor(fn(**at)))
    return None if math.isnan(value) else value


def _topological(declared: Mapping[str, Declared]) -> list[str]:
    """Names in an order in which each field comes after those it reads."""
    order: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        if name in path:
            cycle = " -> ".join([*path[path.index(name) :], name])
            raise fault(
                f"fields read each other in a circle: {cycle}",
                declared[name].line,
                do="a term may read references that do not depend on it",
            )
        path.append(name)
        for p in trace.signature(declared[name].fn, name).parameters:
            if p in declared:
                visit(p)
        path.pop()
        order.append(name)

    for name in declared:
        visit(name)
    return order


def _domain(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise fault("`domain` is not a dict", trace.user_line(), came=repr(given))
    for name, what in given.items():
        if what not in _DOMAINS:
            raise fault(
                f"the domain of `{name}` is unknown",
                trace.user_line(),
                expected=f"one of {', '.join(_DOMAINS)}",
                came=repr(what),
            )
    return dict(given)
