"""Part of a declaration: only some outputs, and the fields that they need."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fusedreduce.declare.parts import upstream_name
from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import const, names, substitute
from fusedreduce.ir.simplify import simplify


def needed_fields(record: Record, outputs: frozenset[str]) -> frozenset[str]:
    """The fields that these outputs need, through references and corrections."""
    if record.form == "general":
        return frozenset(f.name for f in record.fields)
    todo = [n for o, e in record.finish if o in outputs for n in names(e)]
    todo += [n for _, e in record.grad for n in names(e)]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in found or name not in record.by_name:
            continue
        found.add(name)
        f = record.by_name[name]
        todo += [*f.reads, *_read(f)]
    return frozenset(found)


def _read(f: Field) -> tuple[str, ...]:
    read = [n for e in (f.term, f.correct) if e is not None for n in names(e)]
    return tuple(n.split(".")[-1] for n in read)


def restricted(record: Record, outputs: frozenset[str], keep_state: bool = False) -> Record:
    """Only these outputs, only the fields they need (all fields when the state is asked for)."""
    gone = {upstream_name(o): const(0.0) for o in record.outputs if o not in outputs}
    grad = tuple((n, simplify(substitute(e, gone))) for n, e in record.grad)
    record = replace(record, grad=grad)
    fields = frozenset(record.by_name) if keep_state else needed_fields(record, outputs)
    return replace(
        record,
        fields=tuple(f for f in record.fields if f.name in fields),
        finish=tuple((o, e) for o, e in record.finish if o in outputs),
        empty=tuple((o, v) for o, v in record.empty if o in outputs),
    )


@lru_cache(maxsize=4096)
def alone(record: Record, output: str) -> Record:
    """The record as if one output were asked for: whether a row holds nothing is told by it."""
    return restricted(record, frozenset({output}))
