"""What attention keeps for its backward, in bytes: the scores, or a number or two a query."""

from __future__ import annotations

from dataclasses import dataclass

from fusedreduce.plan.rows import BYTES

NUMBER = BYTES["float32"]
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class AttentionMemory:
    """B batches of H heads, Sq queries of Sk keys.

    saved   float32 numbers that the backward reads of a query; two (maximum and sum) where they
            are kept apart, one (m + log s) where the inputs have 16 bits

    >>> one = AttentionMemory(1, 1, 8192, 8192, "bfloat16", 1)
    >>> size(one.scores), size(one.two_numbers), size(one.ours)
    ('134.2 MB', '65.5 kB', '32.8 kB')
    """

    B: int
    H: int
    Sq: int
    Sk: int
    dtype: str
    saved: int

    @property
    def queries(self) -> int:
        return self.B * self.H * self.Sq

    @property
    def scores(self) -> int:
        """One score matrix a head, in the dtype of q: what the unfused form keeps at the least."""
        return self.queries * self.Sk * BYTES[self.dtype]

    @property
    def two_numbers(self) -> int:
        """Maximum and sum of every query in float32."""
        return 2 * self.queries * NUMBER

    @property
    def ours(self) -> int:
        """What our forward writes for the backward beside the result."""
        wide = 2 if self.dtype == "float64" else 1
        return self.saved * self.queries * NUMBER * wide


def size(count: float) -> str:
    """Bytes in decimal units, as disks and papers have them.

    >>> size(134217728), size(65536), size(12)
    ('134.2 MB', '65.5 kB', '12 B')
    """
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


#: The lengths and heads of the table: one head, then a batch of 8 with 32 heads each.
CASES = ((1, 1, 2048), (1, 1, 8192), (1, 1, 32768), (8, 32, 8192))


def table(half: int = 1, single: int = 2) -> str:
    """A Markdown table: 16-bit scores against two numbers a query, and against ours.

    half, single   numbers that our forward saves of a query, of 16-bit and of float32 inputs
    """
    lines = [
        "| heads | tokens | scores, 16 bits | two numbers a query | ours, 16-bit inputs "
        "| ours, float32 inputs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for B, H, S in CASES:
        ours = AttentionMemory(B, H, S, S, "bfloat16", half)
        wider = AttentionMemory(B, H, S, S, "float32", single)
        heads = f"{B} x {H}" if B > 1 else f"{H}"
        cells = map(size, (ours.scores, ours.two_numbers, ours.ours, wider.ours))
        lines.append(f"| {heads} | {S:,} | {' | '.join(cells)} |")
    return "\n".join(lines)
