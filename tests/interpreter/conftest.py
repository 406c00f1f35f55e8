"""Triton reads TRITON_INTERPRET at import, so this room needs it before Python starts."""

from __future__ import annotations

import os

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET=1 is not set: run `make interpreter`")
