"""Tables of packed sequences by their printed kernel: those of `blocks.segments`, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.blocks import segments
from fusedreduce.masks.sources import Recipe
from fusedreduce.run.segment_tables import prepare
from tests import attention
from tests.segment_tables import LENGTHS, OFFSETS, check, offsets, random_offsets, recipes

CPU = torch.device("cpu")
MASKS = {
    "one": lambda a, _: fr.masks.cu_seqlens(a),
    "two": fr.masks.cu_seqlens,
    "causal inside": lambda a, _: fr.masks.cu_seqlens(a, within=fr.masks.causal),
    "causal inside of two": lambda a, b: fr.masks.cu_seqlens(a, b, within=fr.masks.causal),
    "lengths": lambda a, b: fr.masks.cu_seqlens(a, b, within=fr.masks.causal_bottom_right),
    "a table inside": lambda a, b: fr.masks.cu_seqlens(
        a, b, within=fr.masks.document(torch.arange(100) // 7)
    ),
    "two packings": lambda a, b: fr.masks.cu_seqlens(a) | fr.masks.cu_seqlens(b[::2]),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", OFFSETS)
def test_tables(name: str, dtype: torch.dtype) -> None:
    for Sq, Sk in LENGTHS:
        check(recipes(Sq, Sk), offsets(name, dtype, CPU))


@pytest.mark.parametrize("seed", range(12))
def test_random_offsets(seed: int) -> None:
    check(recipes(530, 1000), random_offsets(seed, CPU))


def test_offsets_that_need_64_bits() -> None:
    """A start that int32 cannot hold wraps, as torch's conversion does."""
    large = torch.tensor([-(2**40), 3, 2**33 + 5])
    check(recipes(9, 9), [large, large + 2])


def test_offsets_that_lie_apart() -> None:
    whole = torch.tensor([0, 9, 4, 9, 11, 9, 20, 9], dtype=torch.int32)
    assert whole[::2].tolist() == [0, 4, 11, 20]
    check(recipes(25, 25), [whole[::2], whole[1::2]])
    check(recipes(25, 25), [whole[6:7].expand(4), whole[::2]])


def test_tables_of_one_kind() -> None:
    for r in recipes(20, 23):
        check((r,), offsets("empty ones", torch.int32, CPU))


def test_narrow_offsets_by_torch() -> None:
    r = (Recipe(segments.query_ids, (0,), 9), Recipe(segments.starts, (0, 0), 9))
    narrow = torch.tensor([0, 4, 8], dtype=torch.int16)
    ids, starts = prepare(r, [narrow])([narrow])
    assert ids.tolist() == [0] * 4 + [1] * 4 + [-1]
    assert starts.tolist() == [0] * 4 + [4] * 4 + [0]


# ---- in attention --------------------------------------------------------------------------------


def plain(q: Tensor, k: Tensor, v: Tensor, mask: fr.masks.Mask) -> Tensor:
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    seen = mask.evaluate(0, 0, i, j, q.shape[2], k.shape[2])
    return attention.plain(q, k, v, seen)["out"]


@pytest.mark.parametrize("name", MASKS)
def test_attention(name: str) -> None:
    """Forward and backward; what is in the offsets is read in every call."""
    q, k, v = attention.inputs(1, 2, 1, 40, 37, 16, dtype=torch.float32)
    a, b = torch.tensor([0, 9, 9, 22, 37]), torch.tensor([2, 5, 20, 20, 33])
    mask = MASKS[name](a, b)
    for step in (0, 3, -2):
        with torch.no_grad():
            a[1:4] += step
            b[1:3] += step
        out = fr.attention(q, k, v, mask=mask, enable_gqa=True, impl="triton")
        attention.check(out, lambda q, k, v: plain(q, k, v, mask), (q, k, v), (name, step))


@pytest.mark.parametrize("name", ["one", "causal inside", "two", "lengths"])
@pytest.mark.parametrize("known", [int, torch.tensor], ids=["numbers", "tensors"])
def test_positions_that_move_on(name: str, known: Callable[[int], int | Tensor]) -> None:
    """Tables end where positions do: a launch that was kept is one of tables as long."""
    q, k, v = attention.inputs(1, 2, 2, 8, 40, 16, dtype=torch.float32)
    a, b = torch.tensor([0, 9, 9, 22, 40]), torch.tensor([2, 5, 20, 20, 40])
    mask, j = MASKS[name](a, b), torch.arange(40)
    for at in (5, 5, 20, 32, 32, 0):
        i = torch.arange(8)[:, None] + at
        seen = mask.evaluate(0, 0, i, j, 8 + at, 40)
        out = fr.attention(q, k, v, mask=mask, q_offset=known(at), impl="triton")
        right = lambda q, k, v: attention.plain(q, k, v, seen)["out"]  # noqa: B023
        attention.check(out, right, (q, k, v), (name, at))


def test_no_table_is_made_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor anew in the backward, once a call was prepared."""
    q, k, v = attention.inputs(1, 1, 1, 30, 30, 16, dtype=torch.float32)
    at = torch.tensor([0, 11, 30], dtype=torch.int32)
    mask = fr.masks.cu_seqlens(at, within=fr.masks.causal)

    def run() -> tuple[Tensor, ...]:
        out = fr.attention(q, k, v, mask=mask, impl="triton")
        return out, *torch.autograd.grad(out.sum(), (q, k, v))

    right = run()

    def never(*_: object) -> Tensor:
        raise AssertionError("a table was made by operations of torch")

    for name in ("ids", "starts", "lengths"):
        monkeypatch.setattr(segments, name, never)
    for _ in range(3):
        assert all(map(torch.equal, run(), right))


@pytest.mark.parametrize("mapped", ["q", "offsets", "both"])
def test_vmap(mapped: str) -> None:
    q, k, v = (t.detach() for t in attention.inputs(1, 1, 1, 20, 20, 16, dtype=torch.float32))
    many, rows = torch.stack([q, -q, q / 2]), torch.tensor([[0, 5, 20], [0, 0, 9], [3, 4, 18]])

    def one(q: Tensor, at: Tensor) -> Tensor:
        return fr.attention(q, k, v, mask=fr.masks.cu_seqlens(at), impl="triton")

    dims = {"q": (0, None), "offsets": (None, 0), "both": (0, 0)}[mapped]
    given = (many if dims[0] == 0 else q, rows if dims[1] == 0 else rows[0])
    each = [one(*(t[n] if d == 0 else t for t, d in zip(given, dims, strict=True)))
            for n in range(3)]  # fmt: skip
    assert torch.equal(torch.vmap(one, dims)(*given), torch.stack(each))


@pytest.mark.parametrize("name", ["causal inside", "two"])
def test_compiled(name: str) -> None:
    """An operator: it reads what the offsets hold when it runs."""
    q, k, v = attention.inputs(1, 1, 1, 20, 20, 16, dtype=torch.float32)
    a, b = torch.tensor([0, 7, 20]), torch.tensor([1, 8, 20])
    mask = MASKS[name](a, b)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fr.attention(q, k, v, mask=mask, impl="triton")

    fast = torch.compile(function, fullgraph=True, backend="aot_eager")
    for step in range(3):
        with torch.no_grad():
            a[1] += step
        found, right = fast(q, k, v), function(q, k, v)
        assert torch.equal(found, right)
        up = torch.randn_like(right)
        pairs = [torch.autograd.grad(out, (q, k, v), up) for out in (found, right)]
        assert all(map(torch.equal, *pairs))
