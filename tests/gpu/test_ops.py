"""Operations of fr.ops on the device: values by both strategies, gradients, autocast, layouts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedreduce import ops as public
from tests import chains, gradients, ops, printing
from tests.gpu.test_rows import moved

each_case = pytest.mark.parametrize("case", ops.CASES, ids=lambda c: c.name)


@pytest.mark.parametrize("strategy", [*printing.STRATEGIES, None])
@each_case
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (3, 17, torch.float32), (2, 1, torch.float32), (5, 130, torch.float64),
        (300, 1025, torch.float32), (33, 1023, torch.bfloat16), (7, 20001, torch.bfloat16),
        (16, 4096, torch.float16),
    ],
    ids=str,
)  # fmt: skip
def test_values(
    case: chains.Case, rows: int, columns: int, dtype: torch.dtype, strategy: str | None, device
) -> None:
    if columns < case.smallest:
        pytest.skip(f"{case.name} needs {case.smallest} columns")
    longest = 200 if case.name in ops.IMAGES or "all" in case.name else 5000
    if strategy == "block" and columns > longest:
        pytest.skip("a row that does not fit on chip")
    torch.manual_seed(0)
    args = moved(case.inputs(rows, columns, dtype), device)
    chains.check(printing.run(*printing.fused(case.fn, args), strategy), case, args)


@each_case
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(5, 130, torch.float64), (300, 1025, torch.float32), (129, 1023, torch.bfloat16),
     (256, 4096, torch.bfloat16)],
    ids=str,
)  # fmt: skip
def test_gradients(case: chains.Case, rows: int, columns: int, dtype: torch.dtype, device) -> None:
    if case.name in ops.IMAGES:
        columns //= 15  # its row is 15 times as long
    if case.name == "normalize_inf" and dtype.itemsize == 2:
        pytest.skip("the largest value stands twice: torch shares its gradient out")
    torch.manual_seed(0)
    gradients.check(case, moved(case.inputs(rows, columns, dtype), device))


CALLS = {
    "softmax": (lambda n, x, w: n.softmax(x, -1), F),
    "log_softmax": (lambda n, x, w: n.log_softmax(x, -1), F),
    "softmin": (lambda n, x, w: n.softmin(x, -1), F),
    "logsumexp": (lambda n, x, w: n.logsumexp(x, -1), torch),
    "layer_norm": (lambda n, x, w: n.layer_norm(x, (64,), w), F),
    "rms_norm": (lambda n, x, w: n.rms_norm(x, (64,), w), torch),
    "group_norm": (lambda n, x, w: n.group_norm(x, 8, w), F),
    "instance_norm": (lambda n, x, w: n.instance_norm(x[..., None].mT), F),
    "var_mean": (lambda n, x, w: n.var_mean(x, -1), torch),
    "normalize": (lambda n, x, w: n.normalize(x), F),
    "cosine_similarity": (lambda n, x, w: n.cosine_similarity(x, w), F),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_autocast(name: str, dtype: torch.dtype, device) -> None:
    """torch's result dtypes; the gradient in the input's own."""
    call, theirs = CALLS[name]
    x = torch.randn(32, 64, device=device).to(dtype).requires_grad_()
    w = torch.randn(64, device=device).to(dtype)
    if name == "instance_norm":
        x = x.detach()[:, None].expand(32, 3, 64).clone()[..., None].requires_grad_()
        call = lambda n, x, w: n.instance_norm(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got, wanted = chains.flat(call(public, x, w)), chains.flat(call(theirs, x, w))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2**-7, atol=1e-2)
    (g,) = torch.autograd.grad(got, x, [torch.ones_like(t) for t in got])
    assert g.dtype == dtype


@pytest.mark.parametrize("name", ["group_norm", "instance_norm"])
def test_channels_last(name: str, device) -> None:
    x = torch.randn(4, 32, 24, 24, device=device).to(memory_format=torch.channels_last)
    w = torch.randn(32, device=device)
    x.requires_grad_()
    if name == "group_norm":
        got, wanted = public.group_norm(x, 8, w, w), F.group_norm(x, 8, w, w)
    else:
        got, wanted = (n.instance_norm(x, weight=w, bias=w) for n in (public, F))
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    up = torch.randn_like(wanted)
    (g,), (r,) = (torch.autograd.grad(y, x, up) for y in (got, wanted))
    torch.testing.assert_close(g, r, rtol=1e-4, atol=1e-4)


def test_bits_repeat(device) -> None:
    """S50 as it was reported: the sums over 8192 rows, again and again."""
    args = moved(ops.BY_NAME["layer_norm"].inputs(8192, 2048, torch.bfloat16), device)
    args = tuple(t.requires_grad_() for t in args)
    up = torch.randn(8192, 2048, device=device, dtype=torch.bfloat16)

    def run() -> list[torch.Tensor]:
        y = ops.BY_NAME["layer_norm"].fn(*args)
        return [y, *torch.autograd.grad(y, args, up)]

    first = run()
    for _ in range(100):
        assert all(map(torch.equal, first, run()))


def test_more_rows_than_two_to_the_23(device) -> None:
    """S17: every row agrees with the first one, which it repeats."""
    x = torch.randn(1, 5, device=device).bfloat16().expand(2**23 + 3, 5).contiguous()
    y = public.layer_norm(x, (5,))
    assert torch.equal(y, y[:1].expand_as(y))
