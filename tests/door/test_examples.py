"""Each numbered example prints what its docstring says; the demo runs, and draws its picture.

Numbers agree within one in a thousand; those in the form 1e-07 (rounding errors) within a factor of
ten, since they differ from one machine to the next. Every other word agrees to the letter, a
certificate's hash excepted. `--update-golden` writes the docstrings anew.
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
HASH = re.compile(r"\bhash +[0-9a-f]{6}\b")
PROMISE = "Prints:\n"
DOCSTRINGS_OF = (3, 11)
WIDTH, LINES, SECONDS = 96, 85, 60


def promised(path: Path) -> str:
    """What stands after `Prints:` in the docstring."""
    _, found, text = (ast.get_docstring(ast.parse(path.read_text())) or "").partition(PROMISE)
    assert found, f"{path.name}: its docstring does not say what it prints"
    return text


def promise(path: Path, text: str) -> None:
    """Write text into the docstring, long lines folded."""
    folded = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 12) or [""]
    ]
    before, _, rest = path.read_text().partition(PROMISE)
    after = rest.partition('"""\n')[2]
    said = textwrap.indent("\n".join(folded), "    ")
    path.write_text(f'{before}{PROMISE}\n{said}\n"""\n{after}')


def printed(path: Path) -> str:
    """What the example prints when it is run as a reader would run it."""
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", path.relative_to(ROOT)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not ran.stderr, ran.stderr
    return ran.stdout.replace(f"{ROOT}{os.sep}", "").strip()


def difference(said: str, came: str) -> str:
    """The first place where two texts differ in more than white space and last digits."""
    one, other = (HASH.sub("hash", text).split() for text in (said, came))
    for k, (a, b) in enumerate(zip(one, other, strict=False)):
        if NUMBER.sub("#", a) != NUMBER.sub("#", b) or not all(
            map(close, NUMBER.findall(a), NUMBER.findall(b))
        ):
            around = slice(max(k - 4, 0), k + 5)
            return f"said  {' '.join(one[around])}\ncame  {' '.join(other[around])}"
    if len(one) != len(other):
        rest = slice(min(len(one), len(other)), None)
        return f"only said  {' '.join(one[rest])}\nonly came  {' '.join(other[rest])}"
    return ""


def close(said: str, came: str) -> bool:
    a, b = float(said), float(came)
    if "e" in said and "e" in came:
        return a == b or (b != 0 and 0.1 <= a / b <= 10)
    return abs(a - b) <= 1e-3 * abs(a) if "." in said else a == b


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path, request: pytest.FixtureRequest) -> None:
    if "sklearn" in path.read_text():
        pytest.importorskip("sklearn", reason="the data are scikit-learn's")
    came = printed(path)
    if request.config.getoption("--update-golden"):
        promise(path, came)
        promise(path, came := printed(path))  # line numbers have moved
    if "docstrings" in path.read_text() and sys.version_info[:2] != DOCSTRINGS_OF:
        pytest.skip("it ran; what it says are numbers of Python 3.11's docstrings")
    told = difference(promised(path), came)
    assert not told, f"{told}\n\nall of it:\n{came}"


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
        ("tensor([inf, -1.5000])", "tensor([inf,\n  -1.5001])", True),
        ("def f(x):", "def g(x):", False),
        ("one two", "one", False),
        ("hash      33380a", "hash      1883e9", True),
    ],
)
def test_the_comparison_itself(said: str, came: str, same: bool) -> None:
    assert (not difference(said, came)) is same
