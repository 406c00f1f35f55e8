"""Block maps as pictures: text, SVG and PNG, with what they save."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

#: One character and one colour for skip, partial and full.
MARKS = ".+#"
COLOURS = ("#eef0f2", "#e8a33d", "#2b6cb0")
_NAMES = ("skip", "partial", "full")


@dataclass(frozen=True)
class Picture:
    """A block map of one batch and head: rows of 0 (skip), 1 (partial), 2 (full)."""

    rows: tuple[tuple[int, ...], ...]
    block: tuple[int, int]
    title: str = ""

    @staticmethod
    def of(map: Tensor, block: tuple[int, int], title: str = "") -> Picture:
        """From a (nq, nk) map; waits for its device."""
        return Picture(tuple(tuple(row) for row in map.tolist()), block, title)

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many blocks are skipped, partial, full."""
        flat = [cell for row in self.rows for cell in row]
        return flat.count(0), flat.count(1), flat.count(2)

    @property
    def summary(self) -> str:
        skip, partial, full = self.counts
        every = skip + partial + full
        saved = 100.0 * skip / every if every else 0.0
        size = " x ".join(map(str, self.block))
        return (
            f"{every} blocks of {size}: {skip} skipped, {partial} partial, {full} full; "
            f"{saved:.1f} % of the work saved"
        )

    def text(self) -> str:
        """One character a block, `.` skip, `+` partial, `#` full; the last line counts them."""
        lines = ["".join(MARKS[cell] for cell in row) for row in self.rows]
        return "\n".join([*lines, self.summary])

    def svg(self, cell: int = 8) -> str:
        """An SVG document, `cell` pixels a block; runs of equal blocks are one rectangle."""
        width, height = cell * len(self.rows[0] if self.rows else ()), cell * len(self.rows)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" shape-rendering="crispEdges">',
            f"<title>{_escaped(self.title)}: {self.summary}</title>" if self.title else "",
            f'<rect width="{width}" height="{height}" fill="{COLOURS[0]}"/>',
            *self._rectangles(cell),
            "</svg>",
        ]
        return "\n".join(part for part in parts if part)

    def _rectangles(self, cell: int) -> Iterator[str]:
        for y, row in enumerate(self.rows):
            x = 0
            for value, run in groupby(row):
                length = len(list(run))
                if value:
                    yield (
                        f'<rect class="{_NAMES[value]}" x="{x * cell}" y="{y * cell}" '
                        f'width="{length * cell}" height="{cell}" fill="{COLOURS[value]}"/>'
                    )
                x += length

    def png(self, cell: int = 4) -> bytes:
        """A PNG image with a palette of three colours, `cell` pixels a block."""
        lines = [b"\0" + b"".join(bytes([v]) * cell for v in row) for row in self.rows]
        pixels = b"".join(line for line in lines for _ in range(cell))
        width = cell * len(self.rows[0] if self.rows else ())
        head = struct.pack(">IIBBBBB", width, cell * len(self.rows), 8, 3, 0, 0, 0)
        palette = bytes.fromhex("".join(c[1:] for c in COLOURS))
        chunks = (
            (b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(pixels)), (b"IEND", b""),
        )  # fmt: skip
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
