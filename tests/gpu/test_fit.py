"""Inside torch on the device: CUDA graphs, Inductor, transforms, streams, other devices' habits."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce.reductions import LogSumExp
from tests import chains
from tests.pure.test_fit import norm
from tests.pure.test_fit import norm_reference as reference

CASES = {c.name: c for c in chains.CASES}


def inputs(m: int, n: int, device, dtype=torch.float32) -> tuple[torch.Tensor, ...]:
    shapes = ((m, n), (n,), (n,))
    return tuple(torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in shapes)


def close(a, b) -> None:
    torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)


def test_inductor_with_dynamic_shapes(device) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    fn = lambda x, w, b: norm(2 * x, w, b, 1e-5).relu() + fr.reduce(LogSumExp, x, keepdim=True)
    plain = lambda x, w, b: reference(2 * x, w, b, 1e-5).relu() + x.logsumexp(-1, keepdim=True)
    fast = torch.compile(fn, fullgraph=True, dynamic=True)
    for m, n in ((4, 33), (64, 1024), (129, 1000), (300, 70)):
        args = inputs(m, n, device)
        y, right = fast(*args), plain(*args)
        up = torch.randn_like(y)
        close(y, right)
        close(torch.autograd.grad(y, args, up), torch.autograd.grad(right, args, up))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_reduce_overhead_mode(device) -> None:
    """Inductor's own CUDA graphs, forward and backward, replayed."""
    torch._dynamo.reset()
    fast = torch.compile(lambda *a: norm(*a, 1e-5), fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        args = inputs(64, 1024, device)
        y = fast(*args)
        up = torch.randn_like(y)
        got = torch.autograd.grad(y, args, up)
        close(got, torch.autograd.grad(reference(*args, 1e-5), args, up))


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_captured_in_a_cuda_graph_with_its_backward(device) -> None:
    args = inputs(64, 1000, device)
    up = torch.randn(64, 1000, device=device)

    def step():
        y = norm(*args, 1e-5)
        return (y, *torch.autograd.grad(y, args, up))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    with torch.no_grad():
        args[0].copy_(torch.randn(64, 1000, device=device))
        up.copy_(torch.randn(64, 1000, device=device))
    graph.replay()
    y = reference(*args, 1e-5)
    close(made, (y, *torch.autograd.grad(y, args, up)))


def test_transforms(device) -> None:
    x, w, b = (t.detach().double() for t in inputs(5, 70, device))
    close(
        torch.func.grad(lambda *a: norm(*a, 1e-5).sin().sum(), (0, 1, 2))(x, w, b),
        torch.func.grad(lambda *a: reference(*a, 1e-5).sin().sum(), (0, 1, 2))(x, w, b),
    )
    wide = torch.randn(3, 5, 70, device=device, dtype=torch.float64)
    dims = (0, None, None)
    got = torch.vmap(torch.func.grad(lambda *a: norm(*a, 1e-5).sin().sum(), 1), dims)(wide, w, b)
    plain = torch.func.grad(lambda *a: reference(*a, 1e-5).sin().sum(), 1)
    close(got, torch.vmap(plain, dims)(wide, w, b))
    lse = torch.func.hessian(lambda x: fr.reduce(LogSumExp, x))(x[0])
    close(lse, torch.func.hessian(lambda x: x.logsumexp(-1))(x[0]))


def test_second_derivatives(device) -> None:
    args = [t.detach().double().requires_grad_() for t in inputs(3, 9, device)]
    assert torch.autograd.gradgradcheck(lambda *a: norm(*a, 1e-5), args)


def test_opcheck(device) -> None:
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "fusedreduce":
                seen.append(args[0])
            return func(*args, **(kwargs or {}))

    x, w, b = (t.detach() for t in inputs(6, 40, device))
    with Watch():
        norm(x.t().contiguous().t(), w, b, 1e-5)
    operator = torch.ops.fusedreduce.rows.default
    for given in (x, x.t().contiguous().t(), x[:1].expand(6, 40), x[::2]):
        torch.library.opcheck(operator, (seen[0], [given, w, b], [1e-5]))


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_chain_compiles(name: str, device) -> None:
    from tests.gpu.test_rows import moved

    torch._dynamo.reset()
    case = CASES[name]
    args = moved(case.inputs(16, 260, torch.float32), device)
    fused = fr.fuse(case.fn)
    got = torch.compile(lambda *a: chains.flat(fused(*a)), fullgraph=True, backend="aot_eager")(
        *args
    )
    assert all(torch.equal(a, b) for a, b in zip(got, chains.flat(fused(*args)), strict=True))


def test_autocast_and_modes(device) -> None:
    x, w, b = (t.detach().bfloat16() for t in inputs(8, 100, device))
    outside = norm(x, w, b, 1e-5)
    with torch.autocast("cuda", dtype=torch.float16):
        assert torch.equal(norm(x, w, b, 1e-5), outside)
        assert norm(x, w, b, 1e-5, impl="eager").dtype == torch.bfloat16
    with torch.inference_mode():
        assert torch.equal(norm(x, w, b, 1e-5), outside)


def test_a_side_stream_is_used(device) -> None:
    x, w, b = (t.detach() for t in inputs(64, 1000, device))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = norm(torch.cumsum(x, 0), w, b, 1e-5)
    torch.cuda.current_stream().wait_stream(stream)
    close(y, reference(torch.cumsum(x, 0), w, b, 1e-5))
