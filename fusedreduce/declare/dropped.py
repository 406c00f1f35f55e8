"""A declaration whose payload is weighed element by element: dropout, for any reduction.

Given    a record that is proved for every payload v
Claim    the record with  v_j * keep_j  in place of v_j is proved too, with the same corrections,
         finish and gauge: keep_j depends on the element alone, so this is another payload
Use      dropout: keep is 0, or 1 / (1 - p). Fields without a payload (the normaliser of softmax,
         its logarithm, the largest score) do not change.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, substitute, var


def keep_of(record: Record) -> str:
    """The name of the new operand: no name of the record."""
    taken = {*record.by_name, *record.operands, *record.payloads}
    name = "keep"
    while name in taken:
        name += "_"
    return name


@lru_cache(maxsize=256)
def dropped(record: Record) -> Record:
    """The record with the operand `keep_of(record)`, by which every payload is multiplied."""
    keep = var(keep_of(record))
    weighed = {v: var(v) * keep for v in record.payloads}

    def moved(e: Expr) -> Expr:
        return substitute(e, weighed)

    fields = tuple(f if f.term is None else replace(f, term=moved(f.term)) for f in record.fields)
    grad = tuple((n, moved(e) * keep if n in weighed else moved(e)) for n, e in record.grad)
    return replace(record, fields=fields, operands=(*record.operands, str(keep.value)), grad=grad)
