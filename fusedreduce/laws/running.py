"""States of the corrected form as they are run: with the neutral values of the edge rule.

`states` has the formulas over the reals; trials use these, so that a reference whose identity is a
value of the data, or whose neutral value is wrong, is found out. Elements are all inside, and no
contribution is infinite, so that (b) and (c) of `declare.edges` are the parts that matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from fusedreduce.declare.edges import readable_expr, readable_old_expr
from fusedreduce.declare.record import Field, Record
from fusedreduce.ir.expr import Expr, substitute
from fusedreduce.laws import states
from fusedreduce.laws.states import State


def direct(record: Record, which: Sequence[int]) -> State:
    """The two-pass value: every term reads the final references, or what stands for them."""
    if record.form == "general":
        return fold(record, which)
    return states.direct(record, which, lambda r, state: readable(record, r, state))


def lift(record: Record, element: int) -> State:
    return states.lift(record, element) if record.form == "general" else direct(record, (element,))


def merge(record: Record, a: Mapping[str, Expr], b: Mapping[str, Expr]) -> State:
    return states.merge(record, a, b, lambda f, old, new: moved(record, f, old, new))


def fold(record: Record, which: Iterable[int]) -> State:
    """The merge of lifted elements, from the left."""
    return reduce(lambda a, b: merge(record, a, b), (lift(record, i) for i in which))


def readable(record: Record, reference: str, state: Mapping[str, Expr]) -> Expr:
    """(b): the value that a term reads."""
    return substitute(readable_expr(record, reference), dict(state))


def moved(record: Record, f: Field, old: Mapping[str, Expr], new: Mapping[str, Expr]) -> Expr:
    """(c): the field of state `old` at the references of `new`."""
    assert f.correct is not None
    before, after = dict(old), dict(new)
    for r in (g.name for g in record.all_references(f.name)):
        after[r] = readable(record, r, new)
        table = {f"old.{n}": e for n, e in old.items()} | {f"new.{r}": after[r]}
        before[r] = substitute(readable_old_expr(record, r), table)
    return states.corrected(f, f.correct, before, after)
