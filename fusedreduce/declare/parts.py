"""What both forms of a declaration share: operands, finish, empty, domain."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fusedreduce import trace
from fusedreduce.declare.kinds import Declared, Payload, StateField
from fusedreduce.declare.record import (
    RESERVED_OPERANDS,
    Field,
    Functions,
    Record,
)
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import Expr
from fusedreduce.trace import Kind, Names, Traced

Body: TypeAlias = "Mapping[str, Declared | Payload | StateField]"
Parts: TypeAlias = "Mapping[str, Any]"
_INDICES = ("b", "h", "i", "j")
_DOMAIN_KINDS = {"int": "int", "index": "int", "bool": "bool"}
_DOMAINS = ("real", "positive", "nonnegative", "int", "index", "bool")


def upstream_name(output: str) -> str:
    """What `grad` calls d loss / d output: d_mean, and d_value of a bare result."""
    return f"d_{output or 'value'}"


def fault(
    fact: str, line: str = "", *, expected: str = "", came: str = "", do: str = ""
) -> DeclarationError:
    return DeclarationError(message(fact, expected=expected, came=came, where=line, do=do))


class Builder:
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
            cased = [f for f in self.field_names if f != name and f.lower() == name.lower()]
            near = cased or [f for f in near if f != name and len(name) > 2]
            if near:
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

    def grad(
        self, kinds: Mapping[str, Kind], outputs: Sequence[str]
    ) -> tuple[tuple[str, Expr], ...]:
        """d loss / d operand of an element, from operands, fields and d loss / d output."""
        fn = self.parts["grad"]
        if fn is None:
            return ()
        signature = trace.signature(fn, f"{self.name}.grad")
        upstream = {upstream_name(o): "float" for o in outputs}
        every = (*self.operands, *self.payloads, "j")
        for p in signature.parameters:
            if p not in kinds and p not in upstream and p not in every:
                raise fault(
                    f"grad takes `{p}`, which is no operand, field or gradient of an output",
                    trace.function_line(fn),
                    expected=", ".join((*every, *kinds, *upstream)),
                )
        known = {**upstream, **kinds}
        value = trace.run(
            fn,
            {
                p: trace.scalar(p, known[p]) if p in known else self.argument(p, "grad")
                for p in signature.parameters
            },
            self.names,
        )
        parts = value if isinstance(value, dict) else {self.ordered_operands()[0]: value}
        wanted = [n for n in (*self.ordered_operands(), *self.payloads) if self.floating(n)]
        if set(parts) != set(wanted):
            raise fault(
                "grad does not give one gradient for each operand",
                trace.function_line(fn),
                expected=f"a dict of {', '.join(wanted)}, or a bare value for the only operand",
                came=", ".join(map(str, parts)),
                do="give 0.0 to an operand that takes no gradient",
            )
        return tuple((n, trace.to_expr(parts[n], n)[0]) for n in wanted)

    def floating(self, operand: str) -> bool:
        return self.domain.get(operand, "") not in _DOMAIN_KINDS

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
            grad=self.grad({f.name: f.result for f in fields}, [k for k, _ in finish]),
            jointly_gauge=bool(self.parts["jointly_gauge"]),
            empty=self.empty([k for k, _ in finish]),
            names=tuple(self.names.of.items()),
            line=self.line,
            functions=functions,
            **more,
        )


def domain_of(given: Any) -> dict[str, str]:
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
