"""A printed file run as a script compares the kernel with the plain formula, and notices damage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import kernels
from tests.golden.kernels import Kernel
from tests.golden.pair_kernels import MERGE, Merge

KERNELS: tuple[Kernel | Merge, ...] = (*kernels.KERNELS, MERGE)
#: Kernel, and what is replaced by what: the script must notice.
DAMAGES = (
    ("log_sum_exp_loop_float32", "tl.exp(", "tl.exp2("),
    ("softmax_block_bfloat16", "tl.exp(", "tl.exp2("),
    ("layer_norm_loop_float64", " = correct_e2(e2,", " = correct_e2(d1,"),
    ("group_norm_loop_bfloat16", "tl.rsqrt(", "tl.sqrt("),
    ("cross_entropy_loop_float32", "j == target", "j != target"),
    ("Welford_block_float32", "d * d * a_n * w", "d * d * b_n"),
    ("Largest_loop_float32", "at_best > at_value", "at_best < at_value"),
    ("three_stages_block_float64", "tl.store(z_ptr", "tl.store(z_ptr + 1"),
    ("attention_full_merge_128_bfloat16", "b_o * exp_2", "b_o * exp"),
)
BY_NAME = {k.name: k for k in KERNELS}


def script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a text as a file of its own; the room's TRITON_INTERPRET=1 is inherited."""
    path = folder / "printed.py"
    path.write_text(text)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_script(kernel: Kernel | Merge, tmp_path: Path) -> None:
    made = kernel.print()
    done = script(made.kernel.source, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    for output, line in zip(made.traced.program.outputs, told, strict=True):
        assert line.startswith(f"{output.name}: largest difference ")
        assert line.endswith(": ok")


@pytest.mark.parametrize(("name", "right", "wrong"), DAMAGES, ids=[d[0] for d in DAMAGES])
def test_damage_is_noticed(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    kernel, mark, rest = BY_NAME[name].print().kernel.source.partition("\ndef compare(")
    assert right in kernel, "the kernel no longer has what this test damages"
    done = script(kernel.replace(right, wrong) + mark + rest, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
