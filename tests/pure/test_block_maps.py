"""Block maps against brute force: never wrong, exact where promised; lists, pictures."""

from __future__ import annotations

import random
import zlib

import pytest
import torch

from fusedreduce import masks
from fusedreduce.run.blocks import block_lists, classify, lists
from tests.masks import CASES, B, Case, H, blocks_of, bound, everywhere, places

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
LENGTHS = [(128, 128), (137, 137), (60, 137), (137, 60), (1, 130)]
BLOCKS = [(16, 16), (32, 8), (128, 64), (7, 13), (1, 1)]


@each
@pytest.mark.parametrize(("BQ", "BK"), BLOCKS)
@pytest.mark.parametrize(("Sq", "Sk"), LENGTHS)
def test_classification(case: Case, Sq: int, Sk: int, BQ: int, BK: int) -> None:
    came = classify(bound(case.mask(), Sq, Sk), B, H, Sq, Sk, BQ, BK)
    true = blocks_of(everywhere(case.seen(*places(Sq, Sk), Sq, Sk), Sq, Sk), BQ, BK)
    assert came.shape[0] in (1, B)
    assert came.shape[1] in (1, H)
    never_wrong(came.expand_as(true), true)
    if case.exact:
        assert torch.equal(came.expand_as(true), true)


def never_wrong(came: torch.Tensor, true: torch.Tensor) -> None:
    assert came.dtype == torch.int8
    assert ((came == true) | (came == 1)).all()


FLOATS = torch.randn(150, generator=torch.Generator().manual_seed(1))
WHOLE = torch.randint(-5, 90, (H, 150), generator=torch.Generator().manual_seed(2))


def number(draw: random.Random, depth: int, at):
    """A random integer expression of the indices, as a user might write it."""
    b, h, i, j = at
    if depth == 0:
        return draw.choice([i, j, i, j, h, b, WHOLE[h, j], WHOLE[h, i], draw.randint(-9, 60)])
    one, two = number(draw, depth - 1, at), number(draw, depth - 1, at)
    ways = [
        lambda: one + two, lambda: one - two, lambda: one * draw.randint(-3, 3),
        lambda: one // draw.randint(1, 20), lambda: one % draw.randint(1, 20),
        lambda: abs(one), lambda: -one, lambda: torch.maximum(one + i, two + i * 0),
        lambda: torch.minimum(one + j * 0, two + i),
        lambda: torch.where(one + i > two, one + i * 0, two + j * 0),
        lambda: (one + i) & 31, lambda: WHOLE[h, abs(one + i) % 150],
    ]  # fmt: skip
    return draw.choice(ways)()


def predicate(draw: random.Random, depth: int, at):
    i, j = at[2:]
    if depth == 0:
        left = number(draw, 2, at) + i * draw.choice([0, 1])
        right = number(draw, 1, at) + j * draw.choice([0, 1])
        ways = [
            lambda: left >= right, lambda: left < right, lambda: left == right,
            lambda: left != right, lambda: FLOATS[i] * 0.7 <= FLOATS[j] + 0.1,
            lambda: (left - right) * 0.3 > FLOATS[j],
        ]  # fmt: skip
        return draw.choice(ways)()
    one, two = predicate(draw, depth - 1, at), predicate(draw, depth - 1, at)
    return draw.choice([lambda: one & two, lambda: one | two, lambda: ~one, lambda: one ^ two])()


@pytest.mark.parametrize("seed", range(60))
def test_random_predicates(seed: int) -> None:
    def fn(b, h, i, j):
        return predicate(random.Random(seed), seed % 3, (b, h, i, j))

    Sq, Sk = random.Random(seed).choice([(96, 96), (101, 67), (1, 150)])
    BQ, BK = random.Random(seed + 1).choice([(16, 32), (7, 13), (32, 8), (1, 1)])
    mask = masks.mask(fn)
    seen = everywhere(fn(*places(Sq, Sk)), Sq, Sk)
    assert torch.equal(mask.evaluate(*places(Sq, Sk), Sq, Sk), seen)
    true = blocks_of(seen, BQ, BK)
    never_wrong(classify(bound(mask, Sq, Sk), B, H, Sq, Sk, BQ, BK).expand_as(true), true)


def test_random_predicates_are_told_apart() -> None:
    """The test above could not fail if everything were partial."""
    certain = 0
    for seed in range(60):
        mask = masks.mask(
            lambda b, h, i, j, seed=seed: predicate(random.Random(seed), seed % 3, (b, h, i, j))
        )
        certain += int((classify(bound(mask, 96, 96), B, H, 96, 96, 16, 16) != 1).sum())
    assert certain > 1000


@pytest.mark.parametrize(
    "shape", [(B, H, 60, 70), (1, H, 60, 70), (60, 70), (B, 1, 1, 70)], ids=str
)
@pytest.mark.parametrize(("BQ", "BK"), [(16, 16), (7, 64)])
def test_tensors_are_pooled(shape: tuple[int, ...], BQ: int, BK: int) -> None:
    table = torch.rand(shape) > 0.5
    table[..., :33] = True
    table[..., 48:] &= table[..., 50:51]
    mask = masks.from_anything(table, B, H, 60, 70)
    true = blocks_of(everywhere(table, 60, 70), BQ, BK)
    came = classify(bound(mask, 60, 70), B, H, 60, 70, BQ, BK)
    assert torch.equal(came.expand_as(true), true)
    assert {0, 1, 2} >= set(came.flatten().tolist())


@each
def test_lists(case: Case) -> None:
    found = classify(bound(case.mask(), 137, 90), B, H, 137, 90, 16, 8)
    made = lists(found)
    for value, name in ((1, "partial"), (2, "full")):
        for prefix, table in (("", found), ("q_", found.transpose(-1, -2))):
            counts, ids = (getattr(made, f"{prefix}{name}_{what}") for what in ("count", "ids"))
            assert counts.dtype == ids.dtype == torch.int32
            assert ids.shape == table.shape
            assert counts.shape == table.shape[:-1]
            for at in torch.cartesian_prod(*map(torch.arange, counts.shape)).tolist():
                n = int(counts[tuple(at)])
                expected = (table[tuple(at)] == value).nonzero().flatten().tolist()
                assert ids[tuple(at)][:n].tolist() == expected


@pytest.mark.parametrize(("Sq", "Sk"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_see(Sq: int, Sk: int) -> None:
    found = classify(bound(masks.causal, Sq, Sk), B, H, Sq, Sk, 4, 4)
    assert found.shape == (1, 1, -(-Sq // 4), -(-Sk // 4))
    assert lists(found).partial_ids.shape == found.shape


def test_long_sequences() -> None:
    """96000 x 96000 would be 9.2 GB of booleans; positions and blocks are a few megabytes."""
    S, size = 96000, 128
    ids = torch.randint(0, 40, (S,)).sort().values
    mask = masks.causal & masks.document(ids)
    with torch.profiler.profile(profile_memory=True) as profile:
        found = classify(mask.bind(S, S, ids.device), 1, 1, S, S, size, size)
        made = lists(found)
    largest = max(e.cpu_memory_usage for e in profile.events())
    assert largest < 30e6
    first, last = ids.reshape(-1, size)[:, 0], ids.reshape(-1, size)[:, -1]
    q, k = torch.arange(S // size)[:, None], torch.arange(S // size)
    meet = (first[:, None] <= last) & (first <= last[:, None]) & (q >= k)
    whole = (first[:, None] == last) & (first == last[:, None]) & (q > k)
    assert torch.equal(found[0, 0], (meet + 0 + (whole + 0)).to(torch.int8))
    assert made.full_count.sum() == (found == 2).sum()


def test_nothing_waits_for_the_device() -> None:
    """On a device without values, whatever would read one back fails."""
    for mask in (
        masks.causal & masks.document(torch.arange(300, device="meta")),
        masks.cu_seqlens(torch.arange(4, device="meta"), within=masks.causal),
        masks.prefix(torch.arange(2, device="meta")),
        masks.blocks(torch.ones(3, 3, device="meta", dtype=torch.int8), 100, 100, masks.causal),
    ):
        known = mask.bind(300, 300, torch.device("meta"))
        found = classify(known, B, H, 300, 300, 64, 32)
        assert found.shape[2:] == (5, 10)
        assert lists(found).full_ids.device.type == "meta"


def test_pictures(tmp_path) -> None:
    mask = masks.causal & masks.window(255, 0)
    text = mask.show(640, block=128)
    assert text.splitlines() == [
        "+....", "#+...", "+#+..", ".+#+.", "..+#+",
        "25 blocks of 128 x 128: 13 skipped, 8 partial, 4 full; 52.0 % of the work saved",
    ]  # fmt: skip
    svg = mask.svg(640)
    assert svg.count('class="partial"') == 8
    assert svg.count('class="full"') == 4
    assert masks.window(0, 0).svg(4, block=2).count("<rect") == 3
    assert "<title>causal &amp; window(255, 0): 25 blocks" in svg
    mask.png(str(tmp_path / "map.png"), 640, cell=3)
    data = (tmp_path / "map.png").read_bytes()
    start = data.index(b"IDAT")
    size = int.from_bytes(data[start - 4 : start], "big")
    pixels = zlib.decompress(data[start + 4 : start + 4 + size])
    lines = [pixels[k : k + 16] for k in range(0, len(pixels), 16)]
    assert len(lines) == 15
    assert [line[1::3] for line in lines[::3]] == [
        bytes(".+#".index(mark) for mark in row) for row in text.splitlines()[:5]
    ]


def test_a_picture_of_one_batch_and_head() -> None:
    mask = masks.prefix(torch.tensor([0, 64])) & masks.mask(lambda b, h, i, j: h != 1)
    assert mask.show(128, block=64).splitlines()[:2] == ["+.", "#+"]
    assert mask.show(128, block=64, b=1).splitlines()[:2] == ["#.", "#+"]
    assert mask.show(128, block=64, b=1, h=1).splitlines()[:2] == ["..", ".."]


def test_lists_are_remembered_only_without_tensors() -> None:
    shape, block, device = (1, 1, 64, 64), (16, 16), torch.device("cpu")
    plain = [block_lists(masks.dilated(3, 2), shape, block, device) for _ in range(2)]
    assert plain[0] is plain[1]
    shifted = masks.dilated(3, 2).shifted("q_offset")
    moved = block_lists(shifted, shape, block, device, (32, 0))
    assert moved.partial_ids[0, 0, 0, :3].tolist() == [1, 2, 3]
    ids = torch.arange(64) // 16
    mask = masks.document(ids)
    assert block_lists(mask, shape, block, device).full_count.sum() == 4
    ids.zero_()
    assert block_lists(mask, shape, block, device).full_count.sum() == 16
