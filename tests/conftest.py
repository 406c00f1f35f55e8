"""Options and fixtures of all rooms; the kernel cache is a private folder, set at the start."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

GOLDEN = Path(__file__).parent / "golden"
CACHE = "FUSEDREDUCE_CACHE_DIR"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption("--device", default="cpu", help="where tensors of tests live (cpu)")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[CACHE] = tempfile.mkdtemp(prefix="fusedreduce-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ.pop(CACHE, ""), ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    interpreted = " (interpreted)" if os.environ.get("TRITON_INTERPRET") == "1" else ""
    return ", ".join(map(version, ("torch", "numpy", "triton"))) + interpreted


def version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"no {package}"


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Random data of each test is its own and the same in every run, alone or among others."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of --device."""
    import torch

    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel cache of this test alone, empty at first. (The session has one of its own.)"""
    monkeypatch.setenv(CACHE, str(tmp_path))
    return tmp_path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` holds text against tests/golden/name, or writes it on request."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        elif not path.exists():
            pytest.fail(f"{name}: no such golden file; run with --update-golden", pytrace=False)
        elif path.read_bytes() != text.encode():
            pytest.fail(difference(name, path.read_text(encoding="utf-8"), text), pytrace=False)

    return compare


def difference(name: str, expected: str, came: str) -> str:
    lines = difflib.unified_diff(
        expected.splitlines(), came.splitlines(), "golden", "printed now", lineterm="", n=2
    )
    told = [*lines][:80] or ["only line ends differ"]
    return "\n".join((f"{name} differs; if meant, run with --update-golden", *told))
