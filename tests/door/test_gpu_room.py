"""The room of the GPU collects on any machine and says what is missing where nothing can run."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from tests.door.house import ROOT


def test_the_gpu_room_collects_and_skips_with_a_reason() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "tests/gpu"]
    command += ["--collect-only"] if torch.cuda.is_available() else []
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert torch.cuda.is_available() or "no CUDA device" in run.stdout
