"""Public reports about norms and the softmax family, restated for fr.ops; ids as in the reports."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedreduce import ops
from tests.accuracy import require_near
from tests.pure.test_reports import each, ids

INF = float("inf")


def grads(fn, args, up):
    """The result and the gradients of its floating arguments."""
    given = [a.detach().clone().requires_grad_() for a in args]
    y = fn(*given)
    return [y.detach(), *torch.autograd.grad(y, given, up.to(y))]


def beside_torch(ours, torchs, *args: torch.Tensor) -> None:
    """Value and gradients by the accuracy rule."""
    up = torch.randn(torchs(*args).shape, dtype=torch.float64)
    right = grads(torchs, [a.double() for a in args], up)
    plain, got = grads(torchs, args, up), grads(ours, args, up)
    for k, found in enumerate(zip(got, right, plain, strict=True)):
        require_near(*found, k=3.0 if k else 2.0, what=k)


# ---- infinities --------------------------------------------------------------------------------


@ids("S02", "S06")
@each
def test_nothing_flows_into_a_row_of_nothing(report: str, impl: str) -> None:
    x = torch.randn(3, 4)
    x[1], x[2, 1] = -INF, INF
    x.requires_grad_()
    y = ops.logsumexp(x, -1, impl=impl)
    assert y[1:].tolist() == [-INF, INF]
    (got,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(got[0], torch.softmax(x[0], -1))
    assert (got[1] == 0).all()


@ids("S42")
@each
def test_rows_of_length_zero(report: str, impl: str) -> None:
    for shape in ((0,), (3, 0), (0, 3)):
        x = torch.empty(shape)
        assert torch.equal(ops.logsumexp(x, -1, impl=impl), torch.logsumexp(x, -1))
        assert ops.softmax(x, -1, impl=impl).shape == shape
        assert ops.log_softmax(x, -1, impl=impl).shape == shape


@ids("S03")
@each
def test_softmax_whose_beginning_is_impossible(report: str, impl: str) -> None:
    x = torch.randn(2, 4096)
    x[:, :1024] = -INF
    got = ops.softmax(x, -1, impl=impl)
    assert (got[:, :1024] == 0).all()
    torch.testing.assert_close(got, torch.softmax(x, -1))


@ids("S05")
@pytest.mark.parametrize("n", [64, 4096])
@each
def test_layer_norm_of_huge_values(report: str, n: int, impl: str) -> None:
    x = 8.5e37 * torch.ones(2, n)
    assert (ops.layer_norm(x, (n,), impl=impl) == 0).all()
    x = 1e20 * (1 + 1e-3 * torch.randn(2, n))
    right = F.layer_norm(x.double(), (n,)).float()
    torch.testing.assert_close(ops.layer_norm(x, (n,), impl=impl), right, rtol=1e-3, atol=1e-3)


# ---- padding, sizes ----------------------------------------------------------------------------


@ids("S07", "S08", "S09", "S41")
@pytest.mark.parametrize("n", [1, 3, 17, 127, 255, 256, 1023, 1536])
@pytest.mark.parametrize("rows", [1, 3, 32])
def test_norms_of_any_width(report: str, n: int, rows: int) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(rows, n) + 2.0, torch.randn(n), torch.randn(n)
    beside_torch(
        lambda x, w, b: ops.layer_norm(x, (n,), w, b), lambda x, w, b: F.layer_norm(x, (n,), w, b),
        x, w, b,
    )  # fmt: skip
    if n > 1:  # of one element nothing but rounding is left of the gradient to x
        beside_torch(
            lambda x, w: ops.rms_norm(x, (n,), w), lambda x, w: torch.rms_norm(x, (n,), w), x, w
        )


@ids("S16", "S17")
def test_many_short_rows(report: str) -> None:
    x = torch.randn(65_537, 3).bfloat16()
    require_near(
        ops.layer_norm(x, (3,)), F.layer_norm(x.double(), (3,)), F.layer_norm(x, (3,)), 2.0
    )


@ids("S39")
def test_norm_of_three_dimensions(report: str) -> None:
    x, w, b = torch.randn(52, 7, 64), torch.randn(64), torch.randn(64)
    beside_torch(
        lambda x, w, b: ops.layer_norm(x, (64,), w, b),
        lambda x, w, b: F.layer_norm(x, (64,), w, b), x, w, b,
    )  # fmt: skip


@ids("S47")
@pytest.mark.parametrize("channels", [1, 640])
def test_group_norm_of_any_number_of_channels(report: str, channels: int) -> None:
    x, w, b = torch.randn(2, channels, 3, 3), torch.randn(channels), torch.randn(channels)
    groups = min(channels, 32)
    beside_torch(
        lambda x, w, b: ops.group_norm(x, groups, w, b),
        lambda x, w, b: F.group_norm(x, groups, w, b), x, w, b,
    )  # fmt: skip


@ids("S40")
@pytest.mark.parametrize("rank", [4, 5])
def test_channels_last_is_kept(report: str, rank: int) -> None:
    form = {4: torch.channels_last, 5: torch.channels_last_3d}[rank]
    x = torch.randn(4, 32, *(6, 5, 3)[: rank - 2]).to(memory_format=form).requires_grad_()
    w = torch.randn(32)
    for ours, torchs in (
        (lambda x, w: ops.group_norm(x, 8, w), lambda x, w: F.group_norm(x, 8, w)),
        (lambda x, w: ops.instance_norm(x, weight=w), lambda x, w: F.instance_norm(x, weight=w)),
    ):
        y = ours(x, w)
        (g,) = torch.autograd.grad(y.square().sum(), x)
        assert y.is_contiguous(memory_format=form)
        assert g.is_contiguous(memory_format=form)
        beside_torch(ours, torchs, x, w)


# ---- precision ---------------------------------------------------------------------------------


@ids("S30")
def test_the_gradient_of_a_16_bit_weight_is_summed_in_32(report: str) -> None:
    x, w = torch.randn(4096, 128).bfloat16(), torch.randn(128).bfloat16()
    up = torch.randn(4096, 128).bfloat16()
    right = grads(lambda x, w: torch.rms_norm(x, (128,), w), (x.double(), w.double()), up)[2]
    got = grads(lambda x, w: ops.rms_norm(x, (128,), w), (x, w), up)[2]
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), right, rtol=2**-8, atol=1e-3)


@ids("S31", "S32", "S33")
@each
def test_variance_of_a_far_mean(report: str, impl: str) -> None:
    x = 0.01 * torch.randn(4, 32_768) + 100
    var, mean = ops.var_mean(x, -1, impl=impl)
    right = torch.var_mean(x.double(), -1)
    torch.testing.assert_close(var.double(), right[0], rtol=1e-4, atol=0)
    torch.testing.assert_close(mean.double(), right[1], rtol=1e-7, atol=0)
    x = (torch.randn(3, 2048) * 0.1 + 30).bfloat16()
    y = ops.layer_norm(x, (2048,), impl=impl)
    require_near(y, F.layer_norm(x.double(), (2048,)), F.layer_norm(x, (2048,)), 2.0)


@ids("S34", "S44")
@each
def test_one_value_has_no_spread_and_no_gradient(report: str, impl: str) -> None:
    x, w, b = torch.full((3, 1), 1e6), torch.randn(1), torch.randn(1)
    up = torch.randn(3, 1)
    y, dx, dw, _ = grads(lambda x, w, b: ops.layer_norm(x, (1,), w, b, impl=impl), (x, w, b), up)
    assert (y == b).all()
    assert (dw == 0).all()
    assert (dx.abs() <= 1e-4).all()  # of terms of 1 / sqrt(eps) = 316 that cancel
    assert ops.var_mean(x, 1, correction=0)[0].eq(0).all()
    assert ops.var_mean(x, 1)[0].isnan().all()


@ids("S45", "S33")
@each
def test_biased_for_the_norm_unbiased_for_running_statistics(report: str, impl: str) -> None:
    x = torch.zeros(4, 3, 4)
    x[:, 0] = torch.stack([torch.arange(k, k + 4.0) for k in (1, 2, 3, 4)])
    ours, torchs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    got = ops.instance_norm(x, *ours, impl=impl)
    torch.testing.assert_close(got, F.instance_norm(x, *torchs))
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours[1][0], torch.tensor(0.9 + 0.1 * 5 / 3))
    # The same numbers as batch statistics: 2.5 biased, 16 / 15 of it unbiased.
    flat = x[:, 0].reshape(1, 1, -1)
    running = torch.zeros(1), torch.ones(1)
    ops.instance_norm(flat, *running, impl=impl)
    torch.testing.assert_close(running[1], torch.tensor([0.9 + 0.1 * 2.5 * 16 / 15]))


# ---- dtypes ------------------------------------------------------------------------------------

MIXED = [
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.half, torch.float32),
]


@ids("S35")
@pytest.mark.parametrize(("dtype", "other"), MIXED, ids=str)
@each
def test_weights_of_another_dtype(report: str, dtype, other, impl: str) -> None:
    x, w, b = torch.randn(3, 8, 9).to(dtype), torch.randn(8).to(other), torch.randn(8).to(other)
    calls = {
        "layer": lambda n, x, w, b: n.layer_norm(x.mT, (8,), w, b),
        "group": lambda n, x, w, b: n.group_norm(x, 2, w, b),
        "instance": lambda n, x, w, b: n.instance_norm(x, weight=w, bias=b),
    }
    for name, call in calls.items():
        args = [t.detach().requires_grad_() for t in (x, w, b)]
        y = call(_Ops(impl), *args)
        assert y.dtype == dtype, name
        found = torch.autograd.grad(y, args, torch.ones_like(y))
        assert [g.dtype for g in found] == [dtype, other, other]
        right = call(F, *(t.double() for t in (x, w, b)))
        torch.testing.assert_close(y.double(), right, rtol=2**-8, atol=1e-5, msg=name)
    y = ops.rms_norm(x.mT, (8,), w, impl=impl)
    assert y.dtype == torch.rms_norm(x.mT, (8,), w.to(dtype)).dtype == dtype


class _Ops:
    """fr.ops by one implementation."""

    def __init__(self, impl: str) -> None:
        self.impl = impl

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: getattr(ops, name)(*args, **kwargs, impl=self.impl)


@ids("S36")
@each
def test_rounding_before_or_after_the_weight(report: str, impl: str) -> None:
    """Llama's and Gemma's contracts to the last bit, computed as their authors do."""
    x, w = torch.randn(64, 4096).bfloat16(), torch.randn(4096).bfloat16()
    normal = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    contracts = {
        "torch": (normal * w.double()).bfloat16(),
        "llama": w * normal.bfloat16(),
        "gemma": (normal * (1 + w.double())).bfloat16(),
    }
    for casting, right in contracts.items():
        got = ops.rms_norm(x, (4096,), w, 1e-6, casting=casting, impl=impl)
        agree = (got == right).float().mean()
        assert agree > 0.999, (casting, agree)  # float32 meets a tie now and then
    assert not torch.equal(contracts["torch"], contracts["llama"])
    got = ops.rms_norm(x, (4096,), w, 1e-6, weight_offset=1.0, impl=impl)
    assert torch.equal(got, ops.rms_norm(x, (4096,), w, 1e-6, casting="gemma", impl=impl))
    wide = ops.rms_norm(x, (4096,), w.float(), 1e-6, casting="llama", impl=impl)
    assert wide.dtype == torch.float32


@ids("S37")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@each
def test_softmax_of_16_bits(report: str, dtype: torch.dtype, impl: str) -> None:
    x = torch.randn(4, 3000).to(dtype)
    got = ops.softmax(x, -1, impl=impl)
    require_near(got, torch.softmax(x.double(), -1), torch.softmax(x, -1), 2.0)


@ids("S49")
def test_numbers_of_a_kernel_are_float32(report: str) -> None:
    from fusedreduce.ops.rms_norm import fused_rms_norm

    x, w = torch.randn(4, 64).bfloat16(), torch.randn(64).bfloat16()
    text = fused_rms_norm.source(x, None, w, (-1,), 1e-6, 1.0, False, torch.bfloat16)
    assert "tl.float64" not in text


# ---- bits --------------------------------------------------------------------------------------


@ids("S50", "S51")
def test_bits_repeat_and_do_not_depend_on_the_batch(report: str) -> None:
    x, w, b = torch.randn(257, 512), torch.randn(512), torch.randn(512)
    up = torch.randn(257, 512)
    first = grads(lambda x, w, b: ops.layer_norm(x, (512,), w, b), (x, w, b), up)
    for _ in range(3):
        again = grads(lambda x, w, b: ops.layer_norm(x, (512,), w, b), (x, w, b), up)
        assert all(map(torch.equal, first, again))
    for rows in (255, 256):
        assert torch.equal(ops.layer_norm(x[:rows], (512,), w, b), first[0][:rows])
