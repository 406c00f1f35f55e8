"""The general form: a state with lift and an associative merge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusedreduce import trace
from fusedreduce.declare.kinds import StateField
from fusedreduce.declare.parts import Builder, fault
from fusedreduce.declare.record import Field, Functions, Record
from fusedreduce.ir.expr import Expr
from fusedreduce.trace import Kind, StateView


class General(Builder):
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
