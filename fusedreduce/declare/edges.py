"""What a declaration means at the edges: absent elements and references without a usable value.

Written once, in the language itself: given tensors these functions compute, given traced values
they build expressions. The rule (each letter is used below):

(a) an element whose contribution to a reference with an infinite identity equals that identity is
    absent for the fields that read the reference, directly or through others;
(b) a term reads a free reference that is at its identity or infinite as its `neutral`, a bound one
    only at its identity; a NaN stays;
(c) in a correction an old reference at its identity reads as the new one, otherwise as in (b);
(d) `finish` sees the true references;
(e) a side with no element is not merged: the other is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from fusedreduce import trace
from fusedreduce.declare.record import NO_POSITION, Field, Record
from fusedreduce.ir.expr import Expr


def at_identity(reference: Field, value: Any) -> Any:
    """value == identity, as a boolean."""
    return value == reference.identity


def readable(reference: Field, value: Any) -> Any:
    """(b): the value a term reads: `neutral` where the reference is at its identity or infinite."""
    if reference.kind == "First" or reference.identity is None:
        return value
    if reference.is_bound:
        return torch.where(at_identity(reference, value), reference.neutral, value)
    missing = abs(value) == float("inf")
    if not reference.has_infinite_identity:
        missing = missing | at_identity(reference, value)
    return torch.where(missing, reference.neutral, value)


def readable_old(reference: Field, old: Any, new: Any) -> Any:
    """(c): the old value a correction reads; `new` is already readable."""
    if reference.kind == "First" or reference.identity is None:
        return old
    return torch.where(at_identity(reference, old), new, readable(reference, old))


def absent(record: Record, name: str, contributions: Mapping[str, Any]) -> Any:
    """(a): is the element absent for field `name`? None when nothing can make it absent."""
    answer: Any = None
    for reference in record.free_references(name):
        here = at_identity(reference, contributions[reference.name])
        answer = here if answer is None else answer | here
    return answer


def has_element(record: Record, state: Mapping[str, Any]) -> Any:
    """(e): does a state hold an element? A state with every slot at its identity holds none."""
    answer: Any = None
    for slot in record.slots:
        here = state[slot.name] != slot.identity
        answer = here if answer is None else answer | here
    return answer


def found(position: Any) -> Any:
    """Does a First, ArgMax or ArgMin hold an element?"""
    return position != NO_POSITION


@lru_cache(maxsize=4096)
def readable_expr(reference: Field) -> Expr:
    """(b) as an expression over `<name>`."""
    value = trace.scalar(reference.name, reference.type)
    return trace.to_expr(readable(reference, value), reference.name)[0]


@lru_cache(maxsize=4096)
def readable_old_expr(reference: Field) -> Expr:
    """(c) as an expression over `old.<name>` and `new.<name>`."""
    old = trace.scalar(f"old.{reference.name}", reference.type)
    new = trace.scalar(f"new.{reference.name}", reference.type)
    return trace.to_expr(readable_old(reference, old, new), reference.name)[0]
