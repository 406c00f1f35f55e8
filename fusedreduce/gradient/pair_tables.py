"""Gradients of tables, summed beside those of q, k, v: which kernel meets all that is added up.

Given    a read T[e0, e1, ...] of a score or an operand, and g[b, h, i, j] = d loss / d its value
Claim    d T is the sum of g over all pairs, each added to the element that was read there. Where no
         index varies with the query, g may be summed over the queries first, in the kernel that
         owns the keys; where none varies with the key, over the keys, in the one that owns queries
Use      kernels write (B, H, Sk) or (B, H, Sq); what is left to add up, over batch, heads and equal
         elements, has one number a position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fusedreduce.ir.expr import Expr, names
from fusedreduce.pair import INDICES, SCORE, Read

Gradient = tuple[Read, Expr]


@dataclass(frozen=True)
class TableSum:
    """What one printed kernel sums up of the gradient of one read.

    direction   the kernel: "keys" sums over the queries, "queries" over the keys
    expr        d loss / d what is read, over score, dp, indices, tables, row values
    """

    name: str
    direction: str
    read: Read
    expr: Expr


def varies(read: Read) -> frozenset[str]:
    """What the indices of a read vary with, through the tables that they read themselves.

    >>> from fusedreduce.ir.expr import const, var
    >>> node = var("node")
    >>> sorted(varies(Read(node, "t", (var("h"), var("i") - var("j")))))
    ['h', 'i', 'j']
    """
    return frozenset(names(*read.indices)) & {*INDICES, SCORE}


def direction(read: Read) -> str:
    """The kernel that meets all that is added to one element; "" where none does.

    >>> from fusedreduce.ir.expr import var
    >>> node, h, i, j = map(var, ("node", "h", "i", "j"))
    >>> [direction(Read(node, "t", at)) for at in ((h,), (h, j), (h, i), (i, j))]
    ['queries', 'keys', 'queries', '']
    """
    along = varies(read) & {"i", "j", SCORE}
    if not along <= {"j"}:
        return "queries" if along == {"i"} else ""
    return "keys" if along else "queries"


def summed(tables: Sequence[Gradient]) -> tuple[TableSum, ...]:
    """The sums of tables of which every read has its kernel."""
    whole = {r.table for r, _ in tables} - {r.table for r, _ in tables if not direction(r)}
    reads = Counter(r.table for r, _ in tables)
    count: Counter[str] = Counter()
    found = []
    for read, expr in tables:
        if read.table in whole:
            part = f"_{count[read.table]}" if reads[read.table] > 1 else ""
            count[read.table] += 1
            name = f"sum_d_{read.table}{part}"
            found.append(TableSum(name, direction(read), read, expr))
    return tuple(found)
