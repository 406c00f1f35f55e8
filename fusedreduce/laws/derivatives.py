"""Both sides of the law of the gradient: what an element is sent, and the derivative by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusedreduce.declare.record import Record
from fusedreduce.gradient.element import element_gradient
from fusedreduce.gradient.extras import extras
from fusedreduce.ir.check import kind_of
from fusedreduce.ir.differentiate import derivative
from fusedreduce.ir.expr import Expr, call, const, names, substitute, var
from fusedreduce.laws import running, states
from fusedreduce.laws.meaning import shown_elements
from fusedreduce.laws.refute import Trial

Sides = tuple[Expr, Expr]


def floating(record: Record) -> list[str]:
    kinds = {f.name: f.result for f in record.fields}
    return [o for o, e in record.finish if kind_of(e, kinds) == "float"]


def differentiable(record: Record) -> list[str]:
    """The operands that have gradients."""
    whole = {n for n, d in record.domain if d in ("int", "index", "bool")}
    return [n for n in (*record.operands, *record.payloads) if n not in whole]


def upstream(output: str) -> str:
    return f"d.{output or 'result'}".replace(".", "_")


def trials(record: Record) -> list[Trial]:
    """On one, two and three elements: the first of them, and the last."""
    return [
        _trial(record, tuple(range(1, n + 1)), i)
        for n, i in ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3))
    ]


def _trial(record: Record, which: tuple[int, ...], element: int) -> Trial:
    pairs, outputs = on_elements(record, which, element), floating(record)
    drawn = {n for pair in pairs.values() for e in pair for n in names(e)}
    ups = [upstream(o) for o in outputs]
    by = "grad" if record.functions.grad is not None else "the derived backward"
    return Trial(
        pairs=tuple(pairs.values()),
        domains=(*states.elements(record, len(which)), *((u, "real") for u in ups if u in drawn)),
        titles=tuple(f"d loss / d {states.operand(n, element)}" for n in pairs),
        shown=(
            *shown_elements(record, len(which)),
            *(
                (f"d {o or 'result'}", var(u))
                for o, u in zip(outputs, ups, strict=True)
                if u in drawn
            ),
        ),
        require=_present(record, which),
        sides=(f"{{}} by {by}", "{} by differentiation"),
        lost=True,
    )


def _present(record: Record, which: Sequence[int]) -> tuple[Expr, ...]:
    """No element is absent: those get no gradient, whatever the formula says (edge rule a)."""
    free = {r.name: r for f in record.fields for r in record.free_references(f.name)}
    return tuple(
        call("ne", states.at_element(record, r.term, i), r.identity)
        for r in free.values()
        if r.term is not None and r.identity is not None
        for i in which
    )


def on_elements(record: Record, which: Sequence[int], element: int) -> dict[str, Sides]:
    """Both sides on the two-pass state of some elements."""
    state = running.direct(record, which)
    return sides(record, state, states.direct(extras(record), which), element, which[0])


def sides(
    record: Record,
    state: Mapping[str, Expr],
    extra: Mapping[str, Expr],
    element: int,
    first: int,
) -> dict[str, Sides]:
    """For every operand: what the backward sends to an element of a state, and the derivative."""
    outputs = floating(record)
    parts = sent(record, state, extra, element, first)
    finished = states.finish(record, state)
    pairs = {}
    for n in differentiable(record):
        name, right = states.operand(n, element), const(0.0)
        for o in outputs:
            right = call("add", right, var(upstream(o)) * derivative(finished[o], name))
        pairs[n] = (parts[n], right)
    return pairs


def sent(
    record: Record,
    state: Mapping[str, Expr],
    extra: Mapping[str, Expr],
    element: int,
    first: int,
) -> dict[str, Expr]:
    """d loss / d operand of an element by the backward, for every operand that has one."""
    adjoint: dict[str, Expr] = {o: var(upstream(o)) for o in floating(record)}
    parts = element_gradient(record, adjoint, state, extra, first)
    every = (*record.operands, *record.payloads)
    at: dict[str, Expr] = {f"@{n}": var(states.operand(n, element)) for n in every}
    at["j"] = const(element)
    return {n: substitute(parts.get(n, const(0.0)), at) for n in differentiable(record)}
