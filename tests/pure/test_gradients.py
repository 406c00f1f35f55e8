"""The derived backward on the CPU: every fused function, for every floating argument."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce import derivative, pipeline
from fusedreduce.reductions import LogSumExp, Moments
from tests import chains, gradients, printing, references

CASES = (*chains.CASES, *references.CASES)
RECOMPUTED: set[str] = set()  # by differentiating the meaning


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (3, 17, torch.float64), (4, 70, torch.float32), (130, 33, torch.float32),
        (3, 40, torch.bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_gradients(case: chains.Case, rows: int, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gradients.check(case, case.inputs(rows, columns, dtype))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_backward_is_derived(case: chains.Case) -> None:
    task, values = printing.fused(case.fn, case.inputs(8, 20, torch.float32))
    program = pipeline.trace_task(task, values, trust=False).program
    floating = tuple(i.name for i in program.inputs if i.kind == "float" and not i.number)
    made = derivative.derived(program, floating)
    assert isinstance(made, str) == (case.name in RECOMPUTED), made


def test_gradcheck() -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    w, b = (torch.randn(7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    layer_norm = fr.fuse(chains.layer_norm)
    assert torch.autograd.gradcheck(lambda *a: layer_norm(*a, 1e-5), (x, w, b))
    assert torch.autograd.gradgradcheck(lambda *a: layer_norm(*a, 1e-5), (x, w, b))
    assert torch.autograd.gradcheck(lambda t: fr.reduce(LogSumExp, t, dim=0), (x,))
    assert torch.autograd.gradcheck(lambda t: fr.reduce(Moments, t)["var"], (x,))


def test_absent_rows_get_no_gradient() -> None:
    x = torch.randn(3, 9, dtype=torch.float64)
    x[1] = float("-inf")
    x[2, :5] = float("-inf")
    x.requires_grad_()
    (got,) = torch.autograd.grad(fr.reduce(LogSumExp, x).nan_to_num(0.0, 0.0, 0.0).sum(), x)
    assert torch.equal(got[1], torch.zeros(9, dtype=torch.float64))
    assert torch.equal(got[2, :5], torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(got[0], torch.softmax(x[0].detach(), -1))


@pytest.mark.parametrize("shape", ["expanded", "transposed", "none"])
def test_upstream_layouts(shape: str) -> None:
    """A stride-0 or transposed upstream gradient, and an output that nobody used."""
    x = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    softmax = fr.fuse(lambda x: {"y": torch.softmax(x, -1), "lse": torch.logsumexp(x, -1)})

    def loss(result):
        if shape == "expanded":
            return result["y"].sum() * 2.0 + result["lse"].sum()
        if shape == "transposed":
            return (result["y"].t() * torch.arange(48.0).reshape(8, 6)).sum()
        return result["lse"].sum()

    plain = {"y": torch.softmax(x, -1), "lse": torch.logsumexp(x, -1)}
    (got,) = torch.autograd.grad(loss(softmax(x)), x)
    (want,) = torch.autograd.grad(loss(plain), x)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_slopes_keep_their_digits(dtype: torch.dtype) -> None:
    """Each pair counts by its distance: what rounding did to <d out, out> is not to be added up."""
    torch.manual_seed(0)
    q, k, v, up = (torch.randn(1, 2, 700, 32).to(dtype) for _ in range(4))
    slopes = 0.1 * torch.randn(2)

    def gradient(wide: bool) -> torch.Tensor:
        given = [t.double() if wide else t for t in (q, k, v, up)]
        table = (slopes.double() if wide else slopes.clone()).requires_grad_()
        out = fr.attention(*given[:3], is_causal=True,
                           score_mod=lambda s, b, h, i, j: s - table[h] * (i - j))  # fmt: skip
        return torch.autograd.grad(out, table, given[3])[0].double()

    found, right = gradient(False), gradient(True)
    assert float((found - right).abs().max()) <= 1e-3 * float(right.abs().max())


def test_true_class_gradient_keeps_its_digits() -> None:
    """p - 1 at p = 0.999 in bfloat16: formed in float32, rounded once."""
    x = torch.zeros(1, 32000)
    x[0, 5] = 17.3
    x = x.bfloat16().requires_grad_()
    target = torch.tensor([5])

    @fr.fuse
    def loss(x, target):
        r = fr.reduce(chains.Entropy, x, outputs="lse")
        return r - fr.reduce(chains.Target, x, target=target[:, None])

    (got,) = torch.autograd.grad(loss(x, target).sum(), x)
    p = torch.softmax(x.detach().double(), -1)[0, 5]
    assert abs(float(got[0, 5]) / float(p - 1.0) - 1.0) < 4e-3
