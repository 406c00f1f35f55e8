"""Printed kernels, held against files; formatted, short of head, the same on every machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusedreduce.reductions import LogSumExp
from tests import printing
from tests.golden import kernels, pair_kernels
from tests.golden.kernels import Kernel
from tests.golden.pair_kernels import Merge, PairKernel

ROOT = Path(__file__).resolve().parents[2]
KERNELS = (*kernels.KERNELS, *pair_kernels.KERNELS)
PRINT_ALL = (
    "from tests.golden.test_printed import KERNELS\n"
    "print('\\0'.join(k.print().kernel.source for k in KERNELS), end='')\n"
)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {k.name: k.print().kernel.source for k in KERNELS}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_text(
    kernel: Kernel | PairKernel | Merge, texts: dict[str, str], golden: Callable[[str, str], None]
) -> None:
    golden(f"{kernel.name}.py", texts[kernel.name])


def test_the_formatter_agrees(texts: dict[str, str], tmp_path: Path) -> None:
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "format", "--diff", "--isolated", "--no-cache"]
    done = subprocess.run(
        [*command, "--line-length", "100", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_manners(kernel: Kernel | PairKernel | Merge, texts: dict[str, str]) -> None:
    text = texts[kernel.name]
    lines = text.splitlines()
    head = next(k for k, line in enumerate(lines) if not line.startswith("#"))
    assert 5 <= head <= 12
    assert [line for line in lines if len(line) > 100] == []
    assert "import torch" not in text.partition("\ndef main():")[0], "the kernel needs Triton only"
    assert not re.search(r"""["' ](/|~|[A-Z]:\\)\w+|\w+\.py\b""", text), "a path of this machine"
    assert not re.search(r"\b(tmp|var|buf|_)\d+\b|0x[0-9a-f]{6}", text), "a name from a counter"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_the_number_of_rows_leaves_no_trace(
    kernel: Kernel | PairKernel | Merge, texts: dict[str, str]
) -> None:
    assert kernel.print(rows=21).kernel.source == texts[kernel.name]


def test_another_process_prints_the_same(texts: dict[str, str]) -> None:
    assert {k.name: k.print().kernel.source for k in KERNELS} == texts
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_ALL],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\0") == list(texts.values())


@pytest.mark.parametrize(("columns", "wide"), [(1000, False), (40000, True)])
def test_columns_are_wide_only_where_a_row_reaches_too_far(columns: int, wide: bool) -> None:
    """A row of the first axis: its columns lie as far apart as there are rows."""
    x = torch.empty(columns, 50000, device="meta")
    text = printing.print_kernel(*printing.reduced(LogSumExp, {"x": x}, 0), None).kernel.source
    (line,) = (line for line in text.splitlines() if line.strip().startswith("column ="))
    assert ("int64" in line) == wide
