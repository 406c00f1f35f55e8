"""Every test in this room is marked gpu and runs on a CUDA device, or says that there is none."""

from __future__ import annotations

import pytest
import torch


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("gpu")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda")
