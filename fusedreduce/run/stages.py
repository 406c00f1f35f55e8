"""One declared reduction a tile at a time: the tile's references, one correction, the tile's sums.

The state of some rows is a dict of (rows, 1) tensors by slot, with bound references beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusedreduce.declare import edges
from fusedreduce.declare.record import NO_POSITION, Field, Record
from fusedreduce.ir.expr import Expr, call, names, rename, substitute, var
from fusedreduce.program import Stage
from fusedreduce.run.language import Function, Language, Values


@dataclass(frozen=True)
class Tile:
    """Where a tile lies: its first column and how many it has; in a pair, what else it holds.

    inside   (rows, columns): which elements there are; None: all
    payload  the sum over the columns of a weight (rows, columns) times the payload: (rows, DV)
    """

    start: int
    columns: int
    inside: Tensor | None = None
    payload: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Phase:
    """Fields whose references are known together: one pass over the tile for all of them."""

    fields: tuple[Field, ...]
    bound: tuple[Field, ...]
    terms: Function
    corrected: Function  # the fields' old values at the new references
    formulas: tuple[Function, ...]
    references: tuple[str, ...]
    readable: Function  # what later terms read of these


@dataclass(frozen=True)
class Corrected:
    """A stage in corrected form; the terms of `vectors` are weights of the payload."""

    phases: tuple[Phase, ...]
    vectors: frozenset[str] = frozenset()

    @property
    def parameters(self) -> frozenset[str]:
        """What its terms read: inputs, results of other stages, j, its own references."""
        return frozenset(n for p in self.phases for n in p.terms.parameters)

    def step(self, tile: Tile, values: Values, old: Values | None) -> Values:
        """The state after one more tile; `old` is None before the first."""
        state: Values = {}
        seen = dict(values)
        for phase in self.phases:
            before = self.before(phase, state, old)
            terms = _inside(phase.fields, phase.terms(seen), tile)
            for f, term in zip(phase.fields, terms, strict=True):
                absorb = _weighted if f.name in self.vectors else _ABSORB[f.kind]
                state |= absorb(f, tile, term, before)
            for f, formula in zip(phase.bound, phase.formulas, strict=True):
                (state[f.name],) = formula(state)
            read = phase.readable(state)
            seen |= {_read(n): v for n, v in zip(phase.references, read, strict=True)}
        return state

    def before(self, phase: Phase, new: Values, old: Values | None) -> Values | None:
        """The old slots of a phase, its sums moved to the new references."""
        if old is None:
            return None
        sides = old | {f"old.{n}": v for n, v in old.items()}
        sides |= {f"new.{n}": v for n, v in new.items()}
        sums = [f for f in phase.fields if f.kind == "Sum"]
        moved = phase.corrected(sides)
        return old | {f.name: v for f, v in zip(sums, moved, strict=True)}


def _read(name: str) -> str:
    """The variable under which a term reads a reference: no operand has such a name."""
    return f"@{name}"


def corrected(
    stage: Stage,
    kinds: Mapping[str, str],
    language: Language,
    vectors: frozenset[str] = frozenset(),
) -> Corrected:
    """A stage whose operands are over variables of these kinds."""
    depth = _depths(stage.record)
    levels = sorted(set(depth.values()))
    phases = tuple(
        _phase(stage, [f for f in stage.record.fields if depth[f.name] == k], kinds, language)
        for k in levels
    )
    return Corrected(phases, vectors)


def _phase(
    stage: Stage, here: Sequence[Field], kinds: Mapping[str, str], language: Language
) -> Phase:
    record = stage.record
    fields, bound = (tuple(f for f in here if f.is_bound == b) for b in (False, True))
    sums = [f for f in fields if f.kind == "Sum"]
    references = [f for f in here if f in record.references]
    own = {f.name: f.type for f in record.fields}
    sides = own | {f"{side}.{n}": t for side in ("old", "new") for n, t in own.items()}
    seen = {**kinds, **{_read(n): t for n, t in own.items()}}

    def function(exprs: Sequence[Expr], of: Sequence[Field], known: Mapping[str, str]) -> Function:
        return language.function(exprs, known, [f.type for f in of])

    return Phase(
        fields=fields,
        bound=bound,
        terms=function([_present(record, f, dict(stage.operands)) for f in fields], fields, seen),
        corrected=function([_moved(record, f) for f in sums], sums, sides),
        formulas=tuple(function([_term(f)], [f], own) for f in bound),
        references=tuple(f.name for f in references),
        readable=function([_readable(record, f) for f in references], references, own),
    )


def _depths(record: Record) -> dict[str, int]:
    """In which pass over the tile a field can be computed: after the references it reads."""
    depth: dict[str, int] = {}
    for f in record.fields:
        if f.is_bound:
            depth[f.name] = max((depth[n] for n in names(_term(f)) if n in depth), default=0)
        else:
            depth[f.name] = max((depth[n] + 1 for n in f.reads), default=0)
    return depth


def _term(f: Field) -> Expr:
    assert f.term is not None, f.name
    return f.term


def _present(record: Record, f: Field, operands: Mapping[str, Expr]) -> Expr:
    """Edge rule (a): the term, or 0 for an element that is absent; over inputs and references."""

    def placed(g: Field) -> Expr:
        return substitute(_term(g), {**operands, **{n: var(_read(n)) for n in g.reads}})

    term = placed(f)
    if f.kind == "Sum" and record.guarded(f"present:{f.name}"):
        for reference in record.free_references(f.name):
            assert reference.identity is not None
            gone = call("eq", placed(reference), reference.identity)
            term = call("where", gone, 0 if f.type == "int" else 0.0, term)
    return term


def _readable(record: Record, f: Field) -> Expr:
    """Edge rule (b), over the names of fields."""
    if not record.guarded(f"neutral:{f.name}"):
        return var(f.name)
    return edges.readable_expr(record, f.name)


def _moved(record: Record, f: Field) -> Expr:
    """The old value of a sum at the new references: edge rule (c), over `old.*` and `new.*`."""
    if f.correct is None:
        return var(f.name)
    table: dict[str, Expr] = {}
    for r in record.all_references(f.name):
        readable = _readable(record, r)
        new, old = (rename(readable, {n: side + n for n in names(readable)}) for side in _SIDES)
        if record.guarded(f"old:{r.name}"):
            old = substitute(edges.readable_old_expr(record, r.name), {f"new.{r.name}": new})
        table |= {f"new.{r.name}": new, f"old.{r.name}": old}
    return substitute(f.correct, table)


_SIDES = ("new.", "old.")


# ---- how a tile's terms become slots -------------------------------------------------------------

Absorb = Callable[[Field, Tile, Tensor, "Values | None"], Values]


def _inside(fields: Sequence[Field], terms: Sequence[Tensor], tile: Tile) -> Sequence[Tensor]:
    """The terms of the elements there are, identities elsewhere; one select for equal terms."""
    if tile.inside is None:
        return terms
    chosen: dict[tuple[int, object], Tensor] = {}
    for f, term in zip(fields, terms, strict=True):
        if (id(term), f.identity) not in chosen:
            chosen[id(term), f.identity] = torch.where(tile.inside, term, f.identity)  # type: ignore[arg-type]
    return [chosen[id(t), f.identity] for f, t in zip(fields, terms, strict=True)]


def _weighted(f: Field, tile: Tile, term: Tensor, old: Values | None) -> Values:
    assert tile.payload is not None
    here = tile.payload(term)
    return {f.name: here if old is None else old[f.name] + here}


def _sum(f: Field, tile: Tile, term: Tensor, old: Values | None) -> Values:
    here = term * tile.columns if term.shape[1] == 1 else term.sum(1, keepdim=True)
    return {f.name: here if old is None else old[f.name] + here}


def _prod(f: Field, tile: Tile, term: Tensor, old: Values | None) -> Values:
    here = term.expand(-1, tile.columns).prod(1, keepdim=True)
    return {f.name: here if old is None else old[f.name] * here}


def _monoid(fold: Callable[..., Tensor], two: Callable[[Tensor, Tensor], Tensor]) -> Absorb:
    """Idempotent ones: the tile's extreme, then that and the one so far."""

    def absorb(f: Field, tile: Tile, term: Tensor, old: Values | None) -> Values:
        here = fold(term, 1, keepdim=True)
        limit = torch.as_tensor(f.identity).to(here) if old is None else old[f.name]
        return {f.name: two(here, limit)}

    return absorb


def _first(f: Field, tile: Tile, term: Tensor, old: Values | None) -> Values:
    """The value and the position of the first element."""
    if tile.inside is None and old is None:
        here = term[:, :1]
        return {f.name: here, f.position: torch.zeros_like(here, dtype=torch.int64) + tile.start}
    if tile.inside is None:
        value, at = term[:, :1], torch.full_like(term[:, :1], tile.start, dtype=torch.int64)
    else:
        at = _first_inside(tile)
        value = term.gather(1, (at - tile.start).clamp(max=tile.columns - 1))
        value = torch.where(at == NO_POSITION, f.identity or 0, value)
    if old is not None:
        kept = old[f.position] <= at
        value = torch.where(kept, old[f.name], value)
        at = torch.where(kept, old[f.position], at)
    return {f.name: value, f.position: at}


def _first_inside(tile: Tile) -> Tensor:
    """The position of the first element of each row, NO_POSITION where there is none."""
    assert tile.inside is not None
    found, at = tile.inside.byte().max(1, keepdim=True)
    return torch.where(found > 0, at + tile.start, NO_POSITION)


def _position(pick: Callable[..., tuple[Tensor, Tensor]], better: Callable[..., Tensor]) -> Absorb:
    """The first position; a NaN beats every number, and equal values keep the earlier one."""

    def absorb(f: Field, tile: Tile, term: Tensor, old: Values | None) -> Values:
        value, at = pick(term, 1, keepdim=True)
        at = at + tile.start
        if tile.inside is not None:  # an element may well have the value of nothing
            at = torch.where(torch.eq(value, f.identity or 0), _first_inside(tile), at)
        if old is not None:
            best, place = old[f.position], old[f.name]
            wins = better(value, best) | ((value == best) & (at < place))
            wins |= torch.isnan(value) & ~torch.isnan(best)
            value, at = torch.where(wins, value, best), torch.where(wins, at, place)
        return {f.position: value, f.name: at}

    return absorb


_ABSORB: Mapping[str, Absorb] = {
    "Sum": _sum,
    "Prod": _prod,
    "Max": _monoid(torch.amax, torch.maximum),
    "Min": _monoid(torch.amin, torch.minimum),
    "Any": _monoid(torch.any, torch.logical_or),
    "All": _monoid(torch.all, torch.logical_and),
    "First": _first,
    "ArgMax": _position(torch.max, torch.gt),
    "ArgMin": _position(torch.min, torch.lt),
}
