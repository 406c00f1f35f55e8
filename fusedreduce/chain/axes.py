"""Axes of traced tensors: they join when values meet, and split when reshaped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from fusedreduce import trace
from fusedreduce.errors import NotFusible, message


@dataclass(eq=False)
class Atom:
    """One axis of a given size; `parts` holds what it became: another atom, or its factors."""

    size: int
    parts: tuple[Atom, ...] = ()


Dim: TypeAlias = "tuple[Atom, ...]"  # what one dimension of a tensor runs over, outermost first
Shape: TypeAlias = "tuple[Dim, ...]"


@dataclass
class Axes:
    """The atoms of one tracing; `shapes` are kept to see that no tensor uses one axis twice."""

    shapes: dict[Shape, None] = field(default_factory=dict)

    def register(self, shape: Shape) -> Shape:
        """Keep the shape of an input or of a value in the middle; refused where an axis repeats."""
        if shape not in self.shapes:
            self.require_distinct(shape)
            self.shapes[shape] = None
        return shape

    def require_distinct(self, shape: Shape) -> None:
        """A value has one place for each one of its inputs: v[:, None] - v[None, :] has not."""
        used = [a for d in shape for a in self.leaves(d) if a.size != 1]
        if len(set(used)) < len(used):
            raise NotFusible(
                message(
                    "one tensor is read along two different dimensions at once",
                    came=f"a value of shape {tuple(prod(a.size for a in d) for d in shape)}",
                    where=trace.user_line(),
                    do="pass the tensor twice, as two arguments: f(v, v)",
                )
            )

    def leaves(self, dim: Dim) -> Dim:
        """What the atoms of a dimension are now."""
        found: list[Atom] = []
        for atom in dim:
            found += self.leaves(atom.parts) if atom.parts else (atom,)
        return tuple(found)

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of an elementwise operation; axes that meet become one."""
        rank = max((len(s) for s in shapes), default=0)
        answer: list[Dim] = []
        for k in range(-rank, 0):
            meeting = [self.leaves(s[k]) for s in shapes if len(s) >= -k]
            wide = [d for d in meeting if prod(a.size for a in d) != 1]
            for other in wide[1:]:
                self.join(wide[0], other)
            answer.append(wide[0] if wide else self.join_ones(meeting))
        return self.register(tuple(answer))

    def join(self, a: Dim, b: Dim) -> None:
        """Make two dimensions run over the same atoms."""
        left, right = list(self.leaves(a)), list(self.leaves(b))
        while left and right:
            x, y = left.pop(0), right.pop(0)
            if x is y:
                continue
            if x.size == y.size:
                self.unify(x, y)
            elif x.size > y.size:
                left[:0] = self.split(x, y.size)[1:]
                self.unify(self.leaves((x,))[0], y)
            else:
                right[:0] = self.split(y, x.size)[1:]
                self.unify(x, self.leaves((y,))[0])

    def join_ones(self, meeting: Sequence[Dim]) -> Dim:
        """Axes of size 1 that meet become one where they can; nothing depends on it."""
        named = [d for d in meeting if d]
        for other in named[1:]:
            with suppress(NotFusible):
                self.join(named[0], other)
        return named[0] if named else ()

    def split(self, atom: Atom, first: int) -> Dim:
        """atom = first x rest."""
        if first == 0 or atom.size % first:
            raise NotFusible(
                message(
                    "dimensions of different make meet",
                    expected=f"an axis of size {atom.size} that splits into parts of {first}",
                    where=trace.user_line(),
                    do="reshape before the call",
                )
            )
        atom.parts = (Atom(first), Atom(atom.size // first))
        return atom.parts

    def unify(self, x: Atom, y: Atom) -> None:
        y.parts = (x,)
        for shape in self.shapes:
            used = [a for d in shape for a in self.leaves(d)]
            if sum(a is x for a in used) > 1:
                y.parts = ()
                raise NotFusible(
                    message(
                        "two different dimensions of one tensor meet in an operation",
                        came=f"both of size {x.size}",
                        where=trace.user_line(),
                        do="did the reduction want keepdim=True? Then x - mean lines up",
                    )
                )

    def regroup(self, flat: Dim, sizes: Sequence[int]) -> Shape:
        """The dimensions of a reshape, splitting atoms where the new sizes ask for it."""
        left = [a for a in self.leaves(flat) if a.size != 1]
        empty = [k for k, a in enumerate(left) if a.size == 0]
        if empty or 0 in sizes:
            return self.regroup_empty(left, empty, sizes)
        answer: list[Dim] = []
        for size in sizes:
            group: list[Atom] = []
            have = 1
            while have < size:
                atom = left.pop(0)
                want = size // have
                if atom.size > want:
                    atom, rest = self.split(atom, want)
                    left.insert(0, rest)
                elif size % (have * atom.size):
                    raise self.uneven(sizes)
                group.append(atom)
                have *= atom.size
            answer.append(tuple(group))
        return tuple(answer)

    def regroup_empty(self, left: list[Atom], empty: list[int], sizes: Sequence[int]) -> Shape:
        """Of a tensor without elements: what stands between its axes of size 0, apart."""
        places = [k for k, n in enumerate(sizes) if n == 0]
        if len(places) != len(empty):
            raise self.uneven(sizes)
        answer: list[Dim] = []
        starts = zip([0, *(k + 1 for k in empty)], [0, *(k + 1 for k in places)], strict=True)
        ends = zip([*empty, len(left)], [*places, len(sizes)], strict=True)
        for (i, k), (j, m) in zip(starts, ends, strict=True):
            if prod(a.size for a in left[i:j]) != prod(sizes[k:m]):
                raise self.uneven(sizes)
            answer += self.regroup(tuple(left[i:j]), sizes[k:m])
            answer += [(a,) for a in left[j : j + 1]]
        return tuple(answer)

    def uneven(self, sizes: Sequence[int]) -> NotFusible:
        return NotFusible(
            message(
                "a reshape that mixes dimensions",
                came=f"to {tuple(sizes)}",
                where=trace.user_line(),
                expected="dimensions that only split or join neighbours",
                do="reshape before the call",
            )
        )
