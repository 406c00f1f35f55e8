"""Public reports about row operations, restated for tiles and eager; ids as in the reports."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce import pipeline
from fusedreduce.reductions import LogSumExp, Mean, Moments, Total, Welford
from fusedreduce.run import tiles
from fusedreduce.structure import rebuild
from tests import chains, printing

INF = float("inf")
IMPLEMENTATIONS = ("tiles", "eager")
each = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
CHAINS = {c.name: c for c in chains.CASES}


def ids(*names: str) -> object:
    """The reports that a test restates, in its id."""
    return pytest.mark.parametrize("report", ["+".join(names)])


def norm(x, weight, bias, eps):
    return chains.layer_norm(x, weight, bias, eps)


def unit(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    ones = torch.ones(x.shape[-1], dtype=x.dtype)
    return ones, torch.zeros_like(ones), 1e-5


def checked(name: str, args: tuple, impl: str) -> None:
    """A chain of the table on these arguments, by the accuracy rule."""
    case = CHAINS[name]
    chains.check(fr.fuse(case.fn)(*args, impl=impl), case, args)


# ---- infinities --------------------------------------------------------------------------------


@ids("S01")
@each
def test_js_divergence_of_impossible_classes(report: str, impl: str) -> None:
    p = torch.tensor([[0.0, -150.0, -300.0], [-200.0, 0.0, -1e4]])
    q = torch.tensor([[0.0, -160.0, -290.0], [-210.0, 0.0, -1e4]])
    got = fr.fuse(chains.js_divergence)(p, q, impl=impl)
    torch.testing.assert_close(got, torch.zeros(2), atol=1e-6, rtol=0)


@ids("S02", "S06", "S42")
@each
def test_log_sum_exp_of_nothing_and_of_infinities(report: str, impl: str) -> None:
    x = torch.randn(3, 4)
    x[1], x[2, 1] = -INF, INF
    got = fr.reduce(LogSumExp, x, impl=impl)
    assert got[1] == -INF
    assert got[2] == INF
    torch.testing.assert_close(got[0], torch.logsumexp(x[0], -1))
    assert fr.reduce(LogSumExp, torch.full((2,), -INF), impl=impl) == -INF
    assert fr.reduce(LogSumExp, torch.empty(0), impl=impl) == -INF
    assert fr.reduce(LogSumExp, torch.empty(3, 0), impl=impl).tolist() == [-INF] * 3
    assert fr.fuse(chains.softmax)(torch.empty(3, 0), impl=impl).shape == (3, 0)


@ids("S03")
@each
def test_softmax_whose_first_tile_is_absent(report: str, impl: str) -> None:
    x = torch.randn(2, 4096)
    x[:, :1024] = -INF
    got = fr.fuse(chains.softmax)(x, impl=impl)
    assert (got[:, :1024] == 0).all()
    torch.testing.assert_close(got, torch.softmax(x, -1))


def soft_cross_entropy(logits, target):
    lse = fr.reduce(LogSumExp, logits, keepdim=True)
    return torch.sum(torch.where(target != 0, target * (lse - logits), 0.0), -1)


@ids("S04")
@each
def test_a_class_without_probability_may_be_impossible(report: str, impl: str) -> None:
    logits, target = torch.tensor([[0.0, -INF]]), torch.tensor([[1.0, 0.0]])
    assert fr.fuse(soft_cross_entropy)(logits, target, impl=impl).item() == 0


@ids("S58")
@each
def test_soft_targets_need_not_sum_to_one(report: str, impl: str) -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    t = torch.rand(3, 5, dtype=torch.float64)
    (got,) = torch.autograd.grad(fr.fuse(soft_cross_entropy)(x, t, impl=impl).sum(), x)
    right = torch.softmax(x.detach(), -1) * t.sum(-1, keepdim=True) - t
    torch.testing.assert_close(got, right)


@ids("S05")
@pytest.mark.parametrize("n", [64, 4096])
@each
def test_layer_norm_of_huge_values(report: str, n: int, impl: str) -> None:
    """Right until the squares of the spread itself overflow; torch's own is NaN from 1e20 on."""
    x = 8.5e37 * torch.ones(2, n)
    assert (fr.fuse(norm)(x, *unit(x), impl=impl) == 0).all()
    x = 1e20 * (1 + 1e-3 * torch.randn(2, n))
    right = F.layer_norm(x.double(), (n,)).float()
    torch.testing.assert_close(fr.fuse(norm)(x, *unit(x), impl=impl), right, rtol=1e-3, atol=1e-3)


# ---- padding, tiles, sizes ---------------------------------------------------------------------


@ids("S07", "S08", "S09", "S41")
@pytest.mark.parametrize("n", [1, 3, 17, 127, 255, 256, 1023, 1536])
@each
def test_layer_norm_of_any_width(report: str, n: int, impl: str) -> None:
    x = torch.randn(3, n) + 2.0
    checked("layer_norm", (x, *unit(x)), impl)


@ids("S10", "S11")
@pytest.mark.parametrize("tile", [(1, 7), (2, 64), (3, 1000)])
def test_dependent_reductions_in_small_tiles(report: str, tile: tuple[int, int]) -> None:
    args = (torch.randn(5, 130) + 1.0,)
    task, values = printing.fused(chains.three_stages, args)
    traced = pipeline.trace_task(task, values, trust=False)
    got = tiles.run(traced.program, values, tile)
    chains.check(rebuild(traced.structure, got), CHAINS["three_stages"], args)


@ids("S16")
@each
def test_more_rows_than_a_grid_axis(report: str, impl: str) -> None:
    x = torch.randn(65_537, 3)
    checked("layer_norm", (x, *unit(x)), impl)


@ids("S17")
def test_more_rows_than_two_to_the_23(report: str) -> None:
    x = torch.ones(2**23 + 3, 1, dtype=torch.bfloat16).expand(-1, 3)
    got = fr.reduce(Total, x)
    assert got.shape == (2**23 + 3,)
    assert (got == 3).all()


@ids("S39")
@each
def test_norm_of_three_dimensions(report: str, impl: str) -> None:
    x = torch.randn(52, 7, 64)
    checked("layer_norm", (x, *unit(x)), impl)


@ids("S47")
@each
def test_group_norm_of_many_channels(report: str, impl: str) -> None:
    x = torch.randn(2, 640, 2, 2)
    checked("group_norm", (x, torch.randn(640), torch.randn(640)), impl)


@ids("S40")
@each
def test_group_norm_of_channels_last(report: str, impl: str) -> None:
    x = torch.randn(4, 32, 6, 6).to(memory_format=torch.channels_last)
    checked("group_norm", (x, torch.randn(32), torch.randn(32)), impl)


# ---- labels ------------------------------------------------------------------------------------


@ids("S18", "S19")
@pytest.mark.parametrize("ignored", [slice(0, None, 2), slice(None)])
@each
def test_ignored_labels(report: str, ignored: slice, impl: str) -> None:
    args = CHAINS["cross_entropy"].inputs(6, 10, torch.float32)
    args[1][ignored] = -100
    checked("cross_entropy", args, impl)
    loss, _ = fr.fuse(chains.cross_entropy)(*args, impl=impl)
    assert (loss[ignored] == 0).all()


@ids("S20")
@each
def test_a_label_outside_the_shard_matches_nothing(report: str, impl: str) -> None:
    x = torch.randn(3, 10)
    target = torch.tensor([10, 15, -1])[:, None]
    assert (fr.reduce(chains.Target, x, target=target, impl=impl) == 0).all()


@ids("S38")
@each
def test_transposed_logits(report: str, impl: str) -> None:
    logits = torch.randn(2, 4, 8).transpose(0, 1)
    target = torch.randint(0, 8, (4, 2))

    def loss(x, target):
        picked = fr.reduce(chains.Target, x, target=target[..., None])
        return fr.reduce(LogSumExp, x) - picked

    right = F.cross_entropy(logits.reshape(-1, 8), target.reshape(-1), reduction="none")
    torch.testing.assert_close(fr.fuse(loss)(logits, target, impl=impl), right.reshape(4, 2))


@ids("S46")
@each
def test_labels_that_are_not_aligned(report: str, impl: str) -> None:
    logits, labels = torch.randn(7, 9), torch.randint(0, 9, (8,))[1:]
    checked("loss_head", (logits, labels), impl)


# ---- gradients that come in --------------------------------------------------------------------


@ids("S21", "S22", "S25")
@pytest.mark.parametrize("upstream", ["rows", "expanded", "strided"])
@each
def test_upstream_gradients_of_any_make(report: str, upstream: str, impl: str) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    up = {
        "rows": torch.randn(4, dtype=torch.float64),
        "expanded": torch.ones((), dtype=torch.float64).expand(4),
        "strided": torch.randn(4, 3, dtype=torch.float64)[:, 1],
    }[upstream]
    (got,) = torch.autograd.grad(fr.reduce(LogSumExp, x, impl=impl), x, up)
    torch.testing.assert_close(got, up[:, None] * torch.softmax(x.detach(), -1))


@ids("S23", "S24")
@each
def test_the_residual_of_a_norm_adds_its_gradient(report: str, impl: str) -> None:
    args = CHAINS["rms_norm_residual"].inputs(3, 8, torch.float64)
    args = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in args)
    tensors = args[:3]
    ups = [torch.randn(3, 8, dtype=torch.float64) for _ in range(2)]
    fused = fr.fuse(chains.rms_norm_residual)(*args, impl=impl)
    got = torch.autograd.grad(fused, tensors, ups)
    right = torch.autograd.grad(chains.rms_reference(*args), tensors, ups)
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b)


# ---- precision and dtypes ----------------------------------------------------------------------


@ids("S31")
@each
def test_variance_of_a_far_mean(report: str, impl: str) -> None:
    x = 0.01 * torch.randn(4, 32_768) + 100
    got = fr.reduce(Moments, x, outputs="var", impl=impl)
    torch.testing.assert_close(got.double(), x.double().var(-1, correction=0), rtol=1e-2, atol=0)


@ids("S32")
@pytest.mark.parametrize("columns", [32, 1024])
def test_moments_do_not_depend_on_the_tile(report: str, columns: int) -> None:
    x = (torch.randn(3, 2048) * 0.1 + 30).bfloat16()
    for R in (Welford, Moments):
        task, values = printing.reduced(R, {"x": x})
        program = pipeline.trace_task(task, values, trust=False).program
        _, var = tiles.run(program, values, (1, columns))
        right = x.double().var(-1, correction=0)
        torch.testing.assert_close(var.double(), right, rtol=1e-2, atol=0)


@ids("S33", "S45")
@each
def test_batch_statistics(report: str, impl: str) -> None:
    sign = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0)[None, :, None, None]
    x = (5 * sign + 0.1 * torch.randn(2, 64, 32, 32)).bfloat16()
    var = fr.reduce(Moments, x, dim=(0, 2, 3), outputs="var", impl=impl)
    assert (var > 0).all()
    torch.testing.assert_close(
        var.double(), x.double().var((0, 2, 3), correction=0), rtol=1e-2, atol=0
    )
    y = torch.stack([torch.arange(k, k + 4.0) for k in (1, 2, 3, 4)])
    both = fr.fuse(lambda y: (y.var(correction=0), y.var()))(y, impl=impl)
    torch.testing.assert_close(torch.stack(both), torch.tensor([2.5, 2.5 * 16 / 15]))


@ids("S34", "S44")
@each
def test_one_value_has_no_spread(report: str, impl: str) -> None:
    x = torch.full((3, 1), 1e6)
    assert (fr.reduce(Moments, x, outputs="var", impl=impl) == 0).all()
    assert (fr.fuse(norm)(x, *unit(x), impl=impl) == 0).all()


@ids("S35")
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.half)])
@each
def test_weights_of_another_dtype(report: str, dtypes: tuple, impl: str) -> None:
    x, w = torch.randn(3, 9).to(dtypes[0]), torch.randn(9).to(dtypes[1])
    got = fr.fuse(norm)(x, w, w, 1e-5, impl=impl)
    assert got.dtype == torch.promote_types(*dtypes)
    right = F.layer_norm(x.double(), (9,), w.double(), w.double())
    worst = 1e-5 if impl == "tiles" else 0.05  # unfused, x is normalised in 16 bits
    torch.testing.assert_close(got.double(), right, rtol=worst, atol=worst)


@ids("S36", "S37")
@pytest.mark.parametrize("name", ["rms_norm_residual", "softmax"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@each
def test_sixteen_bits(report: str, name: str, dtype: torch.dtype, impl: str) -> None:
    checked(name, CHAINS[name].inputs(4, 300, dtype), impl)


# ---- merges, options, habits -------------------------------------------------------------------


@ids("S43")
def test_a_part_without_elements(report: str) -> None:
    x = torch.randn(9)
    running = fr.stream(Moments).update(x[:0]).update(x).update(x[:0])
    torch.testing.assert_close(running.value()["mean"], x.double().mean())


@ids("S26", "S27", "S57")
@each
def test_inputs_stay_and_no_gradient_is_kept(report: str, impl: str) -> None:
    args = CHAINS["cross_entropy"].inputs(4, 10, torch.float32)
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    args[0].requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            loss, _ = fr.fuse(chains.cross_entropy)(*args, impl=impl)
        assert not loss.requires_grad
    for a, b in zip(args, before, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@ids("S50", "S51")
def test_bits_repeat_and_do_not_depend_on_the_batch(report: str) -> None:
    x = torch.randn(257, 1000)
    first = fr.reduce(Mean, x * x)
    for rows in (255, 256, 257):
        assert torch.equal(fr.reduce(Mean, (x * x)[:rows]), first[:rows])


@ids("S55")
@each
def test_a_merge_that_keeps_the_left_side(report: str, impl: str) -> None:
    class Left(fr.Reduction):
        seen, value = fr.state(0.0, 0.0)

        def lift(x):
            return 1.0, x

        def merge(a, b):
            return torch.maximum(a.seen, b.seen), torch.where(a.seen > 0, a.value, b.value)

        def finish(value):
            return value

    x = torch.randn(3, 1000)
    assert torch.equal(fr.reduce(Left, x, impl=impl, trust=True), x[:, 0])


MISSING = {
    "S12": "needs 2^31 elements: tests/gpu",
    "S13": "needs 2^31 elements: tests/gpu",
    "S14": "needs 2^31 elements: tests/gpu",
    "S15": "needs 2^31 elements: tests/gpu",
    "S28": "the rounding of 16-bit gradients on the GPU: tests/gpu",
    "S29": "a loss fused with its matmul: not part of row kernels",
    "S30": "column gradients of 16-bit weights on the GPU: tests/gpu",
    "S49": "a measurement under torch.compile on the GPU",
    "S52": "a measurement on the GPU",
    "S53": "a measurement on the GPU",
    "S54": "a measurement on the GPU",
    "S56": "shards on several devices: not written yet",
}


@pytest.mark.parametrize("report", MISSING)
def test_elsewhere(report: str) -> None:
    pytest.skip(MISSING[report])
