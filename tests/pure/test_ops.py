"""Operations of fr.ops beside torch's: values, gradients, dtypes, bits."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from tests import chains, gradients, ops

SHAPES = [
    (3, 17, torch.float32), (2, 1, torch.float32), (5, 130, torch.float64),
    (4, 1023, torch.bfloat16), (2, 300, torch.float16), (3, 9000, torch.float32),
]  # fmt: skip
each_case = pytest.mark.parametrize("case", ops.CASES, ids=lambda c: c.name)
each_impl = pytest.mark.parametrize("impl", ["tiles", "eager"])


@each_case
@each_impl
@pytest.mark.parametrize(("rows", "columns", "dtype"), SHAPES, ids=str)
def test_values(case: chains.Case, impl: str, rows: int, columns: int, dtype: torch.dtype) -> None:
    if columns < case.smallest:
        pytest.skip(f"{case.name} needs {case.smallest} columns")
    torch.manual_seed(0)
    args = case.inputs(rows, columns, dtype)
    chains.check(fr.fuse(case.fn)(*args, impl=impl), case, args)


@each_case
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [(3, 17, torch.float32), (4, 130, torch.bfloat16)], ids=str
)
def test_called_by_itself(case: chains.Case, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Not inside a fused function: torch's dtypes, and torch's values."""
    torch.manual_seed(0)
    args = case.inputs(rows, columns, dtype)
    got, wanted = case.fn(*args), case.reference(*args)
    assert [t.dtype for t in chains.flat(got)] == [t.dtype for t in chains.flat(wanted)]
    chains.check(got, case, args)


@each_case
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(3, 17, torch.float32), (4, 70, torch.float64), (4, 130, torch.bfloat16)],
    ids=str,
)
def test_gradients(case: chains.Case, rows: int, columns: int, dtype: torch.dtype) -> None:
    if case.name == "normalize_inf" and dtype.itemsize == 2:
        pytest.skip("the largest value stands twice: torch shares its gradient out")
    torch.manual_seed(0)
    gradients.check(case, case.inputs(rows, columns, dtype), impl="tiles")


@each_case
def test_gradcheck(case: chains.Case) -> None:
    torch.manual_seed(0)
    args = tuple(
        t.requires_grad_() if t.is_floating_point() else t for t in case.inputs(2, 4, torch.float64)
    )
    assert torch.autograd.gradcheck(case.fn, args)
    assert torch.autograd.gradgradcheck(case.fn, args)


@each_case
def test_bits_repeat(case: chains.Case) -> None:
    torch.manual_seed(0)
    args = case.inputs(5, 300, torch.float32)
    first = chains.flat(case.fn(*args))
    for _ in range(3):
        assert all(map(torch.equal, first, chains.flat(case.fn(*args))))


ROWWISE = [c for c in ops.CASES if "first" not in c.name and "all" not in c.name]


@pytest.mark.parametrize(
    "case", [c for c in ROWWISE if c.name != "normalize_inf"], ids=lambda c: c.name
)
def test_a_row_does_not_depend_on_its_batch(case: chains.Case) -> None:
    torch.manual_seed(0)
    args = case.inputs(7, 300, torch.float32)
    whole = chains.flat(case.fn(*args))
    batched = {"residual": 2, "two": 2}.get(case.inputs.__name__, 1)
    for k in (1, 6):
        part = case.fn(*(a[k : k + 1] if i < batched else a for i, a in enumerate(args)))
        for a, b in zip(whole, chains.flat(part), strict=True):
            assert torch.equal(a[k : k + 1], b)
