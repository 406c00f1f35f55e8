"""States as expressions: lift, merge, finish and the two-pass value of both forms, over the reals.

A state maps every slot to an expression. Elements carry a number: operand x of element 2 is the
variable `x[2]`, its position is 2. States here hold at least one element, so the edge rule of
`declare.edges` (absent elements, empty sides) has no part in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, call, const, names, substitute, var, where

State: TypeAlias = "dict[str, Expr]"


def operand(name: str, element: int) -> str:
    return f"{name}[{element}]"


def at_element(record: Record, e: Expr, element: int) -> Expr:
    """An expression over operands, for the element with this number."""
    table = {n: var(operand(n, element)) for n in (*record.operands, *record.payloads)}
    return substitute(e, {**table, "j": const(element)})


def elements(record: Record, count: int) -> tuple[tuple[str, str], ...]:
    """(variable, domain) of every operand of elements 1 to count."""
    domain = dict(record.domain)
    return tuple(
        (operand(n, i), domain.get(n, "real"))
        for i in range(1, count + 1)
        for n in (*record.operands, *record.payloads)
    )


def identity(record: Record) -> State:
    return {s.name: const(s.identity) for s in record.slots}


def symbols(record: Record, side: str) -> State:
    """A state of variables `side.slot`; a bound reference is its formula over the others."""
    state: State = {}
    for f in record.fields:
        if f.is_bound:
            state[f.name] = formula(f, state)
        else:
            state |= {s: var(f"{side}.{s}") for s in slots(f)}
    return state


def slots(f: Field) -> tuple[str, ...]:
    """The names of a field's numbers, the value of the field among them."""
    return (f.name, f.position) if f.kind in ("First", "ArgMax", "ArgMin") else (f.name,)


def formula(f: Field, state: Mapping[str, Expr]) -> Expr:
    """The term of a bound reference at a state."""
    assert f.term is not None
    return substitute(f.term, dict(state))


def lift(record: Record, element: int) -> State:
    """The state of one element."""
    if record.form == "general":
        pairs = zip(record.fields, record.lift, strict=True)
        return {f.name: at_element(record, e, element) for f, e in pairs}
    return direct(record, (element,))


Read: TypeAlias = Callable[[str, State], Expr]
Move: TypeAlias = Callable[[Field, Mapping[str, Expr], State], Expr]


def direct(record: Record, which: Sequence[int], read: Read = lambda r, state: state[r]) -> State:
    """The two-pass value: references over all elements first, then every sum at those."""
    state: State = {}
    for f in record.fields:
        if f.is_bound:
            state[f.name] = formula(f, state)
            continue
        at = {r: read(r, state) for r in f.reads}
        parts = [_contribution(record, f, i, at) for i in which]
        whole = parts[0]
        for part in parts[1:]:
            whole = _joined(f, whole, part)
        state |= whole
    return state


def _contribution(record: Record, f: Field, element: int, references: State) -> State:
    """What one element brings to a field, at these references."""
    assert f.term is not None
    value = substitute(at_element(record, f.term, element), references)
    place = const(element)
    if f.kind == "First":
        return {f.name: value, f.position: place}
    if f.kind in ("ArgMax", "ArgMin"):
        return {f.position: value, f.name: place}
    return {f.name: value}


def _plainly(f: Field, old: Mapping[str, Expr], new: State) -> Expr:
    assert f.correct is not None
    return corrected(f, f.correct, old, new)


def merge(
    record: Record, a: Mapping[str, Expr], b: Mapping[str, Expr], move: Move = _plainly
) -> State:
    """The state of two states; the corrected form reduces references, corrects, then sums."""
    if record.form == "general":
        table = {f"{side}.{n}": e for side, s in (("a", a), ("b", b)) for n, e in s.items()}
        pairs = zip(record.fields, record.merge, strict=True)
        return {f.name: substitute(e, table) for f, e in pairs}
    new: State = {}
    for f in record.fields:
        if f.is_bound:
            new[f.name] = formula(f, new)
            continue
        sides = [{s: side[s] for s in slots(f)} for side in (a, b)]
        if f.correct is not None:
            sides = [{f.name: move(f, side, new)} for side in (a, b)]
        new |= _joined(f, *sides)
    return new


def corrected(f: Field, correct: Expr, old: Mapping[str, Expr], new: Mapping[str, Expr]) -> Expr:
    """The field of state `old`, moved to the references of `new`."""
    table = {f.name: old[f.name]}
    table |= {f"old.{n}": e for n, e in old.items()} | {f"new.{n}": e for n, e in new.items()}
    return substitute(correct, table)


def _joined(f: Field, a: State, b: State) -> State:
    """Two values of one field."""
    if f.kind in _TWO:
        return {f.name: call(_TWO[f.kind], a[f.name], b[f.name])}
    left = _left(f, a, b)
    return {s: where(left, a[s], b[s]) for s in slots(f)}


def _left(f: Field, a: State, b: State) -> Expr:
    """Which side a First, ArgMax or ArgMin keeps: the better value, the smaller position."""
    p, q = (f.position, f.position) if f.kind == "First" else (f.name, f.name)
    earlier = call("le", a[p], b[q])
    if f.kind == "First":
        return earlier
    value = f.position
    better = call("gt" if f.kind == "ArgMax" else "lt", a[value], b[value])
    return call("or", better, call("and", call("eq", a[value], b[value]), earlier))


_TWO: Mapping[str, str] = {
    "Sum": "add", "Prod": "mul", "Max": "maximum", "Min": "minimum", "Any": "or", "All": "and",
}  # fmt: skip


def fold(record: Record, which: Iterable[int]) -> State:
    """The merge of lifted elements, from the left."""
    return reduce(lambda a, b: merge(record, a, b), (lift(record, i) for i in which))


def finish(record: Record, state: Mapping[str, Expr]) -> dict[str, Expr]:
    return {name: substitute(e, dict(state)) for name, e in record.finish}


def values(record: Record, state: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """The numbers that make up a state: every slot but the bound references."""
    return tuple(state[s.name] for s in record.slots)


def labels(record: Record) -> tuple[str, ...]:
    return tuple(s.name for s in record.slots)


def reads(e: Expr, side: str) -> tuple[str, ...]:
    """The fields that an expression reads on a side: those after `old.` in `old.m`."""
    start = f"{side}."
    return tuple(n.removeprefix(start) for n in names(e) if n.startswith(start))


def operand_signs(record: Record, count: int) -> dict[str, str]:
    """Signs of the operands of elements 1 to count."""
    return {n: _SIGNS.get(d, "") for n, d in elements(record, count)}


_SIGNS = {"positive": "+", "nonnegative": "0+", "index": "0+", "bool": "bool"}
