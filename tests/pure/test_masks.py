"""Masks: values against their meaning, composition, offsets, whatever people pass, messages."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch.nn.attention import flex_attention

from fusedreduce import errors, masks
from fusedreduce.blocks.bound import value
from fusedreduce.ir.show import show
from fusedreduce.ir.tables import number
from fusedreduce.masks.ranges import key_ranges, query_ranges
from tests.masks import CASES, CPU, B, Case, H, bound, everywhere, places

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
LENGTHS = [(40, 40), (33, 57), (57, 33), (1, 64), (130, 130)]


@each
@pytest.mark.parametrize(("Sq", "Sk"), LENGTHS)
def test_value(case: Case, Sq: int, Sk: int) -> None:
    came = case.mask().evaluate(*places(Sq, Sk), Sq, Sk)
    assert came.dtype == torch.bool
    assert torch.equal(came, everywhere(case.seen(*places(Sq, Sk), Sq, Sk), Sq, Sk))


@each
def test_composition(case: Case) -> None:
    at, lengths = places(50, 41), (50, 41)
    other = masks.window(6, 2) | masks.document(torch.arange(50) % 4)
    one, two = case.mask(), other
    a, b = (m.evaluate(*at, *lengths) for m in (one, two))
    assert torch.equal((one & two).evaluate(*at, *lengths), a & b)
    assert torch.equal((two | one).evaluate(*at, *lengths), a | b)
    assert torch.equal((~one).evaluate(*at, *lengths), ~a)
    de_morgan = (~(one & two), ~one | ~two)
    assert torch.equal(*(m.evaluate(*at, *lengths) for m in de_morgan))
    assert ~~one == one
    assert (one & one) == one


@each
@pytest.mark.parametrize(("Sq", "Sk"), [(17, 17), (13, 29), (29, 9)])
def test_ranges(case: Case, Sq: int, Sk: int) -> None:
    mask = case.mask()
    known = bound(mask, Sq, Sk)
    seen = everywhere(case.seen(*places(Sq, Sk), Sq, Sk), Sq, Sk)
    for find, name in ((key_ranges, "keys"), (query_ranges, "queries")):
        found = find(mask.expr, known.kinds)
        assert (found is not None) == (case.ranges in ("both", name))
        if found is None:
            continue
        table = seen if name == "keys" else seen.transpose(-1, -2)
        outer = "i" if name == "keys" else "j"
        for batch in range(B):
            for start in range(0, table.shape[2], 4):
                end = min(start + 4, table.shape[2])
                env = {**known.numbers, **known.tables, "b": batch, "h": 0}
                env |= {f"{outer}0": start, f"{outer}1": end}
                ends = (found.lo, found.full_lo, found.full_hi, found.hi)
                lo, full_lo, full_hi, hi = (int(value(e, env, CPU)) for e in ends)
                assert 0 <= lo <= full_lo
                assert full_hi <= hi <= table.shape[3]
                some = table[batch, 0, start:end].any(0)
                every = table[batch, 0, start:end].all(0)
                assert not some[:lo].any()
                assert not some[max(hi, 0) :].any()
                assert every[full_lo : max(full_hi, full_lo)].all()
                if "&" not in show(mask.expr):  # one bound: the ends are the true ones
                    assert some[lo : max(lo, hi)].all()
                    assert not every[:full_lo].any()
                    assert not every[max(full_hi, full_lo) :].any()


def test_ranges_refuse_what_they_cannot_know() -> None:
    half = torch.tensor([0.5, 2.5])
    for mask in (
        masks.dilated(3, 2),
        masks.mask(lambda b, h, i, j: 2 * i >= j),
        masks.mask(lambda b, h, i, j: j - 0.5 < i),
        masks.mask(lambda b, h, i, j: j < half[b]),
        masks.document(torch.arange(9)),
        ~(masks.causal & masks.window(3, None)),
    ):
        assert key_ranges(mask.expr, bound(mask, 9, 9).kinds) is None


@pytest.mark.parametrize("offsets", [(0, 0), (5, 0), (0, 7), (3, 11)])
def test_offsets_known_when_it_runs(offsets: tuple[int, int]) -> None:
    q, k = offsets
    whole = masks.causal & masks.window(6, None) & masks.document(torch.arange(60) // 5)
    named = whole.shifted("q_offset", "k_offset")
    at, lengths = places(20, 30), (20, 30)
    moved = (*at[:2], at[2] + q, at[3] + k)
    expected = whole.evaluate(*moved, 60, 60)
    assert torch.equal(whole.shifted(q, k).evaluate(*at, *lengths), expected)
    assert torch.equal(named.evaluate(*at, *lengths, q_offset=q, k_offset=k), expected)


def test_lengths_of_a_piece_end_where_it_ends() -> None:
    at = places(1, 50)
    piece = masks.causal_bottom_right.shifted("q_offset")
    assert piece.evaluate(*at, 1, 50, q_offset=49).all()
    packed = masks.cu_seqlens(torch.tensor([0, 30, 50]), within=masks.causal).shifted("q_offset")
    assert packed.evaluate(*at, 1, 50, q_offset=49)[0, 0, 0].nonzero().flatten().tolist() == [
        *range(30, 50)
    ]


def test_flex_functions_work_unchanged() -> None:
    ids = torch.arange(40) // 7

    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    def same(b, h, q_idx, kv_idx):
        return ids[q_idx] == ids[kv_idx]

    both = flex_attention.and_masks(causal, same, flex_attention.noop_mask)
    either = flex_attention.or_masks(both, lambda b, h, q_idx, kv_idx: kv_idx < 2)
    at = places(40, 40)
    expected = ((at[2] >= at[3]) & (ids[at[2]] == ids[at[3]])) | (at[3] < 2)
    assert torch.equal(masks.mask(either).evaluate(*at, 40, 40), everywhere(expected, 40, 40))
    mixed = flex_attention.and_masks(masks.causal, masks.document(ids))  # ours among them
    assert masks.mask(mixed) == masks.causal & masks.document(ids)


def test_flex_takes_our_masks() -> None:
    mask = masks.causal & masks.document(torch.arange(256) // 50)
    made = flex_attention.create_block_mask(mask, B, H, 256, 256, device="cpu", BLOCK_SIZE=64)
    seen = made.to_dense()
    assert torch.equal(seen[0, 0].bool(), torch.tensor(
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]).bool())  # fmt: skip


@pytest.mark.parametrize("size", [(32, 64), 128])
def test_block_masks(size) -> None:
    made = flex_attention.create_block_mask(
        lambda b, h, i, j: (i >= j) & (h != j), B, H, 200, 300, device="cpu", BLOCK_SIZE=size
    )
    at = places(200, 300)
    came = masks.from_anything(made, B, H, 200, 300).evaluate(*at, 200, 300)
    assert torch.equal(came, everywhere((at[2] >= at[3]) & (at[1] != at[3]), 200, 300))


def test_block_masks_from_lists() -> None:
    counts = torch.tensor([[[1, 2, 0]]])
    ids = torch.tensor([[[[1, 0, 2], [2, 0, 1], [0, 1, 2]]]])
    full = torch.tensor([[[1, 0, 0]]])
    full_ids = torch.tensor([[[[2, 0, 1], [0, 1, 2], [0, 1, 2]]]])
    made = flex_attention.BlockMask.from_kv_blocks(
        counts, ids, full, full_ids, BLOCK_SIZE=16, mask_mod=lambda b, h, i, j: (i + j) % 2 == 0
    )
    i, j = places(48, 48)[2:]
    even, q, k = (i + j) % 2 == 0, i // 16, j // 16
    partial = ((q == 0) & (k == 1)) | ((q == 1) & (k != 1))
    expected = everywhere((partial & even) | ((q == 0) & (k == 2)), 48, 48)
    mask = masks.from_anything(made, B, H, 48, 48)
    assert torch.equal(mask.evaluate(*places(48, 48), 48, 48), expected)


@pytest.mark.parametrize(
    "shape", [(B, H, 5, 7), (1, H, 1, 7), (H, 5, 1), (5, 7), (7,), (1,), ()], ids=str
)
def test_tensors_as_masks(shape: tuple[int, ...]) -> None:
    table = torch.rand(shape) > 0.5
    at = places(5, 7)
    mask = masks.from_anything(table, B, H, 5, 7)
    assert torch.equal(mask.evaluate(*at, 5, 7), everywhere(table, 5, 7))
    added = torch.randn(shape)
    scores = torch.randn(B, H, 5, 7)
    assert torch.equal(masks.from_anything(added, B, H, 5, 7)(scores, *at), scores + added)


def test_scores() -> None:
    bias, slope = torch.randn(H, 30), torch.nn.Parameter(torch.rand(H))

    class Capped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cap = torch.nn.Parameter(torch.tensor(20.0))

        def forward(self, score, b, h, i, j):
            return self.cap * torch.tanh(score / self.cap)

    def relative(table, score, b, h, i, j):
        return score + table[h][i - j] - slope[h] * (i - j).abs()

    at, scores, cap = places(12, 17), torch.randn(B, H, 12, 17), Capped()
    for fn in (cap, functools.partial(relative, bias)):
        made = masks.score(fn)
        torch.testing.assert_close(made(scores, *at), eager(fn, scores, at))
    assert masks.score(cap).tensors == (cap.cap,)
    assert [t is x for t, x in zip(masks.score(functools.partial(relative, bias)).tensors,
                                   (bias, slope), strict=True)] == [True, True]  # fmt: skip


def eager(fn, scores, at):
    if isinstance(fn, functools.partial):  # its table[h][i - j] is one index at a time
        table, (_, h, i, j) = fn.args[0], at
        distance = (i - j).abs()
        slope = next(c.cell_contents for c in fn.func.__closure__)
        return scores + table[h, i - j] - slope[h] * distance
    return fn(scores, *at)


def test_arithmetic_of_captured_numbers_is_part_of_the_function() -> None:
    scale = torch.tensor(2.0)
    made = masks.score(lambda s, b, h, i, j: s * (scale * 3 + 1))
    scale.fill_(5.0)
    assert made(torch.ones(()), 0, 0, 0, 0).item() == 16.0


def test_equal_masks_are_equal_and_share_their_tables() -> None:
    ids = torch.arange(9)
    assert masks.document(ids) == masks.document(ids)
    assert hash(masks.document(ids)) == hash(masks.document(ids))
    assert masks.document(ids) != masks.document(ids.clone())
    assert masks.causal != masks.window(3, 0)
    joined = masks.document(ids) & masks.document(ids, ids + 1) & masks.cu_seqlens(ids)
    assert len(joined.tensors) == 2
    others = tuple(t + 1 for t in joined.tensors)
    assert joined.with_tensors(others).tensors == others
    packed = masks.cu_seqlens(torch.tensor([0, 4, 9]), within=masks.causal)
    assert packed == masks.cu_seqlens(packed.tensors[0], within=masks.causal)


def test_two_functions_live_in_one_kernel() -> None:
    ids = torch.arange(9) // 4
    mask, other = bound(masks.document(ids), 9, 9), bound(masks.document(ids + 1), 9, 9)
    renamed = other.renamed("m")
    assert set(renamed.tables).isdisjoint(mask.tables)
    assert torch.equal(renamed.evaluate(*places(9, 9)), mask.evaluate(*places(9, 9)))
    assert number(renamed.expr.args[0].args[1].args[1], renamed.measures) == 1


TABLE = torch.arange(12).reshape(3, 4)
MESSAGES = [
    (lambda: masks.mask(lambda b, h, i: i), ["takes 4 arguments", "(b, h, i, j)"]),
    (lambda: masks.mask(lambda b, h, i, j: i - j), ["returns no boolean", "kind int: i - j"]),
    (lambda: masks.mask(lambda b, h, i, j: i if i > j else j), ["control flow", "torch.where"]),
    (lambda: masks.mask(lambda b, h, i, j: i < TABLE), ["without its indices", "(3, 4)"]),
    (lambda: masks.mask(lambda b, h, i, j: TABLE[h] > i), ["1 more index", "(3, 4)"]),
    (lambda: masks.mask(lambda b, h, i, j: TABLE[h, i, j] > i), ["too many indices", "at most 2"]),
    (lambda: masks.mask(lambda b, h, i, j: TABLE[h, i / 2] > i), ["not an integer", "float value"]),
    (lambda: masks.mask(lambda b, h, i, j: h.upper()), ["no operation `upper`", "test_masks.py"]),
    (lambda: masks.mask(3), ["not a function", "3"]),
    (lambda: masks.score(lambda s, b, h, i, j: i > j), ["returns a boolean", "is a mask"]),
    (lambda: masks.causal & (lambda b, h, i, j: True), ["fr.mask(function)"]),
    (lambda: masks.causal_bottom_right(0, 0, torch.arange(3), 1), ["needs the lengths"]),
    (lambda: masks.window(1.5, 0), ["left of a window", "1.5"]),
    (lambda: masks.document(TABLE[None]), ["document", "(1, 3, 4)"]),
    (lambda: masks.document(torch.ones(3)), ["integers", "float32"]),
    (lambda: masks.cu_seqlens(TABLE[0], TABLE[0, 1:]), ["numbers of segments", "4 and 3"]),
    (lambda: masks.blocks(TABLE, 0, 4), ["block_q", "positive"]),
    (lambda: bound(masks.document(TABLE[0]), 5, 5), ["too short", "to reach 4", "(4,)"]),
    (lambda: masks.from_anything(torch.ones(3, 4), 1, 1, 3, 5), ["broadcast", "(1, 1, 3, 5)"]),
    (lambda: masks.from_anything(TABLE, 1, 1, 3, 4), ["integers", "int64", "mask != 0"]),
    (lambda: masks.from_anything("causal", 1, 1, 3, 4), ["takes no such thing", "str"]),
    (
        lambda: masks.from_anything(
            flex_attention.create_block_mask(masks.causal, 1, 1, 64, 64, "cpu"), 1, 1, 65, 64
        ),
        ["BlockMask is for other lengths", "(65, 64)", "(64, 64)"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "parts"), MESSAGES, ids=lambda x: x[0] if type(x) is list else ""
)
def test_messages(wrong, parts: list[str]) -> None:
    with pytest.raises(errors.FusedReduceError) as told:
        wrong()
    for part in parts:
        assert part in str(told.value)


def test_a_tensor_elsewhere_is_told() -> None:
    mask = masks.document(torch.arange(4, device="meta"))
    with pytest.raises(errors.DeviceError, match="another device"):
        bound(mask, 4, 4)


def test_only_positions_are_moved_by_offsets() -> None:
    table = torch.rand(3, 4) > 0.5
    by_tensor = masks.from_anything(table, 1, 1, 3, 4, q_offset=9, k_offset=2)
    assert torch.equal(by_tensor.evaluate(0, 0, *places(3, 4)[2:], 3, 4), table)
    by_function = masks.from_anything(lambda b, h, i, j: i >= j, 1, 1, 3, 4, q_offset="q_offset")
    assert by_function == masks.causal.shifted("q_offset")
    assert masks.from_anything(masks.causal, 1, 1, 3, 4, k_offset=2) == masks.causal.shifted(0, 2)
    assert masks.from_anything(None, 1, 1, 3, 4, k_offset=2) is None


def test_a_value_leaves_nothing_behind() -> None:
    """No ring of references keeps tensors of all pairs until Python looks for such rings."""
    i, j = torch.arange(5)[:, None], torch.arange(5)
    gc.collect()
    gc.disable()
    try:
        found = weakref.ref(bound(masks.causal & masks.window(2, 0), 5, 5).evaluate(0, 0, i, j))
        assert found() is None
        held = i + 0
        seen = weakref.ref(held)
        bound(masks.causal, 5, 5).evaluate(0, 0, held, j)
        del held
        assert seen() is None
    finally:
        gc.enable()
