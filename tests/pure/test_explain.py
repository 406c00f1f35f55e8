"""explain: which implementation and why, what is off the fast path, blocks, memory."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
import torch

import fusedreduce as fr
from fusedreduce.plan.memory import AttentionMemory, size
from fusedreduce.reductions import LogSumExp
from fusedreduce.report.pairs import Report
from fusedreduce.report.target import target_of
from fusedreduce.runner import noting
from tests.door.house import ROOT


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling is a test of its own, in the compile room."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def line(text: str, name: str) -> str:
    (found,) = re.findall(rf"^  {name} +(.*)$", text, re.MULTILINE)
    return found


def test_nothing_runs_and_every_kernel_has_a_plan() -> None:
    q = meta(2, 4, 4096, 128)
    text = fr.explain(fr.attention, q, q, q, is_causal=True)
    for name in ("forward", "d q", "d k, d v"):
        assert re.search(r"blocks outside, tiles of \d+ queries x \d+ keys", line(text, name))
    assert text.count("not compiled: Triton interprets here") == 3
    assert line(text, "mask") == "i >= j: blocks computed in the kernel"
    assert len(re.findall(r"planned: [\d,]+ bytes shared of 232,448 on sm_90a", text)) == 3


@pytest.mark.parametrize("lengths", [(100, 300), (256, 256)], ids=str)
def test_blocks_and_work_agree_with_brute_force(lengths: tuple[int, int]) -> None:
    (Sq, Sk), B, H = lengths, 2, 3
    q, k = torch.randn(B, H, Sq, 16), torch.randn(B, H, Sk, 16)
    mask = fr.masks.window(70, 0) & fr.mask(lambda b, h, i, j: (h > 0) | (j < 64))
    with noting() as calls:
        fr.attention(q, k, k, mask=mask)
    made = Report(calls[0], target_of(calls[0].values, None))
    plan = made.plan("forward")
    _, h, i, j = torch.meshgrid(*map(torch.arange, (B, H, Sq, Sk)), indexing="ij")
    seen = (i - 70 <= j) & (j <= i) & ((h > 0) | (j < 64))
    kinds, visited = [0, 0, 0], 0
    for heads in seen.flatten(0, 1):
        for strip in heads.split(plan.QUERIES, 0):
            for block in strip.split(plan.KEYS, 1):
                kind = 2 if block.all() else 1 if block.any() else 0
                kinds[kind] += 1
                visited += block.numel() if kind else 0
    assert [made.share.skip, made.share.partial, made.share.full] == kinds
    assert made.share.pairs == visited


def test_the_memory_line_counts_what_is_saved() -> None:
    for dtype, numbers in ((torch.bfloat16, 1), (torch.float32, 2)):
        q = torch.randn(1, 2, 64, 16, dtype=dtype, requires_grad=True)
        with noting() as calls:
            fr.attention(q, q, q)
        made = Report(calls[0], target_of(calls[0].values, None))
        plan = calls[0].runner.prepare(calls[0].values, None, False).plan(calls[0].values, ("q",))
        run = plan.forward(calls[0].values)
        kept = run[len(made.pair.results) :]
        assert sum(t.numel() * t.element_size() for t in kept) == made.saved == 2 * 64 * 4 * numbers


# ---- reasons -----------------------------------------------------------------------------------


class Earliest(fr.Reduction):
    """The score of the first key that is seen."""

    first = fr.First(lambda x: x)

    def finish(first):
        return first


def reasons() -> dict[str, tuple[str, str]]:
    q = torch.randn(1, 2, 40, 16)
    odd = torch.randn(1, 2, 40, 18)[..., 1:17]
    slopes = torch.zeros(2, requires_grad=True)
    crossed = fr.score(lambda s, b, h, i, j: s + slopes[(s > 0).to(torch.int64)])
    half = q.half()
    return {
        "cpu": (fr.explain(fr.attention, half, half, half), "tiles, plain PyTorch: the tensors are "
                "on cpu"),
        "asked for": (fr.explain(fr.attention, q, q, q, impl="eager"), "eager: it was asked for"),
        "float64": (fr.explain(fr.attention, q.double(), q.double(), q.double()), "but +float64"),
        "float32": (fr.explain(fr.attention, q, q, q), r"exact \(IEEE\)"),
        "unaligned": (fr.explain(fr.attention, odd, q, q), "q is copied at every call"),
        "table": (fr.explain(fr.attention, q, q, q, score_mod=crossed),
                  "but +the gradient of s0 is summed by tiles"),
        "First": (fr.explain(fr.pairwise, Earliest, q, q), "keys must come in order"),
        "state": (fr.explain(fr.pairwise, LogSumExp, q, q, return_state=True), "state is merged"),
        "lists": (fr.explain(fr.attention, q, q, q, mask=fr.masks.document(torch.arange(40) // 9)),
                  r"m0\[i\] == m0\[j\]: lists of blocks"),
    }  # fmt: skip


def test_what_is_off_the_fast_path_is_told() -> None:
    for name, (text, part) in reasons().items():
        assert re.search(part, text), f"{name}:\n{text}"


def test_sinks_are_told() -> None:
    """They are no reason to leave the fast path."""
    sinks = torch.zeros(2, requires_grad=True)
    half = torch.randn(1, 2, 64, 64, dtype=torch.bfloat16)
    text = fr.explain(fr.attention, half, half, half, sinks=sinks)
    assert "sinks" in text
    assert "starts from the state of a key of score sinks[h]" in text
    assert "their gradient is made by query" in text
    assert "but " not in text


def test_the_fast_path_has_no_but() -> None:
    half = torch.randn(1, 2, 64, 64, dtype=torch.bfloat16)
    assert "but " not in fr.explain(fr.attention, half, half, half, is_causal=True)


def test_which_kernel_sums_a_gradient_is_told() -> None:
    half = torch.randn(1, 2, 64, 64, dtype=torch.bfloat16)
    slopes, bias, of, far = (torch.zeros(2, 64, requires_grad=True) for _ in range(4))
    whole = torch.zeros(64, 64, requires_grad=True)

    def score(s, b, h, i, j):
        s = s + slopes[h, 0] * (i - j) + bias[h, j] + of[h, i] * of[h, j]
        return s + whole[i, j] + far[h, torch.clamp(i - j, 0, 63)]

    text = fr.explain(fr.attention, half, half, half, score_mod=score)
    assert "but " not in text
    told = re.findall(r"the gradient of (s\d) is summed (.*)", text)
    own = "in a kernel of its own"
    assert told == [
        ("s0", "beside d q"), ("s1", "beside d k, d v"), ("s2", "beside d q and beside d k, d v"),
        ("s3", f"by pair, {own}"), ("s4", f"by distance, {own}"),
    ]  # fmt: skip
    assert "  d s3      blocks of both outside" in text
    assert "  d s4      diagonals of blocks outside" in text


# ---- other calls -------------------------------------------------------------------------------


@fr.fuse
def halves(x):
    return x / torch.sum(x, -1, keepdim=True)


def test_any_call_is_explained() -> None:
    x = torch.randn(8, 100)
    q = torch.randn(3, 20, 16)
    calls = {
        "halves: 8 rows of 100": fr.explain(halves, x),
        "moments: 8 rows of 100": fr.explain(fr.reduce, fr.reductions.Moments, x),
        "fused_layer_norm: 8 rows": fr.explain(fr.nn.LayerNorm(100), x),
        "SoftmaxSum over pairs": fr.explain(fr.ops.scaled_dot_product_attention, q, q, q),
    }
    for part, text in calls.items():
        assert text.startswith(part), text
        assert "  runs" in text
    both = fr.explain(lambda: fr.ops.softmax(fr.ops.log_softmax(x, -1), -1))
    assert both.count("  runs") == 2
    assert halves.explain(x) == calls["halves: 8 rows of 100"]


def test_the_backward_of_rows_is_explained_where_it_is_asked_for() -> None:
    x, w = torch.randn(64, 100, requires_grad=True), torch.ones(100, requires_grad=True)
    text = fr.explain(fr.ops.layer_norm, x, (100,), w)
    assert re.search(r"^  backward +persistent, .* bytes$", text, re.MULTILINE), text
    assert "backward" not in fr.explain(fr.ops.layer_norm, x.detach(), (100,))


def test_without_triton_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setitem(sys.modules, "triton", None)
    q = torch.randn(1, 1, 64, 16, dtype=torch.bfloat16)
    assert fr.explain(fr.attention, q, q, q).count("not compiled: Triton is not installed") == 3
    assert "not compiled: Triton is not installed" in fr.explain(fr.ops.softmax, q, -1)


def test_calls_run_again_after_an_explanation() -> None:
    x = torch.randn(3, 7)
    fr.explain(fr.ops.softmax, x, -1)
    torch.testing.assert_close(fr.ops.softmax(x, -1), torch.softmax(x, -1))


def test_mistakes_are_told() -> None:
    with pytest.raises(fr.errors.OptionError, match="ran no reduction"):
        fr.explain(torch.softmax, torch.randn(3), -1)
    with pytest.raises(fr.errors.OptionError, match="not called"):
        fr.explain(3)
    q = torch.randn(1, 1, 4, 16)
    with pytest.raises(fr.errors.OptionError, match="sm_90a"):
        fr.explain(fr.attention, q, q, q, architecture="h200")
    with pytest.raises(fr.errors.ShapeError):
        fr.explain(fr.attention, q, q[..., :8], q)


# ---- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("B", "H", "S", "scores", "two"),
    [
        (1, 1, 8192, 134.2e6, 65.5e3), (8, 32, 8192, 34.4e9, 16.8e6),
        (1, 1, 2048, 8.4e6, 0.0164e6), (1, 1, 32768, 2.147e9, 0.262e6),
    ],
)  # fmt: skip
def test_the_memory_of_attention(B: int, H: int, S: int, scores: float, two: float) -> None:
    made = AttentionMemory(B, H, S, S, "float16", 1)
    assert made.scores == pytest.approx(scores, rel=5e-3)
    assert made.two_numbers == pytest.approx(two, rel=5e-3)
    assert 2 * made.ours == made.two_numbers


def test_sizes_have_decimal_units() -> None:
    assert [size(n) for n in (0, 999, 1000, 2.5e6, 3.44e10)] == [
        "0 B", "999 B", "1.0 kB", "2.5 MB", "34.4 GB",
    ]  # fmt: skip


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("m", ROOT / "docs" / "make_attention_memory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(check=True) == 0, "run: python docs/make_attention_memory.py"
