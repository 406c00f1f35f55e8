"""Masks: predicates on (batch, head, query position, key position) that compose.

A mask is an expression over the integers b, h, i, j, the lengths Sq, Sk and tables; True is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusedreduce.blocks.bound import device_of
from fusedreduce.blocks.classify import classify
from fusedreduce.blocks.picture import Picture
from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import const, names, substitute, var
from fusedreduce.ir.show import show
from fusedreduce.masks import sources as tables
from fusedreduce.masks.positional import Positional
from fusedreduce.masks.sources import LENGTHS, Made
from fusedreduce.trace.compiled import outside_graphs
from fusedreduce.trace.indexed import INDICES, is_traced, trace_indexed


@dataclass(frozen=True, eq=False, repr=False)
class Mask(Positional):
    """Which keys a query sees: seen(b, h, i, j), a boolean. `&`, `|`, `~` compose."""

    noun = "mask"

    @outside_graphs
    def __and__(self, other: Mask) -> Mask:
        return self._joined("and", "&", other)

    @outside_graphs
    def __or__(self, other: Mask) -> Mask:
        return self._joined("or", "|", other)

    @outside_graphs
    def __invert__(self) -> Mask:
        return Mask(tables.logic("not", self.expr), self.sources, f"~{self._inner()}")

    def __bool__(self) -> bool:
        raise DeclarationError(
            message(
                f"the mask {self!r} used as a Python bool",
                expected="&, | and ~, which make one mask of two",
                came="and, or, not, if: these would drop one of them",
                do="combine masks by &, | and ~, as in causal & window(8, 0)",
            )
        )

    def _joined(self, op: str, sign: str, other: Any) -> Mask:
        if not isinstance(other, Mask):
            raise DeclarationError(
                message(
                    f"a mask {sign} something else",
                    expected="two masks",
                    came=type(other).__name__,
                    do="wrap it: fr.mask(function), or fr.mask(lambda b, h, i, j: seen[i, j]) of a "
                    "tensor",
                )
            )
        exprs, sources = tables.joined((self.expr, self.sources), (other.expr, other.sources))
        expr, sources = tables.used(tables.logic(op, *exprs), sources)
        return Mask(expr, sources, f"{self._inner()} {sign} {other._inner()}")

    def _inner(self) -> str:
        joined = " & " in self.label or " | " in self.label
        return f"({self.label})" if joined else self.label

    @outside_graphs
    def shifted(self, q_offset: int | str = 0, k_offset: int | str = 0) -> Mask:
        """The mask of a piece: query row 0 is position q_offset of the whole, key 0 is k_offset.

        Offsets are numbers, or names of integers known at run time ("q_offset", "k_offset").
        Sq and Sk of the mask become Sq + q_offset and Sk + k_offset, one past the last position:
        the piece is taken to end where the sequence (so far) ends. One token decoded against a
        cache, q_offset = Sk - 1, sees with `causal` what it sees with `causal_bottom_right`.
        Tables are read at positions of the whole.

        >>> from fusedreduce.masks import causal
        >>> show(causal.shifted("q_offset").expr)
        'i + q_offset >= j'
        """
        expr, sources = tables.shifted(self.expr, self.sources, q_offset, k_offset)
        return Mask(expr, sources, f"{self._inner()}.shifted({q_offset}, {k_offset})")

    def evaluate(
        self, b: Any, h: Any, i: Any, j: Any, Sq: int, Sk: int, *, q_offset: int = 0,
        k_offset: int = 0,
    ) -> Any:  # fmt: skip
        """Who sees whom at index tensors of any shapes that broadcast, as a bool tensor."""
        device = device_of((*self.tensors, b, h, i, j))
        bound = self.bind(Sq, Sk, device, q_offset=q_offset, k_offset=k_offset)
        return bound.evaluate(b, h, i, j)

    def __call__(self, b: Any, h: Any, i: Any, j: Any) -> Any:
        """At index tensors, for masks that need no lengths; on traced indices, inside fr.mask."""
        traced = [x for x in (b, h, i, j) if is_traced(x)]
        if traced:
            return self._inlined(traced[0], dict(zip(INDICES, (b, h, i, j), strict=True)))
        if self.needs_lengths:
            raise DeclarationError(
                message(
                    f"{self!r} needs the lengths of the sequences",
                    expected="mask.evaluate(b, h, i, j, Sq, Sk)",
                    came="mask(b, h, i, j)",
                )
            )
        return self.evaluate(b, h, i, j, 0, 0)

    def blocks(
        self, Sq: int, Sk: int | None = None, block: int | tuple[int, int] = 128, b: int = 0,
        h: int = 0,
    ) -> Picture:  # fmt: skip
        """The block map of one batch and head, to look at; Sk is Sq where it is left out.

        block   the size of blocks, or (that of queries, that of keys)
        """
        Sk = Sq if Sk is None else Sk
        BQ, BK = (block, block) if isinstance(block, int) else block
        bound = self.bind(Sq, Sk, device_of(self.tensors))
        found = classify(bound, b + 1, h + 1, Sq, Sk, BQ, BK)
        return Picture.of(found[-1, -1], (BQ, BK), repr(self))

    def show(
        self, Sq: int, Sk: int | None = None, block: int | tuple[int, int] = 128, b: int = 0,
        h: int = 0,
    ) -> str:  # fmt: skip
        """The block map as text: `.` skip, `+` partial, `#` full, and the work saved.

        >>> from fusedreduce.masks import causal, window
        >>> print((causal & window(255, 0)).show(640, block=128))
        +....
        #+...
        +#+..
        .+#+.
        ..+#+
        25 blocks of 128 x 128: 13 skipped, 8 partial, 4 full; 52.0 % of the work saved
        """
        return self.blocks(Sq, Sk, block, b, h).text()

    def svg(
        self, Sq: int, Sk: int | None = None, block: int | tuple[int, int] = 128, b: int = 0,
        h: int = 0, *, cell: int = 8,
    ) -> str:  # fmt: skip
        """The block map as an SVG document, `cell` pixels a block."""
        return self.blocks(Sq, Sk, block, b, h).svg(cell)

    def png(
        self, path: str, Sq: int, Sk: int | None = None, block: int | tuple[int, int] = 128,
        b: int = 0, h: int = 0, *, cell: int = 4,
    ) -> None:  # fmt: skip
        """The block map as a PNG image in a file."""
        Path(path).write_bytes(self.blocks(Sq, Sk, block, b, h).png(cell))

    @property
    def needs_lengths(self) -> bool:
        made = any(isinstance(s, Made) for s in self.sources)
        return made or any(name in LENGTHS for name in names(self.expr))

    def _inlined(self, first: Any, at: dict[str, Any]) -> Any:
        """On traced indices: part of the function that is traced."""
        values = {
            name: x.expr if is_traced(x) else const(x)
            for name, x in at.items()
            if not (is_traced(x) and x.expr is var(name))
        }
        return first.captures.embedded(substitute(self.expr, values), self.sources)


@outside_graphs
def mask(fn: Callable[..., Any] | Mask) -> Mask:
    """A mask from a function of (b, h, i, j), given by position: True where query i sees key j.

    The function is traced once, here; tensors it captures are read when the mask is used.

    >>> strided = mask(lambda b, h, i, j: (i - j) % 4 == 0)
    >>> show(strided.expr)
    '(i - j) % 4 == 0'
    """
    if isinstance(fn, Mask):
        return fn
    traced = trace_indexed(fn, INDICES)
    if traced.kind != "bool":
        raise DeclarationError(
            message(
                "a mask function returns no boolean",
                expected="True where the query sees the key",
                came=f"a value of kind {traced.kind}: {show(traced.expr)}",
                do="compare, such as i >= j; a function that changes scores is a score_mod",
            )
        )
    expr, sources = tables.used(tables.tidy(traced.expr), traced.tables)
    label = f"mask({getattr(fn, '__name__', type(fn).__name__)})"
    return Mask(expr, sources, label, traced.replayable)
