"""Mutants: a declaration with one operation, sign, operand or constant of it altered.

A part of a declaration is one expression: a correction, a term, a component of lift or merge, an
output of finish. Terms, lifts and finishes are altered only where a definition says what is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mpmath import mp

from fusedreduce.declare.record import Record
from fusedreduce.ir.evaluate import compiled_all
from fusedreduce.ir.expr import Expr, call, const, make, names, var, walk
from fusedreduce.ir.show import show
from fusedreduce.laws import complete, running, states
from fusedreduce.laws.certificate import Law, Status
from fusedreduce.laws.corrected import laws_of_corrected
from fusedreduce.laws.decide import soon
from fusedreduce.laws.general import laws_of_general
from fusedreduce.laws.refute import DIGITS, REALS, close, draw
from fusedreduce.laws.settle import Clock

SWAPS: Mapping[str, str] = {
    "add": "sub", "sub": "add", "mul": "div", "div": "mul", "maximum": "minimum",
    "minimum": "maximum", "gt": "ge", "ge": "gt", "lt": "le", "le": "lt", "eq": "ne", "ne": "eq",
    "and": "or", "or": "and", "exp": "log", "log": "exp", "sqrt": "abs", "abs": "neg",
    "sin": "cos", "cos": "sin", "cosh": "sinh", "sinh": "cosh",
}  # fmt: skip
NUMBERS = ("add", "sub", "mul", "div", "pow", "exp", "log", "sqrt", "maximum", "minimum", "abs")
FOLDS = ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4, 5))


@dataclass(frozen=True)
class Mutant:
    """`record` is `original` with a node of `part` altered; `change` says which."""

    original: Record
    record: Record
    part: str
    change: str

    @property
    def name(self) -> str:
        return f"{self.original.name} {self.part}: {self.change}"


# ---- making them ---------------------------------------------------------------------------------


def mutants(given: Record) -> Iterator[Mutant]:
    """All mutants of a declaration, each once."""
    record = replace(complete(given), functions=given.functions, line=given.line)
    seen: set[Record] = {record}
    for part, e, put in _parts(record):
        for node in walk(e):
            for new in _altered(node, record, e):
                changed = put(_swapped(e, node, new))
                if changed not in seen:
                    seen.add(changed)
                    changed = replace(changed, functions=record.functions)
                    yield Mutant(record, changed, part, f"{show(node)} -> {show(new)}")


def _parts(record: Record) -> Iterator[tuple[str, Expr, Callable[[Expr], Record]]]:
    """Every expression of a declaration, and how to put another in its place."""
    defined = record.functions.definition is not None
    for i, f in enumerate(record.fields):
        for what in ("correct", "term"):
            e = getattr(f, what)
            if e is not None and (what == "correct" or defined):

                def field(new: Expr, i: int = i, what: str = what) -> Record:
                    fields = list(record.fields)
                    fields[i] = replace(fields[i], **{what: new})
                    return replace(record, fields=tuple(fields))

                yield f"{what} {f.name}", e, field
    for what in ("lift", "merge"):
        for i, e in enumerate(getattr(record, what)):
            if what == "merge" or defined:

                def component(new: Expr, i: int = i, what: str = what) -> Record:
                    return replace(record, **{what: _with(getattr(record, what), i, new)})

                yield f"{what} {record.fields[i].name}", e, component
    for i, (name, e) in enumerate(record.finish if defined else ()):

        def output(new: Expr, i: int = i, name: str = name) -> Record:
            return replace(record, finish=_with(record.finish, i, (name, new)))

        yield f"finish {name}".rstrip(), e, output


def _with(values: tuple[Any, ...], i: int, new: Any) -> tuple[Any, ...]:
    return (*values[:i], new, *values[i + 1 :])


def _altered(node: Expr, record: Record, whole: Expr) -> Iterator[Expr]:
    """One node in other ways: another operation, its arguments turned round, a sign, an operand."""
    if node.op in SWAPS:
        yield make(SWAPS[node.op], node.args)
    if node.op in ("sub", "div", "where"):
        yield make(node.op, (*node.args[:-2], node.args[-1], node.args[-2]))
    if node.op in NUMBERS:
        yield -node
    if node.op == "neg":
        yield node.args[0]
    if node.op == "var":
        yield from _operands(str(node.value), record, whole)
    if node.op == "const" and not isinstance(node.value, bool):
        assert isinstance(node.value, (int, float))
        if abs(node.value) < float("inf"):
            yield const(type(node.value)(node.value + 1))
    if node.op == "const" and isinstance(node.value, bool):
        yield const(not node.value)


def _operands(name: str, record: Record, whole: Expr) -> Iterator[Expr]:
    """The other side's field, and the next variable of the expression with the same kind."""
    side, dot, field = name.partition(".")
    other = {"a": "b", "b": "a", "old": "new", "new": "old"}.get(side)
    readable = other != "new" or record.by_name[field].is_reference
    if dot and other and readable:
        yield var(f"{other}.{field}")
    alike = [n for n in dict.fromkeys(names(whole)) if _kind(n, record) == _kind(name, record)]
    if len(alike) > 1:
        yield var(alike[(alike.index(name) + 1) % len(alike)])


def _kind(name: str, record: Record) -> str:
    field = name.rpartition(".")[2]
    if field in record.by_name:
        return record.by_name[field].type
    return {"bool": "bool"}.get(dict(record.domain).get(field, ""), "float")


def _swapped(root: Expr, node: Expr, new: Expr) -> Expr:
    if root is node:
        return new
    args = tuple(_swapped(a, node, new) for a in root.args)
    return make(root.op, args, root.value) if args else root


# ---- judging them --------------------------------------------------------------------------------


def laws_of(record: Record, seconds: float = 5.0) -> list[Law]:
    """The laws alone: no float grid and no facts, which no verdict depends on."""
    clock = Clock(soon(15.0), law_s=seconds)
    if record.form == "general":
        return laws_of_general(record, clock)[0]
    return laws_of_corrected(record, clock)


def verdict(mutant: Mutant) -> Status:
    """Refuted, Proved, or Checked for anything between."""
    found = {law.status for law in laws_of(mutant.record)}
    if Status.REFUTED in found:
        return Status.REFUTED
    return Status.PROVED if found == {Status.PROVED} else Status.CHECKED


def agrees(mutant: Mutant, count: int = 60) -> bool:
    """Does the mutant give what the original gives, at 40 digits on rows of up to five elements?"""
    source = random.Random(97)
    with mp.workdps(DIGITS):
        return all(_same_on(mutant, which, source, count) for which in FOLDS)


def _same_on(mutant: Mutant, which: tuple[int, ...], source: random.Random, count: int) -> bool:
    record = mutant.original
    sides = [_results(r, which) for r in (record, mutant.record)]
    domains = states.elements(record, len(which))
    run = compiled_all((*sides[0], *sides[1]), tuple(n for n, _ in domains), REALS)
    for _ in range(count):
        values = run(*draw(domains, source))
        half = len(values) // 2
        if not all(map(_equal, values[:half], values[half:])):
            return False
    return True


def _results(record: Record, which: tuple[int, ...]) -> tuple[Expr, ...]:
    """The outputs, merged from the left and from the right; without a definition the states too."""
    left = running.fold(record, which)
    right = running.lift(record, which[-1])
    for i in reversed(which[:-1]):
        right = running.merge(record, running.lift(record, i), right)
    out: list[Expr] = []
    for state in (left, right):
        out += states.finish(record, state).values()
        if record.functions.definition is None:
            out += states.values(record, state)
    return tuple(out)


def _equal(a: Any, b: Any) -> bool:
    """Equal, or the original has no value there."""
    nan = not isinstance(a, bool) and mp.isnan(a)
    return bool(nan) or close(a, b)


def lonely(mutant: Mutant) -> bool:
    """Is it a lawful merge of which nobody said what it computes?"""
    return mutant.record.form == "general" and mutant.record.functions.definition is None


__all__ = ["Mutant", "agrees", "call", "laws_of", "lonely", "mutants", "verdict"]
