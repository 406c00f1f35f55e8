"""A declaration run on many small streams at once, in one floating-point type, with chosen selects.

Tiles of up to three elements come one after another (reduce the references, correct, add the
terms); besides, the last tile is summed up by itself and the two states are merged. Both follow the
edge rule (a) to (e) of `declare.edges`, each select only where it is among the guards. What a
select that is left out means: without `neutral:r` a term reads r as it is; without `old:r` a
correction reads old.r as a term would; without `present:f` an absent element's term is added as it
comes; without `nan:f` a maximum drops NaN.

Arrays are (streams, tiles, elements) for operands and (streams,) for states. The numpy functions
come in as an argument: `edges` is the only door to numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusedreduce.declare.record import NO_POSITION, Field, Record
from fusedreduce.ir.evaluate import Dialect, compiled
from fusedreduce.ir.expr import Expr, names

Array: TypeAlias = Any
State: TypeAlias = "dict[str, Array]"


@dataclass(frozen=True)
class Streams:
    """Operands by name and `inside` (False: padding, masked out): (streams, tiles, elements)."""

    operands: Mapping[str, Array]
    inside: Array

    def tile(self, t: int) -> tuple[dict[str, Array], Array]:
        return {n: v[:, t] for n, v in self.operands.items()}, self.inside[:, t]


@dataclass
class Runner:
    """One record, one set of guards, one type."""

    np: Any
    record: Record
    guards: frozenset[str]
    dialect: Dialect
    dtype: Any

    # ---- results

    def run(self, streams: Streams) -> dict[str, Array]:
        """Every output, once tile by tile and once with the last tile merged as a state."""
        count = streams.inside.shape[0]
        state = self.start(count)
        tiles = streams.inside.shape[1]
        for t in range(tiles):
            before = state
            state = self.step(state, *streams.tile(t))
        alone = self.step(self.start(count), *streams.tile(tiles - 1))
        merged = self.merge(before, alone)
        return {
            f"{way}:{name}": value
            for way, s in (("tiles", state), ("merge", merged))
            for name, value in self.finish(s).items()
        }

    def finish(self, state: State) -> dict[str, Array]:
        """finish of a state, or the declared value of nothing."""
        declared = dict(self.record.empty)
        nothing = self.nothing(state)
        out = {}
        for name, e in self.record.finish:
            value = self.value(e, state)
            if name in declared:
                value = self.np.where(nothing, self.dtype(declared[name]), value)
            out[name] = value
        return out

    def nothing(self, state: State) -> Array:
        """Is every slot at its identity?"""
        answer = True
        for s in self.record.slots:
            answer = answer & (state[s.name] == s.identity)
        return answer

    def value(self, e: Expr, env: Mapping[str, Array]) -> Array:
        used = tuple(dict.fromkeys(names(e)))
        return compiled(e, used, self.dialect)(*(env[n] for n in used))

    # ---- states

    def start(self, count: int) -> State:
        """The identity, and for bound references their value there."""
        np, state = self.np, dict[str, Array]()
        for s in self.record.slots:
            kind = {"bool": np.bool_, "int": np.int64}.get(s.type, self.dtype)
            state[s.name] = np.full(count, s.identity, dtype=kind)
        for f in self.record.fields:
            if f.is_bound:
                state[f.name] = self.value(_term(f), state) + np.zeros(count, self.dtype)
        return state

    def step(self, old: State, operands: dict[str, Array], inside: Array) -> State:
        """The state after one more tile."""
        np, new = self.np, dict[str, Array]()
        elements = {**operands, "j": operands["j"]}
        reached: dict[str, Array] = {}  # contributions to references, for rule (a)
        for f in self.record.fields:
            if f.is_bound:
                new[f.name] = self.value(_term(f), new)
                continue
            seen = {r: self.readable(self.record.by_name[r], new)[:, None] for r in f.reads}
            term = self.value(_term(f), {**elements, **seen})
            term = np.broadcast_to(term, inside.shape)
            reached[f.name] = term
            new |= self.absorbed(f, old, new, term, self.counted(f, reached, inside), operands["j"])
        return new

    def counted(self, f: Field, reached: Mapping[str, Array], inside: Array) -> Array:
        """Rule (a): which elements of the tile count for a field."""
        if f"present:{f.name}" in self.guards:
            for r in self.record.free_references(f.name):
                inside = inside & (reached[r.name] != r.identity)
        return inside

    def absorbed(
        self, f: Field, old: State, new: State, term: Array, here: Array, j: Array
    ) -> State:
        """The field with a tile's terms taken in."""
        np = self.np
        if f.kind in ("First", "ArgMax", "ArgMin"):
            return self.positioned(f, old, term, here, j)
        start = np.where(here, term, np.asarray(f.identity).astype(term.dtype))
        if f.kind == "Sum":
            return {f.name: self.moved(f, old, new) + self.total(start)}
        two = self.two(f)
        out = old[f.name]
        for k in range(start.shape[1]):
            out = two(out, start[:, k])
        return {f.name: out}

    def total(self, terms: Array) -> Array:
        out = terms[:, 0]
        for k in range(1, terms.shape[1]):
            out = out + terms[:, k]
        return out

    def two(self, f: Field) -> Callable[[Array, Array], Array]:
        np, keep = self.np, f"nan:{f.name}" in self.guards
        table: dict[str, Callable[[Array, Array], Array]] = {
            "Max": np.maximum if keep else np.fmax,
            "Min": np.minimum if keep else np.fmin,
            "Prod": np.multiply,
            "Any": np.logical_or,
            "All": np.logical_and,
        }
        return table[f.kind]

    def positioned(self, f: Field, old: State, term: Array, here: Array, j: Array) -> State:
        """First, ArgMax, ArgMin, element by element."""
        state = {n: old[n] for n in (f.name, f.position)}
        for k in range(term.shape[1]):
            value, at = (f.name, f.position) if f.kind == "First" else (f.position, f.name)
            side = {
                value: self.np.where(here[:, k], term[:, k], self.dtype(f.identity)),
                at: self.np.where(here[:, k], j[:, k], NO_POSITION),
            }
            state = self.chosen(f, state, side)
        return state

    def chosen(self, f: Field, a: State, b: State) -> State:
        """The side a First, ArgMax or ArgMin keeps; a NaN beats every number."""
        np = self.np
        if f.kind == "First":
            left = a[f.position] <= b[f.position]
        else:
            x, y = a[f.position], b[f.position]
            better = x > y if f.kind == "ArgMax" else x < y
            nan_x, nan_y = np.isnan(x), np.isnan(y)
            tie = ((x == y) | (nan_x & nan_y)) & (a[f.name] <= b[f.name])
            left = (better & ~nan_y) | (nan_x & ~nan_y) | tie
        return {n: np.where(left, a[n], b[n]) for n in (f.name, f.position)}

    def merge(self, a: State, b: State) -> State:
        """The state of two states; rule (e): of a side with no element, the other side."""
        new: dict[str, Array] = {}
        for f in self.record.fields:
            if f.is_bound:
                new[f.name] = self.value(_term(f), new)
            elif f.kind == "Sum":
                new[f.name] = self.moved(f, a, new) + self.moved(f, b, new)
            elif f.kind in ("First", "ArgMax", "ArgMin"):
                new |= self.chosen(f, a, b)
            else:
                new[f.name] = self.two(f)(a[f.name], b[f.name])
        return new

    # ---- references

    def at_identity(self, f: Field, state: State) -> Array:
        """Does a reference hold nothing yet? A bound one where all fields of its formula do."""
        if f.kind == "First":
            return state[f.position] == NO_POSITION
        if not f.is_bound:
            return state[f.name] == f.identity
        answer = True
        for n in names(_term(f)):
            if self.record.by_name[n].kind != "First":
                answer = answer & self.at_identity(self.record.by_name[n], state)
        return answer

    def readable(self, f: Field, state: State) -> Array:
        """Rule (b): what a term reads."""
        value = state[f.name]
        if f"neutral:{f.name}" not in self.guards:
            return value
        missing = self.at_identity(f, state)
        if not f.is_bound:
            missing = missing | self.np.isinf(value)
        return self.np.where(missing, self.dtype(f.neutral), value)

    def moved(self, f: Field, old: State, new: State) -> Array:
        """Rule (c): the field at the new references."""
        if f.correct is None:
            return old[f.name]
        env: State = {f.name: old[f.name]}
        for name in old:
            env[f"old.{name}"] = old[name]
        for r in self.record.all_references(f.name):
            env[f"new.{r.name}"] = now = self.readable(r, new)
            env[f"old.{r.name}"] = before = self.readable(r, old)
            if f"old:{r.name}" in self.guards:
                env[f"old.{r.name}"] = self.np.where(self.at_identity(r, old), now, before)
        return self.value(f.correct, env)


def _term(f: Field) -> Expr:
    assert f.term is not None
    return f.term


def every_guard(record: Record) -> tuple[str, ...]:
    """All selects of the full rule that can change a value, the dearest first."""
    references = [r for r in record.references if r.kind != "First"]
    present = [f.name for f in record.fields if f.kind == "Sum" and record.free_references(f.name)]
    ordered = [f.name for f in record.fields if f.kind in ("Max", "Min") and f.type == "float"]
    corrects = [f.correct for f in record.fields if f.correct is not None]
    old = [r.name for r in references if any(f"old.{r.name}" in names(c) for c in corrects)]
    return (
        *(f"present:{n}" for n in present),
        *(f"nan:{n}" for n in ordered),
        *(f"old:{n}" for n in old),
        *(f"neutral:{r.name}" for r in references),
    )
