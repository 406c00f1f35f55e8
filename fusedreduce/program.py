"""The normal form: inputs -> prologue -> stages of reductions -> epilogue -> outputs.

Every value is an expression over inputs (`x`), the results of stages (`r.mean`) and the index `j`
along the reduced axes; it is an element, row, column or scalar by the axes it varies along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.check import kind_of
from fusedreduce.ir.expr import Expr, names

Dims = tuple[tuple[str, ...], ...]  # for each dimension of a tensor, the axes it runs over


@dataclass(frozen=True)
class Axis:
    """One axis: outer (a program or a row of it) or reduced."""

    name: str
    size: int
    reduced: bool


@dataclass(frozen=True)
class Input:
    """One argument: a tensor, or a run-time number when `number` is set."""

    name: str
    dims: Dims
    dtype: str
    number: bool = False

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(a for d in self.dims for a in d)

    @property
    def kind(self) -> str:
        return dtype_kind(self.dtype)


@dataclass(frozen=True)
class Stage:
    """One declared reduction over the reduced axes; its results are the variables `name.output`."""

    name: str
    record: Record
    operands: tuple[tuple[str, Expr], ...]
    level: int
    state: bool = False  # the whole state is a result too

    def result(self, output: str) -> str:
        return f"{self.name}.{output or 'value'}"

    def slot(self, name: str) -> str:
        """The variable that holds one slot of the state."""
        return f"{self.name}.state.{name}"


@dataclass(frozen=True)
class Output:
    """One tensor that the kernel writes.

    summed   over all rows: each program of the kernel writes the sum over its own rows, and the
             caller adds those up in order
    """

    name: str
    expr: Expr
    dims: Dims
    dtype: str
    summed: bool = False

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(a for d in self.dims for a in d)


@dataclass(frozen=True)
class Program:
    """A fused function in normal form; `state` is the dtype everything is computed in."""

    name: str
    axes: tuple[Axis, ...]
    inputs: tuple[Input, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[Output, ...]
    state: str
    names: tuple[tuple[Expr, str], ...] = ()

    @cached_property
    def size(self) -> dict[str, int]:
        return {a.name: a.size for a in self.axes}

    @property
    def outer(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if not a.reduced)

    @property
    def reduced(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.reduced)

    @property
    def rows(self) -> int:
        return prod(a.size for a in self.outer)

    @property
    def columns(self) -> int:
        return prod(a.size for a in self.reduced)

    @property
    def sums(self) -> tuple[Output, ...]:
        """The outputs that are summed over all rows."""
        return tuple(o for o in self.outputs if o.summed)

    @cached_property
    def by_name(self) -> dict[str, Input]:
        return {i.name: i for i in self.inputs}

    @cached_property
    def stage_of(self) -> dict[str, Stage]:
        """Which stage makes a variable such as `r.mean`."""
        made = {s.result(o): s for s in self.stages for o in s.record.outputs}
        return made | {
            s.slot(slot.name): s for s in self.stages if s.state for slot in s.record.slots
        }

    @cached_property
    def levels(self) -> tuple[tuple[Stage, ...], ...]:
        """Stages that can share one pass over the data, in order."""
        depth = max((s.level for s in self.stages), default=-1)
        return tuple(
            tuple(s for s in self.stages if s.level == level) for level in range(depth + 1)
        )

    @cached_property
    def kinds(self) -> dict[str, str]:
        """bool, int or float, for every variable."""
        table = {i.name: i.kind for i in self.inputs} | {"j": "int"}
        for s in self.stages:
            table |= stage_kinds(s)
        return table

    def place(self, expr: Expr) -> str:
        """element, row, column or scalar: by the axes, outer and reduced, it varies along."""
        return widest(self.place_of_name(n) for n in names(expr))

    def place_of_name(self, name: str) -> str:
        if name == "j":
            return "column"
        if name in self.stage_of:
            return "row"
        given = self.by_name[name]
        return "scalar" if given.number else self.place_of_axes(given.axes)

    def place_of_axes(self, axes: frozenset[str]) -> str:
        """Where a tensor varies; without outer axes all lies in one row, and so for reduced."""
        outer = not self.outer or any(a.name in axes for a in self.outer)
        reduced = not self.reduced or any(a.name in axes for a in self.reduced)
        if outer:
            return "element" if reduced else "row"
        return "column" if reduced else "scalar"


def widest(places: Iterable[str]) -> str:
    """Where a value varies that is made of values of these places.

    >>> widest(["row", "scalar"]), widest(["row", "column"])
    ('row', 'element')
    """
    found = set(places)
    if "element" in found or {"row", "column"} <= found:
        return "element"
    return next((p for p in ("row", "column") if p in found), "scalar")


def dtype_kind(dtype: str) -> str:
    if dtype == "bool":
        return "bool"
    return "float" if "float" in dtype else "int"


def stage_kinds(stage: Stage) -> dict[str, str]:
    """The kinds of a stage's results."""
    fields = {f.name: f.result for f in stage.record.fields}
    table = {stage.result(o): kind_of(e, fields) for o, e in stage.record.finish}
    if stage.state:
        table |= {stage.slot(slot.name): slot.type for slot in stage.record.slots}
    return table


def typed(record: Record, operands: Mapping[str, str]) -> Record:
    """The record with its fields' types inferred from the kinds of the operands it is given.

    A sum of integers or booleans is an int; a maximum of integers is an int, whose infinite
    identity becomes the smallest integer.
    """
    kinds: dict[str, str] = {**operands, "j": "int"}
    fields: list[Field] = []
    for f in record.fields:
        if record.form == "general":
            lifted = kind_of(record.lift[len(fields)], kinds)
            kind = _state_type(f, lifted)
        else:
            assert f.term is not None
            kind = _field_type(f, kind_of(f.term, kinds))
        kinds[f.name] = kind
        neutral = int(f.neutral) if kind == "int" else f.neutral
        fields.append(replace(f, type=kind, identity=_identity(f, kind), neutral=neutral))
    return replace(record, fields=tuple(fields))


def _field_type(f: Field, term: str) -> str:
    if f.kind in ("Any", "All"):
        return "bool"
    if term == "bool" and f.kind != "Reference":
        return "int"
    return term


def _state_type(f: Field, lifted: str) -> str:
    if isinstance(f.identity, bool):
        return "bool"
    return "float" if isinstance(f.identity, float) else lifted


def _identity(f: Field, kind: str) -> float | int | bool | None:
    if kind == "int" and f.has_infinite_identity:
        assert f.identity is not None
        return 2**63 - 1 if f.identity > 0 else -(2**63)
    return f.identity


def valued(record: Record) -> frozenset[str]:
    """The fields whose value depends on an operand; the others only count."""
    if record.form == "general":
        return _valued_general(record)
    found: set[str] = set()
    for f in record.fields:
        read = names(f.term) if f.term is not None else ()
        operands = (*record.operands, *record.payloads)
        if f.kind in ("ArgMax", "ArgMin") or any(n in found or n in operands for n in read):
            found.add(f.name)
    return frozenset(found)


def _valued_general(record: Record) -> frozenset[str]:
    """Fields lifted from an operand, then those whose merge reads one of them."""
    fields = [f.name for f in record.fields]
    found = {n for n, e in zip(fields, record.lift, strict=True) if names(e)}
    for _ in fields:
        for n, e in zip(fields, record.merge, strict=True):
            if any(read.partition(".")[2] in found for read in names(e)):
                found.add(n)
    return frozenset(found)
