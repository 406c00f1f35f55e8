"""Tables of packed sequences by their kernel on a GPU: those of torch, to the bit; graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fusedreduce as fr
from fusedreduce.masks.sources import one_by_one
from fusedreduce.run.segment_tables import prepare
from tests import printing
from tests.segment_tables import LENGTHS, OFFSETS, check, offsets, random_offsets, recipes


@pytest.fixture(autouse=True)
def poisoned():
    """What nobody writes is NaN, or the smallest integer."""
    with printing.poisoned():
        yield


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", OFFSETS)
def test_tables(name: str, dtype: torch.dtype, device: torch.device) -> None:
    for Sq, Sk in LENGTHS:
        check(recipes(Sq, Sk), offsets(name, dtype, device))


@pytest.mark.parametrize("seed", range(24))
def test_random_offsets(seed: int, device: torch.device) -> None:
    check(recipes(530, 131072), random_offsets(seed, device))


def test_offsets_that_lie_apart(device: torch.device) -> None:
    whole = torch.tensor([7, 0, 9, 4, 9, 11, 9, 20], dtype=torch.int32, device=device)
    check(recipes(25, 25), [whole[1::2], whole[1:5].sort().values])
    check(recipes(25, 25), [whole[1:2].expand(3), whole[1:6:2]])


def test_a_graph_reads_what_offsets_hold_at_the_replay(device: torch.device) -> None:
    torch.use_deterministic_algorithms(False)
    tables = recipes(1000, 1100)
    at = offsets("plain", torch.int32, device)
    making = prepare(tables, at)
    making(at)  # builds the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = making(at)
    for seed in range(5):
        new = torch.randint(0, 1000, (2, 4), generator=torch.Generator().manual_seed(seed))
        for t, values in zip(at, new.sort().values, strict=True):
            t.copy_(values)
        graph.replay()
        assert all(map(torch.equal, made, one_by_one(tables)(at)))


@pytest.mark.parametrize("keys", [False, True])
def test_attention_replayed(keys: bool, device: torch.device) -> None:
    """Forward and backward, with offsets of queries alone and of keys too."""
    torch.use_deterministic_algorithms(False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        q, k, v = (torch.randn(1, 2, 600, 64, device=device, dtype=torch.bfloat16)
                   .requires_grad_() for _ in "qkv")  # fmt: skip
        up = torch.randn(1, 2, 600, 64, device=device, dtype=torch.bfloat16)
        a, b = (torch.tensor([0, 100, 350, n], device=device) for n in (600, 580))
        mask = fr.masks.cu_seqlens(a, b if keys else None, within=fr.masks.causal)

        def run() -> list[Tensor]:
            out = fr.attention(q, k, v, mask=mask, impl="triton")
            return [out, *torch.autograd.grad(out, (q, k, v), up)]

        for _ in range(3):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = run()
        for step in (30, 77):
            a[1:3] += step
            b[2:] -= step
            graph.replay()
            assert all(map(torch.equal, made, run()))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_torch_operation_and_no_wait(device: torch.device) -> None:
    """A call that comes again makes its tables without an operation of torch but allocations."""
    torch.use_deterministic_algorithms(False)
    tables, at = recipes(300, 300), offsets("plain", torch.int64, device)
    making = prepare(tables, at)
    making(at)
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    try:
        torch.cuda.set_sync_debug_mode("error")
        with Watch():
            making(at)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert seen == ["aten.empty_strided.default"] * len(tables)
