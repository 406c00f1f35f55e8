"""The benchmarks of attention run tiny on the CPU, are right there, and write their pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.door.house import ROOT

PAGES = {
    "attention_gpu.py": (
        ("--shapes", "S2048", "--peers", "SDPA math"),
        ("## Forward, TFLOP/s", "## Backward", "## Causal time / full time", "## Window and docu",
         "## Decode", "## Peak memory", "SDPA math |"),
    ),
    "attention_tiles_gpu.py": (
        ("--widths", "16"),
        ("| 16 x 16 | 4 |", "| 256 x 128 | 8 |", "few products", "The plan takes query blocks"),
    ),
    "attention_keys_outer_gpu.py": ((), ("## Forward, bfloat16", "| B1 H2 S150 D16 | 64 |")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_benchmark_runs_tiny(name: str, tmp_path: Path) -> None:
    options, parts = PAGES[name]
    page = tmp_path / "page.md"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, f"benchmarks/{name}", "--check", "--results", str(page), *options],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    text = page.read_text()
    for part in (*parts, "torch ", f"`python benchmarks/{name} --check"):
        assert part in text, text


def test_a_wrong_result_is_not_timed() -> None:
    """The check of values itself, on a result that is half of the right one."""
    code = (
        "import sys, torch; sys.path.insert(0, 'benchmarks')\n"
        "from attention_peers import Case, Right\n"
        "case = Case(1, 2, 2, 64, 16, 'causal'); inputs = case.inputs(torch.device('cpu'), True)\n"
        "right = Right.of(case, inputs, torch.randn_like(inputs[0]))\n"
        "assert len(right.values) == 4 and right.complaint(right.values) == ''\n"
        "told = right.complaint(tuple(0.5 * t for t in right.values))\n"
        "assert told.count('is off by') == 4, told"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
