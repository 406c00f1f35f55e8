"""The record: what a declaration says, as frozen data; one form for everything downstream."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fusedreduce.ir.expr import Expr, Number, names
from fusedreduce.ir.show import show

FREE_KINDS = ("Max", "Min", "First")  # references chosen by their own monoid
POSITION_KINDS = ("First", "ArgMax", "ArgMin")  # these keep a position beside the value
NO_POSITION = 2**63 - 1  # the position of nothing: larger than every other
RESERVED_OPERANDS = frozenset(
    ["b", "h", "i", "dim", "keepdim", "outputs", "dtype", "impl", "seed", "return_state", "trust"]
)
RESERVED_FIELDS = RESERVED_OPERANDS | frozenset(
    ["j", "lift", "merge", "finish", "empty", "domain", "definition", "grad", "record"]
)


@dataclass(frozen=True)
class Field:
    """One field of the state.

    kind       Max Min Sum Prod Any All First ArgMax ArgMin Reference, or State (general form)
    identity   the value of nothing; None for a bound reference without one (0 / 0)
    neutral    what a term reads instead of a reference at its identity or not finite
    term       the element's contribution (for a Reference: the formula over fields)
    correct    the field moved from the references `old.*` to `new.*`; None when it has no reference
    derived    the correction was derived, not written
    reads      references the term reads, directly
    """

    name: str
    kind: str
    identity: Number | None
    neutral: float = 0.0
    term: Expr | None = None
    correct: Expr | None = None
    derived: bool = False
    reads: tuple[str, ...] = ()
    type: str = "float"  # with float operands; programs infer it again from the operands they have
    line: str = field(default="", compare=False)

    @property
    def is_reference(self) -> bool:
        return self.kind in FREE_KINDS or self.kind == "Reference"

    @property
    def is_bound(self) -> bool:
        return self.kind == "Reference"

    @property
    def has_infinite_identity(self) -> bool:
        return isinstance(self.identity, float) and math.isinf(self.identity)

    @property
    def result(self) -> str:
        """The kind of what `finish` sees: ArgMax and ArgMin are positions."""
        return "int" if self.kind in ("ArgMax", "ArgMin") else self.type

    @property
    def position(self) -> str:
        """The name of the slot that holds the position (First, ArgMax, ArgMin)."""
        return f"{self.name}_position" if self.kind == "First" else f"{self.name}_value"


@dataclass(frozen=True)
class Slot:
    """One number of the state in memory. First and ArgMax have two: a value and its position."""

    name: str
    field: str
    identity: Number
    type: str


@dataclass(frozen=True)
class Functions:
    """The user's own functions, for `run/eager`; they do not take part in equality."""

    terms: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    corrects: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    lift: Callable[..., Any] | None = None
    merge: Callable[..., Any] | None = None
    finish: Callable[..., Any] | None = None
    definition: Callable[..., Any] | None = None
    grad: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Record:
    """A declaration.

    form       "corrected" (fields with terms and corrections) or "general" (lift and merge)
    fields     in an order in which each reads only earlier ones
    operands   what the terms need, in order of appearance, `x` first; the index `j` is none
    lift       general form: one expression a field, over operands
    merge      general form: one expression a field, over `a.*` and `b.*`
    finish     (output, expression over fields); the output "" stands for a bare tensor
    empty      (output, value): the finish of nothing, or ()
    guards     the selects of the edge rule to apply (None: all); chosen on the float grid
    gauge      the outputs whose slope along the references is 0 (a fact of the certificate)
    jointly_gauge   what is made of the outputs together does not depend on the references
    grad       (operand, d loss / d operand) over operands, fields and `d_<output>`, as stated
    slopes     general form: (field, operand or extreme, d field / d that) over operands and fields
    """

    name: str
    form: str
    fields: tuple[Field, ...]
    operands: tuple[str, ...]
    payloads: tuple[str, ...] = ()
    domain: tuple[tuple[str, str], ...] = ()
    lift: tuple[Expr, ...] = ()
    merge: tuple[Expr, ...] = ()
    finish: tuple[tuple[str, Expr], ...] = ()
    empty: tuple[tuple[str, float], ...] = ()
    guards: frozenset[str] | None = None
    commutative: bool = True
    gauge: tuple[str, ...] = ()
    jointly_gauge: bool = False
    grad: tuple[tuple[str, Expr], ...] = ()
    slopes: tuple[tuple[str, str, Expr], ...] = ()
    names: tuple[tuple[Expr, str], ...] = ()
    line: str = field(default="", compare=False)
    functions: Functions = field(default_factory=Functions, compare=False)

    @cached_property
    def by_name(self) -> dict[str, Field]:
        return {f.name: f for f in self.fields}

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.finish)

    @property
    def text(self) -> str:
        """What is declared, the same on every machine."""
        lines = [f"{f.name} {f.kind} {f.identity} {f.neutral}" for f in self.fields]
        lines += [show(e) for f in self.fields for e in (f.term, f.correct) if e is not None]
        lines += [show(e) for e in (*self.lift, *self.merge)]
        lines += [f"{name} {show(e)}" for name, e in self.finish]
        lines += [f"grad {name} {show(e)}" for name, e in self.grad]
        return "\n".join([*lines, repr(self.empty), repr(self.domain)])

    @cached_property
    def references(self) -> tuple[Field, ...]:
        """The fields that some term or correction reads."""
        read = {name for f in self.fields for name in f.reads}
        return tuple(f for f in self.fields if f.name in read)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The state in memory, in order."""
        return tuple(s for f in self.fields for s in _slots(f))

    def all_references(self, name: str) -> tuple[Field, ...]:
        """The references that field `name` reads, directly or through others, in order."""
        found: set[str] = set()
        todo = list(self.by_name[name].reads)
        while todo:
            reference = todo.pop()
            if reference not in found:
                found.add(reference)
                f = self.by_name[reference]
                todo.extend(f.reads)
                if f.is_bound and f.term is not None:
                    todo.extend(n for n in names(f.term) if n in self.by_name)
        return tuple(f for f in self.fields if f.name in found and f.is_reference)

    def free_references(self, name: str) -> tuple[Field, ...]:
        """Those among `all_references` with an infinite identity: they decide who is absent."""
        return tuple(
            f for f in self.all_references(name) if f.kind in FREE_KINDS and f.has_infinite_identity
        )

    def with_guards(self, guards: frozenset[str]) -> Record:
        return replace(self, guards=guards)

    def guarded(self, guard: str) -> bool:
        """Is this select to be applied? Names: `neutral:m`, `old:m`, `present:s`."""
        return self.guards is None or guard in self.guards


def _slots(f: Field) -> tuple[Slot, ...]:
    if f.identity is None or f.kind == "Reference":
        return ()
    if f.kind == "First":
        return (
            Slot(f.name, f.name, f.identity, f.type),
            Slot(f.position, f.name, NO_POSITION, "int"),
        )
    if f.kind in ("ArgMax", "ArgMin"):
        return (
            Slot(f.position, f.name, f.identity, f.type),
            Slot(f.name, f.name, NO_POSITION, "int"),
        )
    return (Slot(f.name, f.name, f.identity, f.type),)
