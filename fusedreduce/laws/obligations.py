"""The laws of corrections, each stated in three lines of maths, then as pairs of expressions.

A pair to be *tried* is over elements x[1], x[2], ...; the references there are values that elements
really give. A pair to be *proved* is over free symbols old.*, new.*: stronger, and free of choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as field_
from functools import reduce

from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, call, names, substitute, var, walk
from fusedreduce.ir.show import show
from fusedreduce.laws.complete import reference_facts, signs_of
from fusedreduce.laws.refute import Trial
from fusedreduce.laws.states import at_element, elements, operand

Table = Mapping[str, Expr]
Pairs = tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True)
class Obligation:
    """A law of one field (or of the state): what to try, what to prove, what to tell."""

    law: str
    field: str
    statement: str
    trials: tuple[Trial, ...]
    pairs: Pairs = ()
    signs: Mapping[str, str] = field_(default_factory=dict)
    facts: tuple[Expr, ...] = ()
    line: str = ""


def of_corrections(record: Record) -> list[Obligation]:
    """unit, composition, faithfulness and additivity of every correction."""
    corrected = [f for f in record.fields if f.correct is not None]
    laws = (faithfulness, additivity, unit, composition)
    return [law(record, f) for f in corrected for law in laws]


def faithfulness(record: Record, f: Field) -> Obligation:
    """Given   a term f(x; r) and its correction
    Claim   correct(f(x; old), old, new) = f(x; new)
    Use     with additivity: a merged sum is the sum of terms at the new reference, for all n.
    """
    old, new = symbols(record, "old"), symbols(record, "new")
    pairs = ((moved(f, terms(record, 1, old), old, new), term(record, f, 1, new)),)
    tried_old, tried_new = reached(record, "old"), reached(record, "new")
    at = moved(f, terms(record, 1, tried_old), tried_old, tried_new)
    shown = show(_term(f))
    references = _both(f)
    return Obligation(
        "faithfulness",
        f.name,
        "a term moved to a new reference is the term at the new reference: "
        f"correct({shown} at old) = {shown} at new",
        (
            Trial(
                pairs=((at, term(record, f, 1, tried_new)),),
                domains=drawn(record),
                shown=(*_element(record, f, 1), *_shown(references, tried_old, tried_new)),
                sides=(f"{shown} at old, corrected to new", f"{shown} at new"),
            ),
        ),
        pairs,
        known_signs(record),
        _facts(record, f),
        f.line,
    )


def additivity(record: Record, f: Field) -> Obligation:
    """Given   two sums c, d over different elements, both at the reference old
    Claim   correct(c + d) = correct(c) + correct(d), the companions added likewise
    Use     what is right for one element is right for every number of elements.
    """
    old, new = symbols(record, "old"), symbols(record, "new")
    a, b = ({g: var(f"{side}.{g}") for g in sums(record)} for side in ("a", "b"))
    tried_old, tried_new = reached(record, "old"), reached(record, "new")
    one, two = terms(record, 1, tried_old), terms(record, 2, tried_old)
    return Obligation(
        "additivity",
        f.name,
        "correcting two sums and adding them is correcting their sum",
        (
            Trial(
                pairs=(_added(f, one, two, tried_old, tried_new),),
                domains=drawn(record),
                shown=(
                    *((f"{f.name} of side {i}", s[f.name]) for i, s in ((1, one), (2, two))),
                    *_shown(_both(f), tried_old, tried_new),
                ),
                sides=("correct(c + d)", "correct(c) + correct(d)"),
            ),
        ),
        (_added(f, a, b, old, new),),
        known_signs(record),
        _facts(record, f),
        f.line,
    )


def unit(record: Record, f: Field) -> Obligation:
    """Given   a sum c at the reference r
    Claim   correct(c, r, r) = c
    Use     the side whose reference is kept stays as it is.
    """
    old = symbols(record, "old")
    tried = reached(record, "old")
    both = _sum_of(terms(record, 1, tried), terms(record, 2, tried))
    return Obligation(
        "unit",
        f.name,
        "a sum corrected to the reference it has stays as it is: correct(c, r, r) = c",
        (
            Trial(
                pairs=((moved(f, both, tried, tried), both[f.name]),),
                domains=drawn(record),
                shown=((f.name, both[f.name]), *_shown(f.reads, tried, {})),
                sides=("correct(c, r, r)", "c"),
            ),
        ),
        ((moved(f, symbols_of_sums(record), old, old), var(f"c.{f.name}")),),
        known_signs(record),
        _facts(record, f),
        f.line,
    )


def composition(record: Record, f: Field) -> Obligation:
    """Given   references old, mid, new and a sum c at old
    Claim   correct(correct(c, old, mid), mid, new) = correct(c, old, new), companions too
    Use     corrections may be made tile by tile: the way to the last reference does not matter.
    """

    def both_ways(state: Table, old: Table, mid: Table, new: Table) -> tuple[Expr, Expr]:
        half = {
            g: moved(h, state, old, mid) if (h := record.by_name[g]).correct is not None else e
            for g, e in state.items()
        }
        return moved(f, half, mid, new), moved(f, state, old, new)

    tried = [reached(record, side) for side in ("old", "mid", "new")]
    start = _sum_of(terms(record, 1, tried[0]), terms(record, 2, tried[0]))
    free = [symbols(record, side) for side in ("old", "mid", "new")]
    return Obligation(
        "composition",
        f.name,
        "correcting in two steps is correcting in one: "
        "correct(correct(c, old, mid), mid, new) = correct(c, old, new)",
        (
            Trial(
                pairs=(both_ways(start, *tried),),
                domains=drawn(record),
                shown=(
                    (f.name, start[f.name]),
                    *(
                        (f"{s}.{r}", t[r])
                        for r in f.reads
                        for s, t in zip(("old", "mid", "new"), tried, strict=True)
                    ),
                ),
                sides=("in two steps", "in one step"),
            ),
        ),
        (both_ways(symbols_of_sums(record), *free),),
        known_signs(record),
        _facts(record, f),
        f.line,
    )


# ---- the parts -----------------------------------------------------------------------------------


def _term(f: Field) -> Expr:
    assert f.term is not None
    return f.term


def sums(record: Record) -> tuple[str, ...]:
    return tuple(f.name for f in record.fields if f.kind == "Sum")


def symbols(record: Record, side: str) -> dict[str, Expr]:
    """Every field that is no sum, as a free symbol of a side."""
    return {f.name: var(f"{side}.{f.name}") for f in record.fields if f.kind != "Sum"}


def symbols_of_sums(record: Record) -> dict[str, Expr]:
    return {g: var(f"c.{g}") for g in sums(record)}


def reached(record: Record, side: str) -> dict[str, Expr]:
    """References that elements give: old from 3, mid also from 4, new also from 5."""
    last = {"old": 3, "mid": 4, "new": 5}[side]
    out: dict[str, Expr] = {}
    for f in record.fields:
        if f.kind in ("Max", "Min"):
            op = "maximum" if f.kind == "Max" else "minimum"
            parts = [at_element(record, _term(f), i) for i in range(1, last + 1)]
            out[f.name] = reduce(lambda a, b, op=op: call(op, a, b), parts)  # type: ignore[misc]
        elif f.kind == "First":
            out[f.name] = at_element(record, _term(f), last)
        elif f.kind != "Sum":
            out[f.name] = var(f"{side}.{f.name}")
    return out


def drawn(record: Record) -> tuple[tuple[str, str], ...]:
    """What the trials draw: five elements, and references not chosen among elements."""
    free = [f for f in record.fields if f.kind not in ("Sum", "Max", "Min", "First")]
    numbers = [f for f in free if f.type != "bool"]
    sides = ("old", "mid", "new")
    loose = [(f"{side}.{f.name}", "real") for f in numbers for side in sides]
    flags = [(f"{side}.{f.name}", "bool") for f in free if f.type == "bool" for side in sides]
    return (*elements(record, 5), *loose, *flags)


def term(record: Record, f: Field, element: int, references: Table) -> Expr:
    """The term of an element at given references."""
    e = at_element(record, _term(f), element)
    return substitute(e, {r: references[r] for r in f.reads})


def terms(record: Record, element: int, references: Table) -> dict[str, Expr]:
    """All sums of one element at given references."""
    fields = (record.by_name[g] for g in sums(record))
    return {f.name: term(record, f, element, references) for f in fields}


def moved(f: Field, state: Table, old: Table, new: Table) -> Expr:
    """The correction of f: sums from `state`, references from `old` and `new`."""
    assert f.correct is not None
    table: dict[str, Expr] = {f.name: state[f.name]}
    table |= {f"old.{g}": e for g, e in {**old, **state}.items()}
    table |= {f"new.{g}": e for g, e in new.items()}
    return substitute(f.correct, table)


def _added(f: Field, a: Table, b: Table, old: Table, new: Table) -> tuple[Expr, Expr]:
    return moved(f, _sum_of(a, b), old, new), moved(f, a, old, new) + moved(f, b, old, new)


def _sum_of(a: Table, b: Table) -> dict[str, Expr]:
    return {g: a[g] + b[g] for g in a}


def _both(f: Field) -> tuple[str, ...]:
    return f.reads


def _shown(references: Iterable[str], old: Table, new: Table) -> tuple[tuple[str, Expr], ...]:
    pairs = [("old", old), ("new", new)]
    return tuple((f"{s}.{r}", t[r]) for r in references for s, t in pairs if r in t)


def _element(record: Record, f: Field, element: int) -> tuple[tuple[str, Expr], ...]:
    used = names(_term(f))
    every = (*record.operands, *record.payloads)
    return tuple((n, var(operand(n, element))) for n in every if n in used)


def known_signs(record: Record) -> dict[str, str]:
    """Signs of operands of elements and of references on every side."""
    free = [f.name for f in record.fields if f.kind in ("Max", "Min", "First")]
    known = signs_of(record, (*record.operands, *record.payloads, *free))
    out = {f"{side}.{r}": known[r] for r in free for side in ("old", "mid", "new", "r")}
    for i in range(1, 6):
        out |= {operand(n, i): known[n] for n in (*record.operands, *record.payloads)}
        out |= {operand(n, i): "bool" for n, d in record.domain if d == "bool"}
    flags = [f.name for f in record.fields if f.type == "bool"]
    return out | {f"{side}.{n}": "bool" for n in flags for side in ("old", "mid", "new")}


def _facts(record: Record, f: Field) -> tuple[Expr, ...]:
    """Element 1 lies on its side of the references, if a choice could ask for it."""
    if not any(n in _CHOICES for e in (_term(f), f.correct) if e is not None for n in _ops(e)):
        return ()
    facts = reference_facts(record, f.reads)
    return tuple(at_element(record, fact, 1) for fact in facts)


def _ops(e: Expr) -> frozenset[str]:
    return frozenset(n.op for n in walk(e))


_CHOICES = frozenset(["maximum", "minimum", "abs", "sign", "where"])
