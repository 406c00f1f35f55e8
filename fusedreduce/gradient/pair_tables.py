"""Gradients of tables by printed kernels: which kernel meets all that is added to one element.

Given    a read T[e0, e1, ...] of a score or an operand, and g[b, h, i, j] = d loss / d its value
Claim    d T is the sum of g over all pairs, each added to the element that was read there. It may
         be summed first over whatever the indices do not vary with:
           over the queries, where they do not vary with i: beside d k and d v, (B, H, Sk)
           over the keys, where they do not vary with j: beside d q, (B, H, Sq)
           over pairs of one distance, where i and j are read as i - j: a number a distance
           over batch and heads as far as these are not read: (Sq, Sk) of each that is
Use      the kernels write these sums, and the indices say where each belongs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fusedreduce.ir.expr import Expr, names
from fusedreduce.ir.simplify import COMPARISONS
from fusedreduce.pair import INDICES, SCORE, Read

Gradient = tuple[Read, Expr]


@dataclass(frozen=True)
class TableSum:
    """What one printed kernel sums up of the gradient of one read.

    direction   the kernel: "keys" (sums over the queries), "queries" (over the keys), "tables"
                (over batch and heads), "diagonals" (over these and pairs of one distance)
    expr        d loss / d what is read, over score, dp, indices, tables, row values
    """

    name: str
    direction: str
    read: Read
    expr: Expr

    @cached_property
    def kept(self) -> str:
        """Of batch and heads what is not summed over: "", "b", "h" or "bh"."""
        return "".join(n for n in "bh" if n in varies(self.read))

    @cached_property
    def plain(self) -> bool:
        """Are all indices different ones of b, h, i and j themselves, or numbers?"""
        own = [e.value for e in self.read.indices if e.op == "var"]
        fixed = sum(e.op == "const" for e in self.read.indices)
        return {*own} <= {*INDICES} and len({*own}) + fixed == len(self.read.indices)


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
    >>> node, h, i, j, x = map(var, ("node", "h", "i", "j", "score"))
    >>> [direction(Read(node, "t", at)) for at in ((h,), (h, j), (h, i), (i, j), (h, i - j), (x,))]
    ['queries', 'keys', 'queries', 'tables', 'diagonals', '']
    """
    along = varies(read) - {"b", "h"}
    if SCORE in along:
        return ""
    if along == {"i", "j"}:
        return "diagonals" if all(map(of_distance, read.indices)) else "tables"
    return "keys" if along == {"j"} else "queries"


def of_distance(e: Expr) -> bool:
    """Are i and j read as i - j alone?

    >>> from fusedreduce.ir.expr import call, var
    >>> i, j = var("i"), var("j")
    >>> [of_distance(x) for x in (call("abs", i + 3 - j), call("lt", i, j) * 2, i + j, i * 2 - j)]
    [True, True, False, False]
    """
    if {"i", "j", SCORE}.isdisjoint(names(e)):
        return True
    if e.op in COMPARISONS:
        return of_distance(e.args[0] - e.args[1])
    count, rest = Counter[str](), list[Expr]()
    if e.op in ("add", "sub", "neg"):
        collect(e, 1, count, rest)
        return count["i"] == -count["j"] and all(map(of_distance, rest))
    return bool(e.args) and all(map(of_distance, e.args))


def collect(e: Expr, sign: int, count: Counter[str], rest: list[Expr]) -> None:
    """How often i and j are added in a sum, and what else is."""
    if e.op in ("add", "sub"):
        collect(e.args[0], sign, count, rest)
        collect(e.args[1], -sign if e.op == "sub" else sign, count, rest)
    elif e.op == "neg":
        collect(e.args[0], -sign, count, rest)
    elif e.op == "var" and e.value in ("i", "j"):
        count[str(e.value)] += sign
    else:
        rest.append(e)


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
