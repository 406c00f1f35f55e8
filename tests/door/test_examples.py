"""Each numbered example prints what its docstring says; the demo runs, and draws its picture.

Numbers agree within one in a thousand; those in the form 1e-07 (rounding errors) within a factor of
ten, since they differ from one machine to the next. Everything else agrees to the letter.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.door.house import ROOT

FOLDER = ROOT / "examples"
NUMBERED = sorted(FOLDER.glob("[0-9]*.py"))
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")
LINES, SECONDS = 85, 60


def promised(path: Path) -> str:
    """What stands after `Prints:` in the docstring."""
    _, found, text = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("Prints:\n")
    assert found, f"{path.name}: its docstring does not say what it prints"
    return textwrap.dedent(text).strip()


def printed(path: Path, **environment: str) -> str:
    """What the example prints when it is run as a reader would run it."""
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", path.relative_to(ROOT)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not ran.stderr, ran.stderr
    return ran.stdout.replace(f"{ROOT}{os.sep}", "")


def differs(said: str, came: str) -> bool:
    """Do two lines differ in more than the last digits of their numbers?"""
    if squeezed(NUMBER.sub("#", said)) != squeezed(NUMBER.sub("#", came)):
        return True
    return not all(map(close, NUMBER.findall(said), NUMBER.findall(came)))


def squeezed(text: str) -> str:
    return " ".join(text.split())


def close(said: str, came: str) -> bool:
    a, b = float(said), float(came)
    if "e" in said and "e" in came:
        return a == b or 0.1 <= abs(a / b if b else 0.0) <= 10
    return abs(a - b) <= 1e-3 * abs(a) if "." in said else a == b


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path) -> None:
    if "sklearn" in path.read_text():
        pytest.importorskip("sklearn", reason="the data are scikit-learn's")
    said, came = promised(path), printed(path).strip()
    pairs = [*zip(said.splitlines(), came.splitlines(), strict=False)]
    told = [f"said  {a}\ncame  {b}" for a, b in pairs if differs(a, b)]
    assert not told, "\n".join(told) + f"\n\nall of it:\n{came}"
    assert len(said.splitlines()) == len(came.splitlines()), came


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text), clean=False) or ""
    code = text.count("\n") - docstring.count("\n")
    assert code <= LINES, f"{path.name}: {code} lines beside its docstring"
    assert "\ndef main()" in text


def test_the_demo_runs_and_draws() -> None:
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    pytest.importorskip("matplotlib", reason="the demo draws")
    picture = ROOT / "build" / "demo.png"
    picture.unlink(missing_ok=True)
    out = printed(FOLDER / "demo.py")
    assert "Moments: proved" in out
    assert "Entropy: proved" in out
    assert picture.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("said", "came", "same"),
    [
        ("variance 36.201732", "variance 36.201733", True),
        ("variance 36.2", "variance 36.3", False),
        ("error 1e-07", "error 6e-08", True),
        ("error 1e-07", "error 3e-05", False),
        ("demo.py:41: s = 2", "demo.py:42: s = 2", False),
        ("tensor([inf, -inf])", "tensor([inf,  -inf])", True),
        ("def f(x):", "def g(x):", False),
    ],
)
def test_the_comparison_itself(said: str, came: str, same: bool) -> None:
    assert differs(said, came) is not same
