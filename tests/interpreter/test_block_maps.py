"""Block maps and lists by printed kernels: those of `classify`, to the bit."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.blocks.lists import lists
from fusedreduce.run.pair_lists import BlockMap, Listing, listing
from tests.block_maps import LENGTHS, MASKS, PRINTED, prepared

CPU = torch.device("cpu")


@pytest.mark.parametrize(("Sq", "Sk"), LENGTHS)
@pytest.mark.parametrize("name", MASKS)
def test_map(name: str, Sq: int, Sk: int) -> None:
    made = prepared(name, Sq, Sk, CPU)
    for direction in ("forward", "keys"):
        found = BlockMap(made.pair, made.inputs, made.plan(direction))
        assert (found.launch is not None) == (name in PRINTED)
        assert torch.equal(found(made.inputs), found.classified(made.inputs)), direction


@pytest.mark.parametrize("direction", ["forward", "keys"])
def test_lists(direction: str) -> None:
    made = prepared("documents and causal", 300, 300, CPU)
    found = Listing(made.pair, made.inputs, made.plan(direction))
    right = lists(found.map.classified(made.inputs))
    mark = "q_" if direction == "keys" else ""
    for name, ids in found(made.inputs).items():
        if not name.endswith("ids"):
            continue
        kind = name.removesuffix("_ids")
        counts = getattr(right, f"{mark}{kind}_count").flatten(0, 1)
        assert torch.equal(found(made.inputs)[f"{kind}_counts"], counts)
        wanted = getattr(right, f"{mark}{kind}_ids").flatten(0, 1)
        for p, n in ((p, n) for p in range(len(ids)) for n in range(ids.shape[1])):
            assert torch.equal(ids[p, n, : counts[p, n]], wanted[p, n, : counts[p, n]])


def test_rows_of_lists_longer_than_a_tile() -> None:
    """Of 300 inner blocks, by steps of 1 and by longer ones."""
    made = prepared("causal", 70, 70, CPU)
    map = torch.randint(0, 3, (2, 5, 300), dtype=torch.int8)
    for keys in (False, True):
        sizes, steps = ((2, 300, 5), (1500, 1, 300)) if keys else ((2, 5, 300), (1500, 300, 1))
        found = listing(made.inputs, sizes, steps)({"map": map}, {})
        seen = map.mT if keys else map
        for value, kind in ((1, "partial"), (2, "full")):
            counts, ids = found[f"{kind}_counts"], found[f"{kind}_ids"]
            assert torch.equal(counts, (seen == value).sum(-1, dtype=torch.int32))
            for p in range(2):
                for n in range(sizes[1]):
                    right = (seen[p, n] == value).nonzero().flatten().int()
                    assert torch.equal(ids[p, n, : counts[p, n]], right)


def test_offsets_move_the_map() -> None:
    for at in (0, 64, 170):
        made = prepared("documents and causal", 130, 300, CPU, q_offset=at)
        found = BlockMap(made.pair, made.inputs, made.plan("forward"))
        assert torch.equal(found(made.inputs), found.classified(made.inputs))
