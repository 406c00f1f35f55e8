"""A printed kernel that also writes its state runs as a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fusedreduce import api
from fusedreduce.reductions import Largest, LogSumExp, Moments, Welford
from tests import printing


@pytest.mark.parametrize("R", [LogSumExp, Moments, Welford, Largest], ids=lambda R: R.__name__)
def test_state_in_script(R: type, tmp_path: Path) -> None:
    task = api.ReduceTask(R, -1, False, R.record.outputs, None, state=True)
    made = printing.print_kernel(task, {"x": torch.randn(3, 30)}, "block")
    file = tmp_path / "printed.py"
    file.write_text(made.kernel.source)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(file)], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WRONG" not in ran.stdout
