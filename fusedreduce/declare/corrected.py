"""The corrected form: fields with terms, corrections from one reference to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fusedreduce import trace
from fusedreduce.declare.kinds import Declared
from fusedreduce.declare.parts import Builder, fault
from fusedreduce.declare.record import FREE_KINDS, Field, Functions, Record
from fusedreduce.ir import expr as ir
from fusedreduce.trace import StateView


class Corrected(Builder):
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
                f"the term of `{name}` reads `{read.name}`, a {read.kind}, which is no reference",
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
                expected=f"({f.name}, old, new): the field, the state before, the new references",
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


def _bound_identity(fn: Callable[..., Any], reads: Sequence[Field]) -> float | None:
    """The formula at the identities of the fields it reads; None where that is 0 / 0."""
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
