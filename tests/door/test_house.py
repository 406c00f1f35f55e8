"""Each file says in one line what it is for and stays small; the map of the house is current."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize

from tests.door.house import ROOT, modules

LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60
OWNERLESS = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(\w)")


def test_every_module_says_what_it_is_for() -> None:
    silent = [module.file for module in modules() if not module.first_line]
    assert not silent, "no first docstring line: " + ", ".join(silent)


def test_files_are_small() -> None:
    long = [
        f"{module.file}: {lines} lines"
        for module in modules()
        if (lines := module.text.count("\n")) > LINES_OF_A_FILE
    ]
    assert not long, f"over {LINES_OF_A_FILE} lines; split by what a reader looks for: {long}"


def test_functions_are_small() -> None:
    long = [
        f"{module.file}:{function.lineno} {function.name}: {lines} lines"
        for module in modules()
        for function in module.functions()
        if (lines := length(function)) > LINES_OF_A_FUNCTION
    ]
    assert not long, f"over {LINES_OF_A_FUNCTION} lines, docstring not counted: {long}"


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring


def test_work_left_to_do_has_an_owner() -> None:
    orphans = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
        for room in ("fusedreduce", "tests", "docs", "examples", "benchmarks")
        for path in sorted((ROOT / room).rglob("*.py"))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        if token.type == tokenize.COMMENT and OWNERLESS.search(token.string)
    ]
    assert not orphans, "write TODO(name): " + "\n".join(orphans)


def test_the_map_is_current() -> None:
    run = subprocess.run(
        [sys.executable, "docs/make_map.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
