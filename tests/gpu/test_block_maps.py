"""Block maps and lists by kernels on a GPU: those that torch's operations make, to the bit."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.blocks.lists import lists
from fusedreduce.run.pair_lists import BlockMap, Listing
from tests.block_maps import LENGTHS, MASKS, PRINTED, prepared

GPU = torch.device("cuda")


@pytest.mark.parametrize(("Sq", "Sk"), [*LENGTHS, (1000, 20000)])
@pytest.mark.parametrize("name", MASKS)
def test_map_and_lists(name: str, Sq: int, Sk: int) -> None:
    made = prepared(name, Sq, Sk, GPU)
    for direction, mark in (("forward", ""), ("keys", "q_")):
        plan = made.plan(direction)
        found = BlockMap(made.pair, made.inputs, plan)
        right = found.classified(made.inputs)
        assert (found.launch is not None) == (name in PRINTED)
        assert torch.equal(found(made.inputs), right)
        listed, wanted = Listing(made.pair, made.inputs, plan)(made.inputs), lists(right)
        for kind in ("partial", "full"):
            counts = getattr(wanted, f"{mark}{kind}_count").flatten(0, 1)
            ids = getattr(wanted, f"{mark}{kind}_ids").flatten(0, 1)
            assert torch.equal(listed[f"{kind}_counts"], counts)
            there = torch.arange(ids.shape[-1], device=GPU) < counts[..., None]
            came = listed[f"{kind}_ids"].where(there, 0)
            assert torch.equal(came, ids.where(there, 0))
