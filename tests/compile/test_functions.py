"""Every printed helper compiles for sm_80, sm_90a, sm_100a in float32, for sm_90a in float64."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from fusedreduce.kernels.functions import FUNCTIONS, with_needs

TAKES_TWO = (
    "multiply", "max_propagating", "min_propagating", "floor_mod", "floor_div", "atan2", "power",
    "whole_power", "odd",
)  # fmt: skip
OWN = ("exp_scaled", "whole_power", "real_power", "random", "union")
KERNELS = tuple(name for name in FUNCTIONS if name not in OWN)

_UNARY = """
@triton.jit
def kernel_{name}(x_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=1)
    tl.store(z_ptr + i, {name}(x), mask=i < n)
"""
_BINARY = """
@triton.jit
def kernel_{name}(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=1)
    y = tl.load(y_ptr + i, mask=i < n, other=1)
    tl.store(z_ptr + i, {name}(x, y), mask=i < n)
"""


def module_of(folder: Path) -> ModuleType:
    """Every helper and a kernel for each."""
    kernels = [(_BINARY if n in TAKES_TWO else _UNARY).format(name=n) for n in KERNELS]
    return imported("printed_functions", FUNCTIONS, kernels, folder)


def imported(name: str, helpers: Iterable[str], kernels: Sequence[str], folder: Path) -> ModuleType:
    """A printed file, written to a folder and imported: Triton reads its functions' source."""
    texts = [FUNCTIONS[n].text + "\n" for n in with_needs(helpers)]
    path = folder / f"{name}.py"
    path.write_text(
        "\n\n".join(["import triton\nimport triton.language as tl\n", *texts, *kernels])
    )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return module_of(tmp_path_factory.mktemp("functions"))


@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, "fp32"), (90, "fp32"), (100, "fp32"), (90, "fp64")]
)
@pytest.mark.parametrize("name", KERNELS)
def test_helper_compiles(name: str, dtype: str, capability: int, printed: ModuleType) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    kernel = getattr(printed, f"kernel_{name}")
    pointers = {a: f"*{dtype}" for a in kernel.arg_names if a.endswith("_ptr")}
    signature = {**pointers, "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(kernel, signature, {"BLOCK": 128})
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert binary.asm["cubin"]


@pytest.mark.parametrize("dtype", ["i32", "i64"])
@pytest.mark.parametrize("name", ["floor_div", "floor_mod", "power"])
def test_integer_helper_compiles(name: str, dtype: str, printed: ModuleType) -> None:
    test_helper_compiles(name, dtype, 90, printed)
