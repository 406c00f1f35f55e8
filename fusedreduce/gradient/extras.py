"""What a forward keeps for its backward beside the state: where extremes are, parts of products."""

from __future__ import annotations

from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, call, var, where

EXTREMES = {"Max": "ArgMax", "Min": "ArgMin"}
INF = float("inf")


def first_of(f: Field) -> str:
    return f"{f.name}_first"


def extras(record: Record) -> Record:
    """A declaration of the same operands: what a backward may need beside the state itself.

    `m_first`, the first position that attains an extreme; of a product what is not 0 of it, and the
    numbers of its factors that are 0 or not finite: `p_nonzero`, `p_zeros`, `p_infinite`.
    """
    fields: list[Field] = []
    extremes = extremes_of(record)
    for f in record.fields:
        if f.name in extremes:
            best, none = ("ArgMax", -INF) if extremes[f.name] == "Max" else ("ArgMin", INF)
            fields.append(Field(first_of(f), best, none, term=contribution(record, f)))
        if f.kind == "Prod":
            term = contribution(record, f)
            zero = call("eq", term, 0.0)
            fields.append(Field(f"{f.name}_nonzero", "Prod", 1.0, term=where(zero, 1.0, term)))
            fields.append(Field(f"{f.name}_zeros", "Sum", 0, term=zero, type="int"))
            no = call("not", call("isfinite", term))
            fields.append(Field(f"{f.name}_infinite", "Sum", 0, term=no, type="int"))
    return Record(
        name=f"{record.name} for its gradient",
        form="corrected",
        fields=tuple(fields),
        operands=(*record.operands, *record.payloads),
        finish=tuple((f.name, var(f.name)) for f in fields),
    )


def extremes_of(record: Record) -> dict[str, str]:
    """Fields that hold a largest ("Max") or smallest ("Min") floating contribution."""
    if record.form == "corrected":
        return {f.name: f.kind for f in record.fields if f.kind in EXTREMES and f.type == "float"}
    merged = dict(zip((f.name for f in record.fields), record.merge, strict=True))
    own = [name for name, by, _ in record.slopes if name == by]
    return {n: "Max" if merged[n].op == "maximum" else "Min" for n in own}


def contribution(record: Record, f: Field) -> Expr:
    """What one element brings to a field: its term, or its part of the lift."""
    if record.form == "corrected":
        assert f.term is not None
        return f.term
    return record.lift[record.fields.index(f)]
