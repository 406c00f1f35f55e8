"""d loss / d operand of one element, for one declaration: elementwise in (element, final state).

Given    adjoints of the outputs and of the slots of a state
Claim    a sum sends  adjoint * d term / d operand  to every element; an extreme to the first
         element that attains it, First to the first one; a product sends the product of the others
         (by the product of what is not 0, and how many are 0 or not finite); a bound reference
         to the fields of its formula; a general merge what `slopes` says (laws/slopes.py)
         the adjoint of a reference is  dL/dr + <dL/dsums, A>,  A = d correct / d new at new = old:
         sum_j d term_j / d r, since correcting is faithful and additive. Of a gauge output it is 0
Use      the derived backward (parts.py), and the law that judges it (laws/gradients.py).

In the answers operands are the variables `@x`, so that they cannot be taken for other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from fusedreduce.declare import edges
from fusedreduce.declare.parts import upstream_name
from fusedreduce.declare.record import Field, Record
from fusedreduce.gradient.extras import EXTREMES, contribution, extremes_of, first_of
from fusedreduce.ir.differentiate import derivative
from fusedreduce.ir.expr import Expr, call, const, is_const, names, substitute, var, where
from fusedreduce.ir.simplify import simplify_node

Parts = dict[str, Expr]


class NoBackward(Exception):
    """The derived backward does not serve this; the text says why."""


def mark(name: str) -> str:
    """The variable of an operand or a field while one record is differentiated."""
    return f"@{name}"


def marked(e: Expr) -> Expr:
    return substitute(e, {n: var(mark(n)) for n in names(e) if n != "j"})


def element_gradient(
    record: Record,
    adjoint: Mapping[str, Expr],
    state: Mapping[str, Expr],
    extra: Mapping[str, Expr],
    first: int = 0,
) -> Parts:
    """d loss / d operand over `@operand`, `j` and what the arguments are made of.

    adjoint   d loss / d output, by output; of a slot that is a result, by `state.<slot>`
    state     the final state by field
    extra     the fields of `extras(record)`
    first     the position of the first element
    """
    at = {mark(n): e for n, e in state.items()}
    if record.grad:
        return _stated(record, adjoint, at)
    parts: Parts = {}
    for name, seed in _seeds(record, adjoint).items():
        f = record.by_name[name]
        if f.type == "float" or f.kind in EXTREMES.values():
            _add(parts, _through(record, f, substitute(seed, at), {**state, **extra}, first))
    return {n: substitute(e, at) for n, e in parts.items()}


def _add(table: Parts, more: Mapping[str, Expr]) -> None:
    for name, part in more.items():
        if not is_const(part, 0):
            table[name] = table[name] + part if name in table else part


def _stated(record: Record, adjoint: Mapping[str, Expr], at: Mapping[str, Expr]) -> Parts:
    """The user's own `grad`; outputs that nobody differentiates have the adjoint 0."""
    if any(n.startswith("state.") for n in adjoint):
        raise NoBackward(f"{record.name} states `grad`, which speaks of outputs, not of the state")
    given = {mark(upstream_name(o)): adjoint.get(o, const(0.0)) for o in record.outputs}
    found = {n: substitute(marked(e), {**at, **given}) for n, e in record.grad}
    return _guarded(absent(record), found)


# ---- adjoints of fields --------------------------------------------------------------------------


def _seeds(record: Record, adjoint: Mapping[str, Expr]) -> Parts:
    """d loss / d field over `@field`: of gauge outputs directly, of others through references."""
    direct, moving = Parts(), Parts()
    references = set(moving_fields(record))
    for output, e in record.finish:
        if output not in adjoint:
            continue
        gauge = output in record.gauge
        e = inlined(record, e)
        fields = [f.name for f in record.fields if not (gauge and f.name in references)]
        found = sent(marked(e), [mark(n) for n in fields], adjoint[output])
        _add(direct if gauge else moving, found)
    for slot in record.slots:
        name = f"state.{slot.name}"
        gauge = name in record.gauge
        if name in adjoint and slot.type == "float" and not (gauge and slot.field in references):
            _add(direct if gauge else moving, {slot.field: adjoint[name]})
    along_references(record, moving)
    _add(direct, moving)
    return direct


def moving_fields(record: Record) -> tuple[str, ...]:
    """The fields that other fields are relative to."""
    if record.form == "corrected":
        return tuple(f.name for f in record.references)
    return tuple(
        dict.fromkeys(by for n, by, _ in record.slopes if by in record.by_name and n != by)
    )


def inlined(record: Record, e: Expr) -> Expr:
    """References that no term reads are only names for their formulas."""
    read = set(record.references)
    for f in reversed(record.fields):
        if f.is_bound and f not in read and f.term is not None:
            e = substitute(e, {f.name: f.term})
    return e


def along_references(record: Record, seeds: Parts) -> None:
    """Add the adjoints of references, last to first: by the sums that are relative to them."""
    if record.form == "general":
        for name, by, slope in record.slopes:
            if name in seeds and by in record.by_name and by != name:
                _add(seeds, {by: seeds[name] * marked(slope)})
        return
    for f in reversed(record.fields):
        if f.name not in seeds:
            continue
        if f.is_bound:
            assert f.term is not None
            fields = [mark(n) for n in names(f.term) if n in record.by_name]
            _add(seeds, sent(marked(f.term), fields, seeds.pop(f.name)))
        elif f.kind == "Sum":
            _add(seeds, generator(record, f, seeds[f.name]))


def generator(record: Record, f: Field, seed: Expr) -> Parts:
    """seed * A(f, r) for every reference r: the slope of the corrected sum where new = old."""
    if f.correct is None:
        return {}
    here = {r.name: readable(record, r.name) for r in record.fields if r.is_reference}
    old = {f"old.{g.name}": here.get(g.name, var(mark(g.name))) for g in record.fields}
    correct = substitute(f.correct, {f.name: var(mark(f.name)), **old})
    moved = [n for n in names(correct) if n.startswith("new.")]
    now = {n: here[n.removeprefix("new.")] for n in moved}
    found = sent(correct, moved, seed)
    return {n.removeprefix("new."): substitute(part, now) for n, part in found.items()}


def readable(record: Record, name: str) -> Expr:
    """Edge rule (b) over `@field`: what a term reads of a reference."""
    if not record.guarded(f"neutral:{name}") or record.by_name[name].is_bound:
        return var(mark(name))
    return marked(edges.readable_expr(record, name))


def sent(e: Expr, names_: Sequence[str], seed: Expr) -> Parts:
    """seed * d e / d name, by names without their mark.

    NOTE the seed comes last: in where(q == 0, 0.0, d / q) a select that comes first sends 0 / 0.
    """
    slopes = {n.removeprefix("@"): derivative(e, n) for n in names_}
    return {n: _times(seed, d) for n, d in slopes.items() if not is_const(d, 0)}


def _times(seed: Expr, d: Expr) -> Expr:
    if d.op == "div" and is_const(d.args[0], 1):
        return seed / d.args[1]
    return simplify_node(seed * d)


# ---- from a field to the element -----------------------------------------------------------------


def _through(record: Record, f: Field, seed: Expr, state: Mapping[str, Expr], first: int) -> Parts:
    """seed * d field / d operand; `state` holds the fields of `extras` too."""
    if record.form == "general" and f.name not in extremes_of(record):
        return _by_slopes(record, f, seed)
    term = substitute(
        marked(contribution(record, f)), {mark(r): readable(record, r) for r in f.reads}
    )
    if f.kind == "Sum":
        return _guarded(absent(record, f), _by_term(record, term, seed))
    if f.kind == "Prod":
        return _by_term(record, term, seed * _others(f, term, state))
    if f.kind == "First":
        return _guarded(call("ne", var("j"), first), _by_term(record, term, seed))
    if f.name not in extremes_of(record) and f.kind not in EXTREMES.values():
        return {}
    position = state[f.name if f.kind in EXTREMES.values() else first_of(f)]
    missing = call("ne", var("j"), position)
    if f.has_infinite_identity:
        missing = call("or", missing, _at_identity(f, contribution(record, f)))
    return _guarded(missing, _by_term(record, term, seed))


def _by_term(record: Record, term: Expr, seed: Expr) -> Parts:
    every = (*record.operands, *record.payloads)
    return sent(term, [mark(n) for n in every], seed)


def _guarded(missing: Expr | None, parts: Parts) -> Parts:
    """Nothing where an element is missing: a select, so that 0 * inf cannot come of it."""
    if missing is None:
        return parts
    return {n: where(missing, 0.0, e) for n, e in parts.items() if not is_const(e, 0)}


def absent(record: Record, of: Field | None = None) -> Expr | None:
    """Edge rule (a) over `@operand`, for one field or for any."""
    if record.form == "general":
        pairs = [(f, e) for f, e in zip(record.fields, record.lift, strict=True) if names(e)]
        return _either([_at_identity(f, e) for f, e in pairs if f.has_infinite_identity])
    fields = record.fields if of is None else (of,)
    free = {r.name: r for f in fields for r in record.free_references(f.name)}
    return _either([_at_identity(r, contribution(record, r)) for r in free.values()])


def _at_identity(f: Field, contribution: Expr) -> Expr:
    assert f.identity is not None
    return call("eq", marked(contribution), f.identity)


def _either(tests: Sequence[Expr]) -> Expr | None:
    return reduce(lambda a, b: call("or", a, b), tests) if tests else None


def _others(f: Field, term: Expr, extra: Mapping[str, Expr]) -> Expr:
    """The product of the other elements: with a 0 among them 0, with 0 * inf or 0 * NaN NaN."""
    nonzero, zeros = extra[f"{f.name}_nonzero"], extra[f"{f.name}_zeros"]
    own, finite = call("eq", term, 0.0), call("isfinite", term)
    other_zero = call("gt", zeros, where(own, 1, 0))
    other_infinite = call("gt", extra[f"{f.name}_infinite"], where(finite, 0, 1))
    without = where(own, nonzero, nonzero / term)
    return where(other_zero, where(other_infinite, float("nan"), 0.0), without)


def _by_slopes(record: Record, f: Field, seed: Expr) -> Parts:
    """By the slopes that the laws found."""
    if not record.slopes:
        raise NoBackward(f"{record.name} is a general merge without additive coordinates")
    parts = {by: seed * marked(e) for n, by, e in record.slopes if n == f.name}
    operands = {n: e for n, e in parts.items() if n not in record.by_name}
    return _guarded(absent(record), operands)
