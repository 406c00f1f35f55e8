"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from fusedreduce import __main__ as command
from fusedreduce import reductions
from fusedreduce.command import text
from tests.door.house import ROOT

FILE = """\
import torch
import fusedreduce as fr


class Inverted(fr.Reduction):
    m = fr.Max(lambda x: x)
    s = fr.Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(new.m - old.m),
    )

    def finish(m, s):
        return m + torch.log(s)


class Range(fr.Reduction):
    low = fr.Min(lambda x: x)
    high = fr.Max(lambda x: x)

    def finish(low, high):
        return high - low


@fr.fuse
def scaled(x, weight, eps):
    return x * torch.rsqrt(torch.mean(x * x, -1, keepdim=True) + eps) * weight


def bare(x):
    return x


number = 3
"""


class Told(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """run("prove", "Total") -> exit code, what was printed, what was complained."""

    def run(*arguments: str) -> Told:
        with pytest.raises(SystemExit) as left:
            command.main(arguments)
        return Told(int(left.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("command") / "mine.py"
    path.write_text(FILE)
    return str(path)


# ---- prove -------------------------------------------------------------------------------------


def test_a_proved_declaration(run) -> None:
    code, out, err = run("prove", "LogSumExp")
    assert (code, err) == (0, "")
    assert out.startswith("LogSumExp: proved over the reals")


def test_long_tells_every_law(run) -> None:
    _, out, _ = run("prove", "LogSumExp", "--long")
    assert "faithfulness of `s`: Proved" in out


def test_a_refuted_declaration(run, file: str) -> None:
    code, out, _ = run("prove", f"{file}:Inverted")
    assert code == 1
    assert out.startswith("Inverted: refuted")
    law, came, expected, line = (
        next((row for row in out.splitlines() if sign in row), "")
        for sign in ("does not hold", "  came", "  expected", "  where")
    )
    assert "`s`" in law
    assert " = " in came
    assert " = " in expected
    assert came.split("=")[-1] != expected.split("=")[-1], "both sides, with different numbers"
    assert f"{file}:" in line


def test_what_is_not_proved_warns_and_fails_only_when_strict(run, monkeypatch) -> None:
    from fusedreduce.laws.certificate import Certificate, Facts, Law, Status

    law = Law("meaning", "s", Status.UNKNOWN, "the sum of all terms", how="no time left")
    certificate = Certificate("Total", "corrected", (law,), Facts(), True)
    monkeypatch.setattr(command.api, "prove", lambda R: certificate)
    code, _, err = run("prove", "Total")
    assert (code, err) == (0, "warning: meaning of `s` is Unknown: no time left\n")
    assert run("prove", "Total", "--strict").code == 1


# ---- show --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reductions.__all__)
def test_every_shipped_declaration_is_shown(run, name: str) -> None:
    code, out, _ = run("show", name, "--shape", "8x100", "--dtype", "bfloat16")
    assert code == 0
    assert f"@triton.jit\ndef {name.lower()}(" in out
    compile(out, name, "exec")


def test_a_strategy_is_taken(run) -> None:
    assert "for start in" not in run("show", "Total", "--shape", "8x100").out
    assert "for start in" in run("show", "Total", "--shape", "8x100", "--strategy", "loop").out


def test_each_stage_is_shown(run) -> None:
    code, out, _ = run("show", "LogSumExp", "--ir", "--plan", "--proof")
    assert code == 0
    for part in ("axes ", "s * exp(old.m - new.m)", "  plan ", "  bytes ", "LogSumExp: proved"):
        assert part in out
    assert "@triton.jit" not in out


def test_a_fused_function_takes_a_shape_for_each_tensor(run, file: str) -> None:
    code, out, err = run("show", f"{file}:scaled", "--shape", "8x100", "--shape", "weight=100")
    assert (code, err) == (0, "")
    assert "def scaled(" in out
    assert "weight_ptr" in out
    assert "eps" in out


def test_plain_when_piped_and_coloured_on_a_terminal(run, monkeypatch) -> None:
    plain = run("show", "Total").out.rstrip("\n")
    assert "\x1b" not in plain
    monkeypatch.setattr(text, "coloured", lambda: True)
    assert text.statuses("Total: proved") == "Total: \x1b[32mproved\x1b[0m"
    coloured = text.highlighted(plain)
    assert "\x1b[35mdef\x1b[0m total(" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_no_color_is_respected(monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert text.coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not text.coloured()


# ---- list, derive ------------------------------------------------------------------------------


def test_list_has_every_shipped_declaration(run) -> None:
    code, out, _ = run("list")
    assert code == 0
    for name in reductions.__all__:
        R = getattr(reductions, name)
        assert name in out
        assert (R.__doc__ or "").splitlines()[0] in out


def test_a_correction_is_derived(run) -> None:
    code, out, _ = run("derive", "exp(x - m)", "--reference", "m")
    assert code == 0
    assert "sum of exp(x - m)" in out
    assert "* exp(old.m - new.m)" in out


def test_a_missing_companion_is_named(run) -> None:
    shifted = ("derive", "(x - m) * exp(x - m)", "--reference", "m")
    code, out, _ = run(*shifted)
    assert code == 1
    assert "needs the sum of exp(x - m)" in out
    assert run(*shifted, "--companion", "s=exp(x - m)").code == 0


# ---- attention, explain ------------------------------------------------------------------------


def test_attention_is_explained_with_its_memory(run, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # compiling is a test of the compile room
    code, out, err = run(
        "explain", "attention", "--shape", "1,1,8192,64", "--dtype", "bfloat16", "--causal"
    )
    assert (code, err) == (0, "")
    for part in ("i >= j: blocks computed", "49.6 % of the work saved", "d k, d v", "134.2 MB"):
        assert part in out
    assert "| 8 x 32 | 8,192 | 34.4 GB | 16.8 MB | 8.4 MB | 16.8 MB |" in out


def test_a_declaration_and_a_fused_function_are_explained(run, file: str, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    told = run("explain", "LogSumExp", "--shape", "8x100").out
    assert told.startswith("logsumexp: 8 rows of 100, computed in float32")
    assert "not compiled: Triton interprets here" in told
    told = run("explain", f"{file}:scaled", "--shape", "8x100", "--shape", "weight=100").out
    assert told.startswith("scaled: 8 rows of 100")
    assert "  plan " in told


@pytest.mark.parametrize(
    ("options", "kernels"),
    [((), ["softmaxsum_forward"]), (("--backward",), ["softmaxsum_queries", "softmaxsum_keys"])],
)
def test_the_kernels_of_attention_are_shown(run, options, kernels) -> None:
    shape = ("--shape", "1,8,512,64", "--shape", "k=1,2,512,64", "--dtype", "float16")
    code, out, err = run("show", "attention", *shape, "--causal", "--window", "128", *options)
    assert (code, err) == (0, "")
    assert re.findall(r"^def (softmaxsum_\w+)\(", out, re.MULTILINE) == kernels
    assert out.count("counts where (i - 127 <= j) & (j <= i)") == len(kernels)
    compile(out, "attention", "exec")


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = {
    "near names": (("show", "logsumex"), ("has no 'logsumex'", "did you mean LogSumExp")),
    "no file": (("prove", "nowhere.py:Total"), ("nowhere.py is not a Python file",)),
    "no name": (("prove", "{file}:Rnage"), ("has no 'Rnage'", "did you mean Range?")),
    "which name": (("prove", "{file}"), ("which declaration?", "Inverted, Range")),
    "a number": (("prove", "{file}:number"), ("number is not a declaration", "int")),
    "a function": (("show", "{file}:bare"), ("bare is not a declaration", "@fr.fuse")),
    "a fused one": (("prove", "{file}:scaled"), ("scaled is not a declaration", "show {file}")),
    "a shape": (("show", "Total", "--shape", "8x"), ("--shape is not a shape", "4096x1024")),
    "shapes": (("show", "Total", "--shape", "y=8"), ("a --shape for no argument", "shapes of x")),
    "a dtype": (("show", "Total", "--dtype", "bf16"), ("no 'bf16'", "did you mean bfloat16")),
    "heads": (
        ("explain", "attention", "--shape", "1,4,8,16", "--shape", "k=1,3,8,16"),
        ("the heads of q are no multiple of those of k",),
    ),
    "architecture": (("explain", "Total", "--architecture", "h200"), ("sm_90a", "'h200'")),
    "no maths": (("derive", "exp(x -", "--reference", "m"), ("is not an expression",)),
    "no function": (("derive", "expo(x)", "--reference", "x"), ("torch has no 'expo'", "exp")),
}


@pytest.mark.parametrize(("arguments", "parts"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_told_without_a_traceback(run, file: str, arguments, parts) -> None:
    code, out, err = run(*(a.format(file=file) for a in arguments))
    assert code == 2
    assert not out
    for part in parts:
        assert part.format(file=file) in err
    assert "Traceback" not in err


def test_the_module_runs_as_a_program() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fusedreduce", "show", "Total", "--plan"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(Path(ROOT))},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("total: 4096 rows of 1024")
