"""One test per promise of the README; all of them in three seconds."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import fusedreduce as fr
from fusedreduce.reductions import LogSumExp, Moments, Welford


class Inverted(fr.Reduction):
    """log sum_j exp(x_j), its correction the wrong way round."""

    m = fr.Max(lambda x: x)
    s = fr.Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(new.m - old.m),
    )

    def finish(m, s):
        return m + torch.log(s)


@fr.fuse
def layer_norm(x, weight, bias, eps):
    r = fr.reduce(Moments, x, dim=-1, keepdim=True)
    return (x - r["mean"]) * torch.rsqrt(r["var"] + eps) * weight + bias


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 300, generator=torch.Generator().manual_seed(0)) * 30


def test_a_declaration_is_proved() -> None:
    assert fr.prove(LogSumExp).proved


def test_a_broken_declaration_is_refused_with_a_counterexample(x: torch.Tensor) -> None:
    law = fr.prove(Inverted).refuted[0]
    assert law.counterexample is not None
    assert law.counterexample.left[1] != law.counterexample.right[1]
    with pytest.raises(fr.errors.LawViolation, match=r"Inverted: .* does not hold(.|\n)*test_tiny"):
        fr.reduce(Inverted, x)


def test_a_reduction_equals_torch(x: torch.Tensor) -> None:
    torch.testing.assert_close(fr.reduce(LogSumExp, x), torch.logsumexp(x, -1))
    torch.testing.assert_close(fr.reduce(LogSumExp, x, impl="eager"), torch.logsumexp(x, -1))


def test_a_general_merge_equals_torch(x: torch.Tensor) -> None:
    expected = torch.var(x, 0, correction=0)
    torch.testing.assert_close(fr.reduce(Welford, x, dim=0, outputs="var"), expected)


def test_a_chain_is_one_function_and_equals_torch(x: torch.Tensor) -> None:
    weight, bias = torch.linspace(0.5, 2, 300), torch.linspace(-1, 1, 300)
    expected = F.layer_norm(x, (300,), weight, bias, 1e-5)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-5), expected)


def test_a_chain_is_differentiable(x: torch.Tensor) -> None:
    weight, bias = torch.ones(300), torch.zeros(300)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer_norm(ours, weight, bias, 1e-5).square().sum().backward()
    F.layer_norm(theirs, (300,), weight, bias, 1e-5).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_declarations_are_joined_in_one_pass(x: torch.Tensor) -> None:
    both = fr.reduce(fr.join(LogSumExp, Moments), x)
    torch.testing.assert_close(both["LogSumExp"], torch.logsumexp(x, -1))
    torch.testing.assert_close(both["Moments"]["mean"], x.mean(-1))


def test_the_printed_kernel_is_triton_text(x: torch.Tensor) -> None:
    source = layer_norm.source(x, torch.ones(300), torch.zeros(300), 1e-5)
    compile(source, "printed", "exec")
    assert source.startswith("# layer_norm / rows / forward / float32\n")
    assert "import triton.language as tl" in source
    assert "\n@triton.jit\ndef layer_norm(" in source
    assert "torch" not in source.partition("\ndef compare(")[0]


def test_nothing_falls_back_silently(x: torch.Tensor) -> None:
    with pytest.raises(fr.errors.DeviceError, match='impl="tiles"'):
        fr.reduce(LogSumExp, x, impl="triton")


def test_a_wrong_operand_is_told_by_name(x: torch.Tensor) -> None:
    with pytest.raises(fr.errors.OperandError) as told:
        fr.reduce(LogSumExp, x, weights=x)
    assert "LogSumExp has no operand `weights`" in str(told.value)
    assert "expected  x" in str(told.value)
