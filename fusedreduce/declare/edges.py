"""What a declaration means at the edges: absent elements and references without a usable value.

Written once, in the language itself: given tensors these functions compute, given traced values
they build expressions. The rule (each letter is used below):

(a) an element whose contribution to a reference with an infinite identity equals that identity is
    absent for the fields that read the reference, directly or through others;
(b) a term reads a free reference that is at its identity or infinite as its `neutral`, a bound one
    only at its identity, where every field of its formula is at its own; a NaN stays;
(c) in a correction an old reference at its identity reads as the new one, otherwise as in (b);
(d) `finish` sees the true references;
(e) a side with no element is not merged: the other is returned.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from fusedreduce import trace
from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, names


def at_identity(record: Record, reference: Field, state: Mapping[str, Any]) -> Any:
    """Does a reference hold nothing yet? A bound one when the fields of its formula do.

    None for First: it tells by its position, and is never read before it holds a value.
    """
    if reference.kind == "First":
        return None
    if not reference.is_bound:
        return state[reference.name] == reference.identity
    assert reference.term is not None
    read = [record.by_name[n] for n in names(reference.term)]
    counts = [f for f in read if is_count(f)]
    tests = [at_identity(record, f, state) for f in counts[:1] or read]
    found = [t for t in tests if t is not None]
    return functools.reduce(operator.and_, found) if found else None


def is_count(f: Field) -> bool:
    """A sum to which every element adds the same number: 0 for nothing alone."""
    return f.kind == "Sum" and f.term is not None and f.term.op == "const" and bool(f.term.value)


def readable(record: Record, reference: Field, state: Mapping[str, Any]) -> Any:
    """(b): the value a term reads: `neutral` where the reference is at its identity or infinite."""
    value = state[reference.name]
    missing = at_identity(record, reference, state)
    if missing is None:
        return value
    if not reference.is_bound:
        infinite = abs(value) == float("inf")
        missing = infinite if reference.has_infinite_identity else missing | infinite
    return torch.where(missing, reference.neutral, value)


def readable_old(record: Record, reference: Field, old: Mapping[str, Any], new: Any) -> Any:
    """(c): the old value a correction reads; `new` is the new one, already readable."""
    missing = at_identity(record, reference, old)
    if missing is None:
        return old[reference.name]
    value = old[reference.name] if reference.is_bound else readable(record, reference, old)
    return torch.where(missing, new, value)


def absent(record: Record, name: str, contributions: Mapping[str, Any]) -> Any:
    """(a): is the element absent for field `name`? None when nothing can make it absent."""
    answer: Any = None
    for reference in record.free_references(name):
        here = contributions[reference.name] == reference.identity
        answer = here if answer is None else answer | here
    return answer


def has_element(record: Record, state: Mapping[str, Any]) -> Any:
    """(e): does a state hold an element? A state with every slot at its identity holds none."""
    answer: Any = None
    for slot in record.slots:
        here = state[slot.name] != slot.identity
        answer = here if answer is None else answer | here
    return answer


def can_be_empty(record: Record) -> bool:
    """May a row with elements hold nothing, so that `empty` applies?"""
    return record.form == "general" or any(f.has_infinite_identity for f in record.references)


@lru_cache(maxsize=4096)
def readable_expr(record: Record, name: str) -> Expr:
    """(b) as an expression over `<reference>` and the fields of its formula."""
    value = readable(record, record.by_name[name], _scalars(record, ""))
    return trace.to_expr(value, name)[0]


@lru_cache(maxsize=4096)
def readable_old_expr(record: Record, name: str) -> Expr:
    """(c) as an expression over `old.*` and `new.<reference>`."""
    reference = record.by_name[name]
    new = trace.scalar(f"new.{name}", reference.type)
    value = readable_old(record, reference, _scalars(record, "old."), new)
    return trace.to_expr(value, name)[0]


def _scalars(record: Record, side: str) -> dict[str, trace.Traced]:
    return {f.name: trace.scalar(side + f.name, f.type) for f in record.fields}
