"""Pair reductions a tile at a time, forward and backward, beside their meaning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fusedreduce.errors import NotFusible
from fusedreduce.gradient.pairs import backward
from fusedreduce.pair import Result, is_vector
from fusedreduce.reductions import LogSumExp, Moments, SoftmaxEntropy, SoftmaxSum
from fusedreduce.run import eager
from fusedreduce.run.pair_tiles import forward
from tests import pairs
from tests.accuracy import require_near
from tests.pair_checks import check, derived, gradients, results, run_backward, strided
from tests.pairs import Arguments, Case, arguments, masked, scored, sizes

SOFTMAX, ENTROPY, MOMENTS, WELFORD, WEIGHTED = (
    next(c for c in pairs.DECLARED if c.name == n)
    for n in ("softmax", "entropy", "moments", "welford", "weighted")
)
DTYPES = (torch.float64, torch.float32)
CASES = [
    *pairs.DECLARED,
    *(masked(c, m) for c in pairs.DECLARED for m in pairs.MASKS),
    *(scored(c, s, m) for c in (SOFTMAX, ENTROPY, MOMENTS, WELFORD) for s in pairs.SCORES
      for m in (None, "causal", "some rows")),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_declaration_with_a_score_and_a_mask(case: Case, dtype: torch.dtype) -> None:
    check(case, arguments(case, sizes(), dtype), tile=(3, 4))


@pytest.mark.parametrize("mask", ["causal", "some rows", "some keys"])
@pytest.mark.parametrize("case", pairs.SHIPPED, ids=lambda c: c.name)
def test_every_shipped_declaration(case: Case, mask: str) -> None:
    case = replace(case, mask=pairs.MASKS[mask])
    check(case, arguments(case, sizes(), torch.float32), tile=(3, 4))


def test_only_declarations_that_say_so_have_no_backward() -> None:
    none = [c.name for c in pairs.SHIPPED if not derived(c, arguments(c, sizes(), torch.float64))]
    assert sorted(none) == ["AffineComposition", "LossStatistics", "MaxSubarray", "TopTwo"]


@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("Sq", "Sk"), [(1, 1), (3, 5), (64, 128), (113, 203), (239, 1), (1, 239)], ids=str
)
def test_lengths_and_groups(Sq: int, Sk: int, group: int) -> None:
    z = sizes(Sq, Sk, B=1, H=group * (1 + group % 2), group=group)
    for case in (masked(SOFTMAX, "causal"), scored(WEIGHTED, "alibi", "documents")):
        check(case, arguments(case, z, torch.float32))


@pytest.mark.parametrize(("D", "DV"), [(1, 1), (8, 31), (31, 8), (64, 64), (1, 64)], ids=str)
def test_widths(D: int, DV: int) -> None:
    case = scored(SOFTMAX, "bias of heads", "window")
    check(case, arguments(case, sizes(17, 29, D=D, DV=DV, group=2), torch.float32), tile=(8, 8))


@pytest.mark.parametrize("group", [1, 2])
def test_tensors_that_are_not_contiguous(group: int) -> None:
    case = scored(SOFTMAX, "bias", "causal")
    a = arguments(case, sizes(9, 13, group=group), torch.float32)
    turned = replace(
        a, q=strided(a.q), k=strided(a.k), v=strided(a.v),
        tables={n: t.t().contiguous().t() for n, t in a.tables.items()},
    )  # fmt: skip
    check(case, turned, tile=(4, 4), right_of=a)


def test_tensors_with_stride_0() -> None:
    case = masked(SOFTMAX, "causal")
    a = arguments(case, sizes(9, 13), torch.float32)
    repeated = replace(
        a, q=a.q[:, :1].expand_as(a.q), k=a.k[:1].expand_as(a.k), v=a.v[..., :1].expand_as(a.v)
    )
    one = torch.ones(())
    ups = {"out": one.expand(2, 2, 9, 8), "lse": one.expand(2, 2, 9)}
    check(case, repeated, tile=(4, 4), ups=ups)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("case", [SOFTMAX, MOMENTS, WELFORD, ENTROPY], ids=lambda c: c.name)
def test_keys_and_queries_in_no_pair_may_hold_nan(case: Case, group: int) -> None:
    case = replace(
        masked(case, "causal"), mask=lambda t: lambda b, h, i, j: (j % 3 > 0) & (i % 4 > 0)
    )
    a = arguments(case, sizes(9, 13, group=group), torch.float32)
    q, k, v = a.q.clone(), a.k.clone(), a.v.clone()
    q[:, :, ::4] = float("nan")
    k[:, :, ::3] = float("nan")
    v[:, :, ::3] = float("inf")
    check(case, replace(a, q=q, k=k, v=v), tile=(4, 4), right_of=a)
    found = pairs.meaning(case, replace(a, q=q, k=k, v=v))
    for n, r in pairs.meaning(case, a).items():
        assert torch.equal(found[n].nan_to_num(), r.nan_to_num()), n


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_scores_at_the_edges(dtype: torch.dtype) -> None:
    """Rows of the smallest finite number; rows far below where exp underflows; rows without any.

    NOTE one saved number a query (gauged) cannot hold log 7 beside -3e38; two can.
    """
    lowest = torch.finfo(torch.float32).min
    functions = {
        "lowest": lambda t: lambda s, b, h, i, j: s * 0 + lowest,
        "lowest but one": lambda t: lambda s, b, h, i, j: torch.where(j == 2, s, lowest),
        "far below": lambda t: lambda s, b, h, i, j: s - 1000.0,
        "far above": lambda t: lambda s, b, h, i, j: s + 1000.0,
        "minus infinity": lambda t: lambda s, b, h, i, j: torch.where(i == 1, -float("inf"), s),
    }
    for name, score in functions.items():
        for mask in (None, *(pairs.MASKS[m] for m in ("causal", "some rows"))):
            case = Case(name, SoftmaxSum, ("out", "lse"), score, mask)
            for gauged in (False, None) if "lowest" not in name else (False,):
                check(case, arguments(case, sizes(), dtype), (3, 4), gauged=gauged)


@pytest.mark.parametrize("case", [SOFTMAX, MOMENTS], ids=lambda c: c.name)
def test_offsets_move_what_mask_and_score_see(case: Case) -> None:
    case = scored(case, "alibi", "causal")
    a = arguments(case, sizes(5, 9), torch.float64, q_offset=3, k_offset=1)
    check(case, a, tile=(3, 4))
    moved = replace(
        case, mask=lambda t: lambda b, h, i, j: i + 2 >= j,
        score=lambda t: lambda s, b, h, i, j: s + t.slopes[h] * (j - i - 2),
    )  # fmt: skip
    expected = pairs.meaning(moved, replace(a, q_offset=0, k_offset=0))
    for n, t in results(case, a).items():
        torch.testing.assert_close(t, expected[n], equal_nan=True)


@pytest.mark.parametrize("case", [SOFTMAX, MOMENTS, WELFORD, pairs.DECLARED[0]], ids=str)
@pytest.mark.parametrize("z", [{"B": 0}, {"Sq": 0}, {"Sk": 0}], ids=str)
def test_no_batch_no_query_no_key(case: Case, z: dict[str, int]) -> None:
    a = arguments(case, sizes(**z), torch.float32)
    check(case, a)
    found = gradients(case, a, pairs.ups_of(pairs.meaning(case, a)))
    assert all(not g.any() for g in found.values())


def test_a_query_that_sees_nothing() -> None:
    case = masked(SOFTMAX, "none")
    a = arguments(case, sizes(), torch.float32)
    got = results(case, a)
    assert not got["out"].any()
    assert torch.equal(got["lse"], torch.full((2, 2, 5), -float("inf")))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("score", ["softcap", "alibi", "bias", "hidden"])
def test_sixteen_bits(dtype: torch.dtype, score: str) -> None:
    for case in (SOFTMAX, WEIGHTED, pairs.DECLARED[1], ENTROPY, MOMENTS):
        made = scored(case, score, "causal")
        a = arguments(made, sizes(33, 65, D=64, DV=64, group=2), dtype)
        check(made, replace(a, q=a.q / 8), tile=(16, 32))


@pytest.mark.parametrize("given", ["out", "lse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adjoints_that_are_not_given_are_zeros(given: str, dtype: torch.dtype) -> None:
    case = scored(SOFTMAX, "per row", "causal")
    a = arguments(case, sizes(), dtype)
    ups = {n: u.to(dtype) for n, u in pairs.ups_of(pairs.meaning(case, a)).items() if n == given}
    right = pairs.meant_gradients(
        case, a.mapped(lambda t: t.double()), {n: u.double() for n, u in ups.items()}
    )
    plain = pairs.meant_gradients(case, a, ups)
    other = {"out", "lse"} - {given}
    for absent in ({}, dict.fromkeys(other, None)):
        for n, g in gradients(case, a, {**ups, **absent}).items():
            require_near(g, right[n], plain[n], 3.0, (given, n))


class Differentiable(torch.autograd.Function):
    """A pair as torch may differentiate it, for q, k, v and one table."""

    @staticmethod
    def forward(ctx, case, q, k, v, slopes):
        ctx.case, ctx.a = case, Arguments(q, k, v, {"slopes": slopes}, {})
        return tuple(results(case, ctx.a, (2, 3)).values())

    @staticmethod
    def backward(ctx, *ups):
        given = dict(zip(ctx.case.outputs, ups, strict=True))
        found = gradients(ctx.case, ctx.a, given, (2, 3))
        return None, found["q"], found["k"], found.get("v"), found["slopes"]


@pytest.mark.parametrize("case", [SOFTMAX, ENTROPY, MOMENTS, WELFORD], ids=lambda c: c.name)
def test_gradcheck(case: Case) -> None:
    case = scored(case, "alibi", "causal")
    a = arguments(case, sizes(3, 4, group=2, D=2, DV=3), torch.float64)
    tensors = [t.requires_grad_() for t in (a.q, a.k, a.v, a.tables["slopes"])]
    assert torch.autograd.gradcheck(lambda *t: Differentiable.apply(case, *t), tensors)


def test_bits_repeat_and_tiles_agree() -> None:
    case = scored(SOFTMAX, "relative", "window")
    a = arguments(case, sizes(61, 77, group=2), torch.float32)
    ups = {n: u.float() for n, u in pairs.ups_of(pairs.meaning(case, a)).items()}

    def run(tile: tuple[int, int] | None) -> pairs.Tensors:
        return {**results(case, a, tile), **gradients(case, a, ups, tile)}

    first = run(None)
    for n, t in run(None).items():
        assert torch.equal(t, first[n]), n
    for tile in ((1, 1), (7, 5), (61, 16), (16, 77), (100, 100)):
        for n, t in run(tile).items():
            torch.testing.assert_close(t, first[n], rtol=1e-5, atol=1e-5, msg=f"{tile} {n}")


def test_no_tile_of_scores_is_larger_than_planned() -> None:
    """Memory is linear in the lengths: 4096 x 4096 scores of 8 heads would be 512 MB."""
    case = masked(SOFTMAX, "causal")
    a = arguments(case, sizes(4096, 4096, B=1, H=8, D=4, DV=4), torch.float32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            if isinstance(made, Tensor) and made.is_floating_point():
                largest = max(largest, made.numel())
            return made

    pair = pairs.pair_of(case, a)
    inputs = pairs.inputs_of(case, a, pair)
    with Watch():
        forward(pair, inputs, (2048, 1024))
    assert largest <= 2048 * 1024, largest


def test_the_state_is_a_result_too() -> None:
    case = masked(SOFTMAX, "causal")
    a = arguments(case, sizes(), torch.float32)
    pair = pairs.pair_of(case, a)
    record = pair.record
    slots = tuple(
        Result(f"state.{s.name}", pairs.var(s.name), "float32",
               is_vector(record, record.by_name[s.name]))
        for s in record.slots
    )  # fmt: skip
    got = forward(replace(pair, results=slots), pairs.inputs_of(case, a, pair))
    right = eager.pair_state(
        SoftmaxSum, a.q, a.k, a.v, lambda s, b, h, i, j: s * 0.3, lambda b, h, i, j: i >= j
    )
    assert [*right] == ["m", "s", "o"]
    for n, t in right.items():
        torch.testing.assert_close(got[f"state.{n}"], t)


@pytest.mark.parametrize("taken", [("m", "s"), ("m", "s", "o")], ids=str)
def test_the_state_has_a_gradient(taken: tuple[str, ...]) -> None:
    case = masked(SOFTMAX, "causal")
    a = arguments(case, sizes(), torch.float64)
    pair = pairs.pair_of(case, a)
    fields = pair.record.by_name
    slots = tuple(
        Result(f"state.{n}", pairs.var(n), "float64", is_vector(pair.record, fields[n]))
        for n in taken
    )
    given = a.mapped(lambda t: t.detach().requires_grad_())
    state = eager.pair_state(
        SoftmaxSum, given.q, given.k, given.v,
        lambda s, b, h, i, j: s * 0.3, lambda b, h, i, j: i >= j,
    )  # fmt: skip
    ups = {f"state.{n}": pairs.random(*state[n].shape) for n in taken}
    wanted = ("q", "k", "v") if "o" in taken else ("q", "k")
    right = torch.autograd.grad(
        [state[n] for n in taken], [getattr(given, n) for n in wanted], [*ups.values()]
    )
    inputs = pairs.inputs_of(case, a, pair)
    found = run_backward(backward(replace(pair, results=slots), ()), inputs, ups, wanted, None)
    for n, r in zip(wanted, right, strict=True):
        torch.testing.assert_close(found[n], r)


def test_a_sum_that_is_0_of_some_elements() -> None:
    """It is not taken for a sum of nothing: d (sum x)^2 / d x is 0 there."""
    import fusedreduce as fr

    class Square(fr.Reduction):
        s = fr.Sum(lambda x: x)

        def finish(s):
            return s * s

    case = Case("square", Square, ("",))
    a = arguments(case, sizes(3, 2, D=1), torch.float64)
    a.k[:, :, 0] = -a.k[:, :, 1]
    found = gradients(case, a, {"value": torch.ones(2, 2, 3, dtype=torch.float64)})
    assert not found["q"].any()


# ---- the meaning itself, beside torch ------------------------------------------------------------


def test_the_meaning_of_attention_is_torch_s() -> None:
    q, k, v = (torch.randn(2, h, 5, 4, dtype=torch.float64) for h in (4, 2, 2))
    for mask in (None, lambda b, h, i, j: i >= j):
        got = eager.pair(SoftmaxSum, q, k, v, lambda s, b, h, i, j: s * 0.5, mask)
        right = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=mask is not None, scale=0.5, enable_gqa=True
        )
        torch.testing.assert_close(got["out"], right)


def test_the_meaning_of_moments_over_some_keys() -> None:
    q, k = (torch.randn(1, 1, 4, 3, dtype=torch.float64) for _ in range(2))
    got = eager.pair(Moments, q, k, mask=lambda b, h, i, j: i >= j)
    for i in range(4):
        x = (q @ k.transpose(2, 3))[0, 0, i, : i + 1]
        torch.testing.assert_close(got["mean"][0, 0, i], x.mean())
        torch.testing.assert_close(got["var"][0, 0, i], x.var(correction=0))


def test_the_meaning_of_a_join_is_that_of_its_parts() -> None:
    import fusedreduce as fr

    q, k, v = (torch.randn(1, 2, 4, 3) for _ in range(3))
    joined = eager.pair(fr.join(SoftmaxSum, SoftmaxEntropy), q, k, v)
    torch.testing.assert_close(joined["SoftmaxSum.out"], eager.pair(SoftmaxSum, q, k, v)["out"])
    torch.testing.assert_close(joined["SoftmaxEntropy.lse"], eager.pair(LogSumExp, q, k)[""])


def test_what_is_no_matmul_is_refused() -> None:
    import fusedreduce as fr

    class Squares(fr.Reduction):
        v = fr.Payload()
        o = fr.Sum(lambda x, v: x * v * v)

        def finish(o):
            return o

    q = torch.randn(1, 1, 3, 2)
    with pytest.raises(NotFusible, match="weight times the payload"):
        eager.pair(Squares, q, q, q)


def test_a_table_that_is_too_small_is_an_index_error() -> None:
    case = Case("short", SoftmaxSum, ("out",), lambda t: lambda s, b, h, i, j: s + t.bias[i, j],
                tables={"bias": lambda z: pairs.random(z.Sq, z.Sk - 1)})  # fmt: skip
    with pytest.raises(IndexError):
        results(case, arguments(case, sizes(), torch.float32))
    far = replace(case, score=lambda t: lambda s, b, h, i, j: s + t.bias[i, 2 * j])
    with pytest.raises(IndexError):
        results(far, arguments(far, sizes(), torch.float32))
