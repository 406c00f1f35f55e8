"""Positions in a pair kernel: int32, and int64 where what is made of them may need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusedreduce.ir.check import all_kinds
from fusedreduce.ir.expr import Expr, call, cast, const, make, walk
from fusedreduce.ir.interval import all_bounds, integers
from fusedreduce.ir.ranges import Interval
from fusedreduce.pair import INDICES, LONGEST

FIRST, LAST = -(2**31), 2**31 - 1  # of int32
ENDS = ("i0", "i1", "j0", "j1")  # of a block of queries or keys
_FAR = 2**30  # farther than any position: lengths are at most LONGEST
_NARROW: Mapping[str, Interval] = {
    **dict.fromkeys((*INDICES, *ENDS, "Sq", "Sk"), integers(0, LONGEST)),
    **dict.fromkeys(("q_offset", "k_offset"), integers(-LONGEST, LONGEST)),
}


def widened(expr: Expr, kinds: Mapping[str, str]) -> Expr:
    """The expression with positions in int64 where a result, or a number, may not fit into int32.

    >>> from fusedreduce.ir.expr import var
    >>> from fusedreduce.ir.show import show
    >>> i, j = var("i"), var("j")
    >>> show(widened((i - j) * 3 + i * j, {"i": "int", "j": "int"}))
    '(i - j) * 3 + i.to(int64) * j.to(int64)'
    """
    return _widened(expr, kinds)[0]


def _widened(expr: Expr, kinds: Mapping[str, str]) -> tuple[Expr, bool]:
    """The expression, and whether its value is a position in int32."""
    kind = all_kinds(expr, kinds)
    sizes = {n: integers(0, LONGEST) for n in kinds if _is_measure(n)}
    values = all_bounds(expr, {**_NARROW, **sizes})
    done: dict[Expr, Expr] = {}
    narrow: set[Expr] = set()  # those of the old nodes that are int32
    for node in walk(expr):
        args = tuple(done[a] for a in node.args)
        if node.op == "var" and (node.value in _NARROW or node.value in sizes):
            narrow.add(node)
        whole = [a for a in node.args if kind[a] == "int"]
        short = [a for a in whole if a in narrow]
        if node.op != "cast" and short and all(a in narrow or a.op == "const" for a in whole):
            if _leaves(node, whole, kind[node], values):
                args = tuple(cast(done[a], "int64") if a in narrow else done[a] for a in node.args)
            elif kind[node] == "int":
                narrow.add(node)
        done[node] = make(node.op, args, node.value)
    return done[expr], expr in narrow


def _leaves(node: Expr, whole: Sequence[Expr], kind: str, values: Mapping[Expr, Interval]) -> bool:
    """May an operation on int32 leave it, or does it name a number beyond it?"""
    far = [values[a] for a in whole if a.op == "const"] + [values[node]] * (kind == "int")
    shifts = node.op in ("shl", "shr") and values[node.args[1]].hi > 31
    return shifts or any(v.lo < FIRST or v.hi > LAST for v in far)


def _is_measure(name: str) -> bool:
    """The size or stride of a table: a wrapped index adds one, and is wrapped where it is less."""
    return "_size_" in name or "_stride_" in name


def limit(expr: Expr, kinds: Mapping[str, str]) -> Expr:
    """An end of a loop over positions, in int32 again: what is far away stays farther than any."""
    made, narrow = _widened(expr, kinds)
    if narrow or made.op == "const":
        return made
    near = call("maximum", call("minimum", made, const(_FAR)), const(-_FAR))
    return cast(near, "int32")
