"""The kernel of tables of packed sequences compiles everywhere, and keeps to registers."""

from __future__ import annotations

import pytest

from fusedreduce.kernels.segment_tables import SegmentTable, segment_tables_printed
from fusedreduce.run.compiled import built

CAUSAL = (SegmentTable("id", 0, 0, -1), SegmentTable("id", 0, 0, -2), SegmentTable("start", 0, 0))
EVERY = (
    SegmentTable("id", 0, 0, -1), SegmentTable("id", 1, 1, -2), SegmentTable("start", 0, 0),
    SegmentTable("start", 0, 1), SegmentTable("start", 1, 1), SegmentTable("length", 0, 0),
    SegmentTable("length", 0, 1),
)  # fmt: skip


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("tables", [CAUSAL, EVERY], ids=["causal", "every"])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_tables(dtype: str, tables: tuple[SegmentTable, ...], capability: int) -> None:
    kernel = segment_tables_printed(tables)
    kinds = {"c": f"*{dtype}", "t": "*i32"}
    types = {n: kinds[n[0]] if n.endswith("_ptr") else "i32" for n in kernel.arguments}
    aligned = [n for n in types if n.startswith("t") and n.endswith("_ptr")]
    arguments = types, dict(kernel.constants), aligned
    found = built(kernel, arguments, {"num_warps": 4, "num_stages": 1}, capability)
    assert (found.stack, found.registers <= 64) == (0, True), found
