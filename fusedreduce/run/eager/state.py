"""The state of every row: two passes (corrected form) or a tree of merges."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fusedreduce.declare.edges import absent, has_element, readable
from fusedreduce.declare.record import NO_POSITION, Field, Record
from fusedreduce.errors import NotFusible, message
from fusedreduce.run.eager.rows import (
    KEYS,
    Rows,
    Values,
    call,
    components,
    gate,
    kind_of,
    parameters,
)

Kind: TypeAlias = (
    "Callable[[Field, Tensor, Tensor | None], Values]"  # from the elements to the field's slots
)


def final_state(record: Record, rows: Rows) -> tuple[Record, Values]:
    """The record with the types its fields have here, and every field and slot, one a row."""
    return (_two_passes if record.form == "corrected" else _tree)(record, rows)


def _two_passes(record: Record, rows: Rows) -> tuple[Record, Values]:
    """References first, over all elements; then every sum, at the final references."""
    terms = record.functions.terms
    contributions = {
        f.name: _counted(f, rows.elements(call(terms[f.name], rows.values)))
        for f in record.fields
        if f.kind not in ("Sum", "Reference")
    }
    record = replace(record, fields=tuple(_typed(f, contributions) for f in record.fields))
    for f in record.fields:
        if f.name in contributions:
            contributions[f.name] = rows.present(contributions[f.name], f.identity)
    state: Values = {}
    for f in record.fields:
        if f.kind == "Sum":
            state[f.name] = _sum(record, f, rows, contributions, state)
        elif f.is_bound:
            state[f.name] = rows.rows(call(terms[f.name], state))
        elif rows.n:
            state |= _KINDS[f.kind](f, contributions[f.name], rows.inside)
        else:
            state |= _nothing(record, f, rows, contributions[f.name].dtype)
    types = {n: kind_of(v.dtype) for n, v in (state | contributions).items()}
    return replace(
        record, fields=tuple(replace(f, type=types[f.name]) for f in record.fields)
    ), state


def _nothing(record: Record, f: Field, rows: Rows, dtype: torch.dtype) -> Values:
    """The slots of a field that no element was given to."""
    slots = [s for s in record.slots if s.field == f.name]
    positions = {s.name: torch.int64 for s in slots if s.identity == NO_POSITION}
    return {s.name: rows.full(s.identity, positions.get(s.name, dtype)) for s in slots}


def _counted(f: Field, value: Tensor) -> Tensor:
    """Booleans are counted and compared as integers, except by Any and All."""
    counts = value.dtype == torch.bool and f.kind not in ("Any", "All")
    return value.to(torch.int64) if counts else value


def _typed(f: Field, contributions: Mapping[str, Tensor]) -> Field:
    """Of integers, an infinite identity is the smallest or largest one, and neutral an integer."""
    value = contributions.get(f.name)
    if value is None or value.is_floating_point() or not f.has_infinite_identity:
        return f
    limits = torch.iinfo(torch.int64)
    identity = limits.max if float(f.identity or 0) > 0 else limits.min
    return replace(f, identity=identity, neutral=int(f.neutral))


def _sum(
    record: Record, f: Field, rows: Rows, contributions: Mapping[str, Tensor], state: Values
) -> Tensor:
    """sum_j term(element j, references), over the elements that are present."""
    away = absent(record, f.name, contributions)
    if rows.inside is not None:
        away = ~rows.inside if away is None else away | ~rows.inside
    read = {n: readable(record, record.by_name[n], state) for n in f.reads}
    function = record.functions.terms[f.name]
    used = {n: v for n, v in (rows.values | read).items() if n in parameters(function)}
    payload = next((n for n in record.payloads if n in used and rows.weighed), None)
    if payload is not None:
        return _matmul(record, f, payload, rows, used, away)
    values = {n: gate(v, away) for n, v in used.items()}
    term = rows.elements(call(function, values))
    present = term if away is None else torch.where(away, torch.zeros_like(term), term)
    return present.sum(KEYS, keepdim=True)


def _matmul(
    record: Record, f: Field, payload: str, rows: Rows, used: Values, away: Tensor | None
) -> Tensor:
    """sum_j weight_j * v_j, as a matmul: the weight is the term where the payload is 1."""
    vectors = used.pop(payload)
    values = {n: gate(v, away) for n, v in used.items()}

    def term(number: float) -> Tensor:
        value = call(record.functions.terms[f.name], {**values, payload: rows.number(number)})
        return rows.elements(value)

    weight = term(1.0)
    with torch.no_grad():
        if _has_values() and not torch.allclose(term(-2.0), -2.0 * weight, equal_nan=True):
            raise NotFusible(
                message(
                    f"{record.name}.{f.name} is no matmul",
                    expected="a Sum of p(score, references) * v",
                    where=f.line,
                    do="write the term as a weight times the payload",
                )
            )
    if rows.keep is not None:
        weight = weight * rows.keep
    if away is not None:
        weight = torch.where(away, torch.zeros_like(weight), weight)
    product: Tensor = weight[..., rows.ahead :, 0] @ vectors[..., 0, :, :]
    return product[..., None, :]


def _has_values() -> bool:
    """Can values be looked at: does no transform or trace of torch stand between?"""
    inside = torch._C._functorch.peek_interpreter_stack() is not None
    return not inside and torch._C._len_torch_dispatch_stack() == 0


def _extreme(pick: Callable[..., Any], within: Callable[[Any, Any], Any]) -> Kind:
    """Max or Min: the gradient goes to the first element that attains it, none at the identity."""

    def function(f: Field, value: Tensor, inside: Tensor | None) -> Values:
        found = pick(value, KEYS, keepdim=True).values
        return {f.name: torch.where(within(found, f.identity), f.identity or 0, found)}

    return function


def _first(f: Field, value: Tensor, inside: Tensor | None) -> Values:
    if inside is None:
        found = value[..., :1, :]
        return {f.name: found, f.position: torch.zeros_like(found, dtype=torch.int64)}
    at = _first_inside(inside, value)
    found = value.gather(KEYS, at.clamp(max=value.shape[KEYS] - 1))
    return {f.name: torch.where(at == NO_POSITION, f.identity or 0, found), f.position: at}


def _first_inside(inside: Tensor, like: Tensor) -> Tensor:
    """The position of the first element of each row, NO_POSITION where there is none."""
    found, at = inside.byte().max(KEYS, keepdim=True)
    place = torch.where(found > 0, at, NO_POSITION)
    return place.expand(*like.shape[:KEYS], 1, place.shape[-1])


def _position(pick: Callable[..., Tensor]) -> Kind:
    """ArgMax or ArgMin: the first position; a NaN is the largest and the smallest, as in torch."""

    def function(f: Field, value: Tensor, inside: Tensor | None) -> Values:
        at = pick(value, KEYS, keepdim=True)
        best = value.gather(KEYS, at)
        if inside is not None:  # an element may well have the value of nothing
            at = torch.where(torch.eq(best, f.identity or 0), _first_inside(inside, value), at)
        return {f.name: at, f.position: best}

    return function


def _over(pick: Callable[..., Tensor]) -> Kind:
    return lambda f, value, inside: {f.name: pick(value, KEYS, keepdim=True)}


_KINDS: Mapping[str, Kind] = {
    "Max": _extreme(torch.max, operator.le),
    "Min": _extreme(torch.min, operator.ge),
    "First": _first,
    "ArgMax": _position(torch.argmax),
    "ArgMin": _position(torch.argmin),
    "Prod": _over(torch.prod),
    "Any": _over(torch.any),
    "All": _over(torch.all),
}


def _tree(record: Record, rows: Rows) -> tuple[Record, Values]:
    """merge of neighbours, then of neighbours of that, in the order of the axis: log n steps."""
    lifted = components(call(record.functions.lift, rows.values))
    values = [rows.elements(v) for v in lifted]
    fields = [replace(f, type=_kind_of(f, v)) for f, v in zip(record.fields, values, strict=True)]
    record = replace(record, fields=tuple(fields))
    state = {
        f.name: rows.present(v.to(rows.dtype(f.type)), f.identity)
        for f, v in zip(fields, values, strict=True)
    }
    if rows.n == 0:
        state = {
            f.name: rows.full(f.identity or 0, v.dtype)
            for f, v in zip(fields, state.values(), strict=True)
        }
    for _ in range(max(rows.n - 1, 0).bit_length()):
        state = _neighbours(record, state)
    return record, state


def _kind_of(f: Field, lifted: Tensor) -> str:
    """An integer or boolean identity follows the lifted values, a float one is a float."""
    return "float" if isinstance(f.identity, float) else kind_of(lifted.dtype)


def _neighbours(record: Record, state: Values) -> Values:
    """Elements 0 and 1 merged, 2 and 3, ...; an odd last one is kept."""
    paired = next(iter(state.values())).shape[KEYS] // 2 * 2
    a, b = ({n: v[..., k:paired:2, :] for n, v in state.items()} for k in (0, 1))
    merged = _merged(record, a, b)
    return {n: torch.cat([merged[n], v[..., paired:, :]], KEYS) for n, v in state.items()}


def _merged(record: Record, a: Values, b: Values) -> Values:
    """merge(a, b), and of a side with no element the other side."""
    here, there = has_element(record, a), has_element(record, b)
    alone = ~(here & there)
    sides = [SimpleNamespace(**{n: gate(v, alone) for n, v in s.items()}) for s in (a, b)]
    assert record.functions.merge is not None
    values = components(record.functions.merge(*sides))
    return {
        n: torch.where(alone, torch.where(here, a[n], b[n]), torch.as_tensor(v).to(a[n]))
        for n, v in zip(a, values, strict=True)
    }
