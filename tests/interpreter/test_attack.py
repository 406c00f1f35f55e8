"""What once broke printed kernels: names, integers, the cache on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fusedreduce as fr
from fusedreduce.run import cache
from tests import printing

NAMES = ("row", "column", "start", "j", "N", "M", "tl", "x_ptr", "x_row_stride", "range", "main",
         "num_warps", "float", "square", "Δλ")  # fmt: skip
FORMS = {
    "tensor": "def f({0}, w, e):\n    return torch.softmax({0} * e, -1) * w\n",
    "number": "def f(x, w, {0}):\n    return torch.softmax(x * {0}, -1) * w\n",
    "function": "def {0}(x, w, e):\n    return torch.softmax(x * e, -1) * w\n",
    "local": "def f(x, w, e):\n    {0} = torch.logsumexp(x * e, -1, keepdim=True)\n"
    "    return torch.exp(x * e - {0}) * w\n",
}


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_names(name: str, form: str, strategy: str) -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(FORMS[form].format(name), scope)
    fn = scope[name if form == "function" else "f"]
    args = (torch.randn(3, 6), torch.randn(6), 0.5)
    torch.testing.assert_close(printing.run(*printing.fused(fn, args), strategy), fn(*args))


def narrow(a, b):
    return (a - b).float().sum(-1), (a * b + a).sum(-1), a.amax(-1), a.any(-1), a % b, a // b


@pytest.mark.parametrize("strategy", printing.STRATEGIES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32], ids=str)
def test_narrow_integers(dtype: torch.dtype, strategy: str) -> None:
    torch.manual_seed(0)
    a, b = (torch.randint(1, 120, (3, 9)).to(dtype) for _ in "ab")
    got = printing.run(*printing.fused(narrow, (a, b)), strategy)
    for g, w in zip(got, narrow(a, b), strict=True):
        torch.testing.assert_close(g, w)


def test_sums_of_large_int32() -> None:
    x = torch.full((2, 3), 2.0e9)
    got = fr.fuse(lambda x: x.to(torch.int32).sum(-1))(x, impl="triton")
    assert got.tolist() == [6_000_000_000] * 2


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\x00", b"def x(:", b""], ids=["bytes", "text", "empty"]
)
def test_a_damaged_entry_is_a_miss(damage: bytes, cache_dir: Path) -> None:
    x = torch.randn(2, 5)

    def total() -> torch.Tensor:
        cache.load.cache_clear()
        return fr.fuse(lambda x: x.sum(-1))(x, impl="triton")

    torch.testing.assert_close(total(), x.sum(-1))
    (entry,) = cache_dir.glob("*.py")
    text = entry.read_bytes()
    entry.write_bytes(damage)
    torch.testing.assert_close(total(), x.sum(-1))
    assert entry.read_bytes() == text
