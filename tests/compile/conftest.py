"""An interpreting process cannot compile, so this room runs apart from the interpreter's."""

from __future__ import annotations

import os

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("no compiler under TRITON_INTERPRET=1: run `make compile`")
