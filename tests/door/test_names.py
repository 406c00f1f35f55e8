"""Every public name has a docstring with an example, and every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re

import pytest

import fusedreduce
from tests.door.house import ROOT, Module, modules

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_ONLY_FIRST_FAILURE
NAMES = [name for name in getattr(fusedreduce, "__all__", ()) if name != "__version__"]
WITH_EXAMPLES = [module for module in modules() if ">>>" in module.text]


def test_the_front_door_lists_its_names() -> None:
    assert NAMES, "fusedreduce has no __all__"
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_shows_an_example(name: str) -> None:
    value = getattr(fusedreduce, name)
    docstring = inspect.getdoc(value) or ""
    assert ">>>" in docstring, f"fusedreduce.{name}: no example (>>>) in its docstring"


@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=lambda module: module.name)
def test_examples_in_docstrings_run(module: Module) -> None:
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in doctest.DocTestFinder().find(importlib.import_module(module.import_name)):
        runner.run(test, out=told.append)
    assert not runner.failures, "\n" + "".join(told)
    assert runner.tries, f"{module.file}: no example was found, though one is written"


def test_package_and_project_agree_on_the_version() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    declared = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert declared
    assert fusedreduce.__version__ == declared[1]
