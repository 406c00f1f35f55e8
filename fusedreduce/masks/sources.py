"""Expressions with the tables they read: tensors as they are, or tensors made from lengths.

Tables are called t0, t1, ... by their place in `sources`. They are opaque here; only what is in
`blocks` computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusedreduce.blocks.bound import Bound, check_sizes, placed, widest
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.expr import Expr, call, const, is_const, rewrite, substitute, var
from fusedreduce.ir.simplify import COMPARISONS, simplify_node

Sources = tuple[Any, ...]
LENGTHS = ("Sq", "Sk")


@dataclass(frozen=True, eq=False)
class Made:
    """A table made when the lengths are known: make(*tensors, length).

    `length` is an expression over Sq, Sk, q_offset and k_offset.
    """

    make: Callable[..., Any]
    tensors: tuple[Any, ...]
    length: Expr
    dtype: Any
    ndim: int = 1


@dataclass(frozen=True)
class Recipe:
    """A made table whose length is known; its tensors by their places among those of the call."""

    make: Callable[..., Any]
    places: tuple[int, ...]
    length: int


Recipes = tuple[Recipe, ...]
Making = Callable[[Sequence[Any]], Sequence[Any]]  # from tensors to tables made of them
Prepare = Callable[[Recipes, Sequence[Any]], Making]  # for tensors that lie as these do


def one_by_one(recipes: Recipes, _: Sequence[Any] = ()) -> Making:
    """Each table by its own function."""

    def run(tensors: Sequence[Any]) -> list[Any]:
        return [r.make(*[tensors[p] for p in r.places], r.length) for r in recipes]

    return run


def tensors_of(sources: Sequence[Any]) -> tuple[Any, ...]:
    """Every distinct tensor of the user that the sources hold."""
    found: list[Any] = []
    for source in sources:
        for tensor in source.tensors if isinstance(source, Made) else (source,):
            if not any(tensor is known for known in found):
                found.append(tensor)
    return tuple(found)


def with_tensors(sources: Sequence[Any], tensors: Sequence[Any]) -> Sources:
    """The sources over other tensors, one for each of `tensors_of`."""
    old = tensors_of(sources)
    if len(tensors) != len(old):
        raise ValueError(f"expected {len(old)} tensors, got {len(tensors)}")

    def new(tensor: Any) -> Any:
        return next(n for o, n in zip(old, tensors, strict=True) if o is tensor)

    return tuple(
        Made(s.make, tuple(map(new, s.tensors)), s.length, s.dtype, s.ndim)
        if isinstance(s, Made)
        else new(s)
        for s in sources
    )


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """The same tables: the same objects, or made from the same tensors in the same way."""
    return len(a) == len(b) and all(map(_same, a, b))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Made) and isinstance(b, Made):
        return (a.make, a.length) == (b.make, b.length) and same(a.tensors, b.tensors)
    return a is b


def joined(*parts: tuple[Expr, Sources]) -> tuple[tuple[Expr, ...], Sources]:
    """Expressions over one tuple of sources; equal tables are shared."""
    sources: list[Any] = []
    exprs = []
    for expr, own in parts:
        new: dict[str, str] = {}
        for k, source in enumerate(own):
            at = next((n for n, known in enumerate(sources) if _same(known, source)), len(sources))
            if at == len(sources):
                sources.append(source)
            new[f"t{k}"] = f"t{at}"
        exprs.append(ir_tables.renamed(expr, new.__getitem__))
    return tuple(exprs), tuple(sources)


def used(expr: Expr, sources: Sources) -> tuple[Expr, Sources]:
    """Without the tables that nothing reads any more."""
    names = [f"t{k}" for k in range(len(sources))]
    read = set(ir_tables.tables(expr))
    kept = [n for n in names if n in read]
    new = {name: f"t{k}" for k, name in enumerate(kept)}
    return (
        ir_tables.renamed(expr, new.__getitem__),
        tuple(s for n, s in zip(names, sources, strict=True) if n in read),
    )


def shifted(
    expr: Expr, sources: Sources, q_offset: int | str, k_offset: int | str
) -> tuple[Expr, Sources]:
    """i + q_offset for i, j + k_offset for j, and the lengths up to the last position."""
    by = {"i": q_offset, "Sq": q_offset, "j": k_offset, "Sk": k_offset}
    values = {
        name: var(name) + (var(offset) if isinstance(offset, str) else offset)
        for name, offset in by.items()
        if offset != 0
    }
    made = tuple(
        Made(s.make, s.tensors, substitute(s.length, values), s.dtype, s.ndim)
        if isinstance(s, Made)
        else s
        for s in sources
    )
    return substitute(expr, values), made


def bind(
    expr: Expr, sources: Sources, numbers: Mapping[str, int], device: Any, what: str,
    batch: Mapping[str, int], state: Any = None, prepare: Prepare = one_by_one,
) -> Bound:  # fmt: skip
    """The tables as tensors on the device, in lengths that are now known.

    state     what floats are computed in; None: float32, or float64 where a table is
    prepare   who makes the tables that depend on lengths
    """
    own = tensors_of(sources)
    tensors = [placed(t, device, what) for t in own]
    at = {id(t): k for k, t in enumerate(own)}
    recipes = tuple(
        Recipe(s.make, tuple(at[id(t)] for t in s.tensors), ir_tables.number(s.length, numbers))
        for s in sources
        if isinstance(s, Made)
    )
    made = iter(prepare(recipes, tensors)(tensors) if recipes else ())
    tables = {
        f"t{k}": next(made) if isinstance(s, Made) else tensors[at[id(s)]]
        for k, s in enumerate(sources)
    }
    bound = Bound(expr, tables, device, numbers, state or widest(tuple(tables.values())))
    check_sizes(bound, {"i": numbers["Sq"], "j": numbers["Sk"], **batch})
    return bound


def tidy(expr: Expr) -> Expr:
    """Constants folded and dropped: True & x is x, ~~x is x, comparisons of numbers are decided."""
    return rewrite(expr, _tidy)


def _tidy(node: Expr) -> Expr | None:
    rule = _LOGIC.get(node.op)
    found = rule(*node.args) if rule else None
    return found or (simplify_node(node) if node.op in _FOLDED else None)


def _and(a: Expr, b: Expr) -> Expr | None:
    for one, other in ((a, b), (b, a)):
        if is_const(one, True):
            return other
        if is_const(one, False):
            return one
    return a if a is b else None


def _or(a: Expr, b: Expr) -> Expr | None:
    for one, other in ((a, b), (b, a)):
        if is_const(one, False):
            return other
        if is_const(one, True):
            return one
    return a if a is b else None


def _not(a: Expr) -> Expr | None:
    if a.op == "not":
        return a.args[0]
    return const(not a.value) if a.op == "const" else None


_LOGIC: Mapping[str, Callable[..., Expr | None]] = {"and": _and, "or": _or, "not": _not}
_FOLDED = frozenset(("add", "sub", "mul", "where", *COMPARISONS))


def logic(op: str, *args: Expr) -> Expr:
    return tidy(call(op, *args))
