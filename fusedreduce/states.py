"""Lift and merge as expressions: what a declaration elaborates to, whichever its form.

gather(a, b) = reduce the references, correct both sides to the result, add. Streams, split rows and
devices merge by it.
"""

from __future__ import annotations

from functools import lru_cache, reduce

from fusedreduce.declare import edges
from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, call, const, names, rename, substitute, var, where

SIDES = ("a", "b")
_FOLDS = {"Max": "maximum", "Min": "minimum", "Prod": "mul", "Any": "or", "All": "and"}


@lru_cache(maxsize=1024)
def merged(record: Record) -> dict[str, Expr]:
    """Each slot of the merged state over `a.<slot>` and `b.<slot>`; `a` comes first in order."""
    if record.form == "general":
        return _general(record)
    new: dict[str, Expr] = {}
    for f in record.fields:
        new |= _field(record, f, new)
    return {slot.name: new[slot.name] for slot in record.slots}


@lru_cache(maxsize=256)
def lifted(record: Record) -> dict[str, Expr]:
    """Each field and slot of the state of one element, over its operands, payloads and `j`."""
    if record.form == "general":
        return dict(zip((f.name for f in record.fields), record.lift, strict=True))
    made: dict[str, Expr] = {}
    for f in record.fields:
        if f.is_bound:
            made[f.name] = substitute(_term(f), made)
            continue
        term = substitute(_term(f), {n: _readable(record, n, made) for n in f.reads})
        if f.kind == "Sum" and record.guarded(f"present:{f.name}"):
            for r in record.free_references(f.name):
                assert r.identity is not None
                term = where(call("eq", made[r.name], r.identity), _zero(f), term)
        if f.kind in ("ArgMax", "ArgMin"):
            made |= {f.position: term, f.name: var("j")}
        else:
            made |= {f.name: term} | ({f.position: var("j")} if f.kind == "First" else {})
    return made


def _zero(f: Field) -> Expr:
    return const(0 if f.type == "int" else 0.0)


def _general(record: Record) -> dict[str, Expr]:
    """Edge rule (e): of a side with no element, the other."""
    empty = {side: _empty(record, side) for side in SIDES}
    return {
        f.name: where(empty["a"], var(f"b.{f.name}"), where(empty["b"], var(f"a.{f.name}"), e))
        for f, e in zip(record.fields, record.merge, strict=True)
    }


def _empty(record: Record, side: str) -> Expr:
    """Every slot of a side is at its identity."""
    tests = [call("eq", var(f"{side}.{s.name}"), s.identity) for s in record.slots]
    return reduce(lambda x, y: call("and", x, y), tests)


def _field(record: Record, f: Field, new: dict[str, Expr]) -> dict[str, Expr]:
    a, b = (var(f"{side}.{f.name}") for side in SIDES)
    if f.is_bound:
        return {f.name: substitute(_term(f), new)}
    if f.kind == "Sum":
        return {f.name: _moved(record, f, "a", new) + _moved(record, f, "b", new)}
    if f.kind == "First":
        x, y = (var(f"{side}.{f.position}") for side in SIDES)
        return {f.name: where(call("le", x, y), a, b), f.position: call("minimum", x, y)}
    if f.kind in ("ArgMax", "ArgMin"):
        return _position(f, a, b)
    return {f.name: call(_FOLDS[f.kind], a, b)}


def _position(f: Field, a: Expr, b: Expr) -> dict[str, Expr]:
    """The better value, the smaller position on a tie; a NaN is better than every number."""
    x, y = (var(f"{side}.{f.position}") for side in SIDES)
    better = call("gt" if f.kind == "ArgMax" else "lt", x, y)
    nan_x, nan_y = call("ne", x, x), call("ne", y, y)
    tie = call("and", call("or", call("eq", x, y), call("and", nan_x, nan_y)), call("le", a, b))
    first = call("or", call("and", better, call("not", nan_y)), tie)
    first = call("or", first, call("and", nan_x, call("not", nan_y)))
    return {f.name: where(first, a, b), f.position: where(first, x, y)}


def _moved(record: Record, f: Field, side: str, new: dict[str, Expr]) -> Expr:
    """A sum of one side at the merged references."""
    if f.correct is None:
        return var(f"{side}.{f.name}")
    old = {f"old.{n}": e for n, e in _side(record, side).items()}
    table: dict[str, Expr] = {}
    for n in dict.fromkeys(names(f.correct)):
        kind, _, name = n.partition(".")
        if not name:
            table[n] = var(f"{side}.{n}")
        elif kind == "new":
            table[n] = _readable(record, name, new)
        elif record.by_name[name].is_reference:
            table[n] = _readable_old(record, name, old, new)
        else:
            table[n] = old[n]
    return substitute(f.correct, table)


def _side(record: Record, side: str) -> dict[str, Expr]:
    """The fields of one side; bound references computed from the others."""
    fields: dict[str, Expr] = {}
    for f in record.fields:
        fields[f.name] = substitute(_term(f), fields) if f.is_bound else var(f"{side}.{f.name}")
    return fields


def _readable(record: Record, name: str, state: dict[str, Expr]) -> Expr:
    """Edge rule (b) in the state with these fields."""
    if not record.guarded(f"neutral:{name}"):
        return state[name]
    return substitute(edges.readable_expr(record, name), state)


def _readable_old(record: Record, name: str, old: dict[str, Expr], new: dict[str, Expr]) -> Expr:
    """Edge rule (c): an old reference at its identity reads as the new one."""
    if record.guarded(f"old:{name}"):
        table = old | {f"new.{name}": _readable(record, name, new)}
        return substitute(edges.readable_old_expr(record, name), table)
    if not record.guarded(f"neutral:{name}"):
        return old[f"old.{name}"]
    expr = edges.readable_expr(record, name)
    return substitute(rename(expr, {n: f"old.{n}" for n in names(expr)}), old)


def _term(f: Field) -> Expr:
    assert f.term is not None, f.name
    return f.term
