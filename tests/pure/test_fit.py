"""How fused functions fit into torch: compile, export, transforms, modes, second order."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fusedreduce as fr
from fusedreduce import operators
from fusedreduce.errors import FusedReduceError
from fusedreduce.reductions import LogSumExp, Moments, SoftmaxSum, Welford
from tests import chains

CASES = {c.name: c for c in chains.CASES}


@fr.fuse
def norm(x, weight, bias, eps):
    r = fr.reduce(Moments, x, keepdim=True)
    return (x - r["mean"]) * torch.rsqrt(r["var"] + eps) * weight + bias


def norm_reference(x, weight, bias, eps):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@fr.fuse
def head(x, target):
    lse = fr.reduce(LogSumExp, x)
    return {
        "lse": lse,
        "best": torch.argmax(x, -1),
        "names": ("loss", None, 2.5),
        "y": [x - lse[:, None]],
    }


@fr.fuse
def group_norm(x, weight, bias):
    return chains.group_norm(x, weight, bias)


def row(n: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(*s, dtype=dtype, requires_grad=True) for s in ((5, n), (n,), (n,)))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def compiled(fn, **options):
    return torch.compile(fn, fullgraph=True, backend="aot_eager", **options)


# ---- torch.compile -----------------------------------------------------------------------------


def test_compiled_with_dynamic_shapes_in_one_graph() -> None:
    """Report S48 too: no graph break, right shapes without numbers."""
    fn = lambda x, w, b: norm(2 * x, w, b, 1e-5) + fr.reduce(LogSumExp, x, keepdim=True)
    plain = lambda x, w, b: norm_reference(2 * x, w, b, 1e-5) + x.logsumexp(-1, keepdim=True)
    fast = compiled(fn, dynamic=True)
    for n in (3, 8, 17, 64, 130):
        args = row(n)
        y, right = fast(*args), plain(*args)
        up = torch.randn_like(y)
        torch.testing.assert_close(y, right)
        torch.testing.assert_close(
            torch.autograd.grad(y, args, up), torch.autograd.grad(right, args, up)
        )
    assert graphs() == 1


def test_sizes_that_turn_out_dynamic_take_few_graphs() -> None:
    fast = compiled(lambda x, w, b: norm(x, w, b, 1e-5))
    for m in (2, 3, 5, 9, 31):
        for n in (7, 12, 40):
            x, w, b = torch.randn(m, n), torch.randn(n), torch.randn(n)
            torch.testing.assert_close(fast(x, w, b), norm_reference(x, w, b, 1e-5))
    assert graphs() <= 4


@pytest.mark.slow
def test_compiled_by_inductor() -> None:
    fast = torch.compile(lambda x, w, b: norm(x * 2, w, b, 1e-5).relu(), fullgraph=True)
    args = row(33, torch.float32)
    y, right = fast(*args), norm_reference(args[0] * 2, *args[1:], 1e-5).relu()
    torch.testing.assert_close(y, right)
    up = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, args, up), torch.autograd.grad(right, args, up)
    )


def test_a_result_of_any_structure_is_put_together() -> None:
    x, target = torch.randn(3, 7), torch.tensor([1, 2, 3])
    got = compiled(lambda x, t: head(x * 1.0, t))(x, target)
    right = head(x, target)
    assert got["names"] == ("loss", None, 2.5)
    assert list(got) == list(right)
    torch.testing.assert_close(got["y"], right["y"])
    assert torch.equal(got["best"], x.argmax(-1))


def test_a_split_dimension_stays_dynamic_where_it_is_not_split() -> None:
    fast = compiled(group_norm, dynamic=True)
    for n, side in ((2, 5), (3, 8), (4, 9)):
        x, w, b = torch.randn(n, 6, side, side), torch.randn(6), torch.randn(6)
        torch.testing.assert_close(fast(x, w, b), F.group_norm(x, 2, w, b))
    assert graphs() == 1


def test_sizes_that_must_agree_are_checked_when_they_change() -> None:
    """Two inputs that meet had one size while compiling: afterwards they may not differ."""
    fast = compiled(lambda x, y: fr.reduce(SoftmaxSum, x, v=y)["out"], dynamic=True)
    for n in (4, 6):
        x, v = torch.randn(2, n), torch.randn(2, n, 3)
        right = torch.einsum("mn,mnd->md", x.softmax(-1), v)
        torch.testing.assert_close(fast(x, v), right)
    with pytest.raises(Exception, match="broadcast"):
        fast(torch.randn(2, 6), torch.randn(2, 5, 3))


def test_a_user_error_shows_while_compiling() -> None:
    with pytest.raises(Exception, match="no output 'median'"):
        compiled(lambda x: fr.reduce(Moments, x, outputs="median"))(torch.randn(2, 3))


def test_general_merges_and_ones_without_derived_backward_compile() -> None:
    fast = compiled(lambda x: fr.reduce(Welford, x)["var"])
    x = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(fast(x), x.var(-1, correction=0))
    (got,) = torch.autograd.grad(fast(x).sum(), x)
    (right,) = torch.autograd.grad(x.var(-1, correction=0).sum(), x)
    torch.testing.assert_close(got, right)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_chain_compiles_with_its_gradients(name: str) -> None:
    case = CASES[name]
    args = case.inputs(4, 10, torch.float64)
    fused = fr.fuse(case.fn)
    fast = compiled(lambda *a: chains.flat(fused(*a)))
    given = [
        a.requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a for a in args
    ]
    got, right = fast(*given), chains.flat(fused(*given))
    wanted = [a for a in given if torch.is_tensor(a) and a.requires_grad]
    torch.testing.assert_close(got, right)
    total = [sum((t * t.sin()).sum() for t in r if t.requires_grad) for r in (got, right)]
    first, second = (torch.autograd.grad(t, wanted, allow_unused=True) for t in total)
    for a, b in zip(first, second, strict=True):
        assert (a is None) == (b is None) or not (a if b is None else b).any()
        if a is not None and b is not None:
            torch.testing.assert_close(a, b)


# ---- export, operators -------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(9))

    def forward(self, x):
        return norm(x, self.weight, self.weight, 1e-5) + fr.reduce(LogSumExp, x, keepdim=True)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_a_dynamic_batch_saved_and_loaded(strict: bool) -> None:
    model = Model()
    rows = torch.export.Dim("rows", min=2)
    made = torch.export.export(
        model, (torch.randn(4, 9),), dynamic_shapes=({0: rows},), strict=strict
    )
    names = [str(n.target) for n in made.graph.nodes if n.op == "call_function"]
    assert names.count("fusedreduce.rows.default") == 2
    kept = io.BytesIO()
    torch.export.save(made, kept)
    kept.seek(0)
    operators.ENTRIES.clear()  # as in another process that imported this module
    loaded = torch.export.load(kept).module()
    x = torch.randn(7, 9)
    torch.testing.assert_close(loaded(x), model(x))


def test_a_lost_declaration_is_named() -> None:
    key = repr((("fuse", "nowhere:norm", "00", 0), (("x", "tensor", None),), None, False, (), 0))
    for bad in (key, "nonsense"):
        with pytest.raises(FusedReduceError, match="import the module that declares it"):
            torch.ops.fusedreduce.rows(bad, [torch.randn(2, 3)], [])


def keys_of(fn, *args) -> list[str]:
    """The operators that a call runs, in order."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "fusedreduce":
                seen.append(args[0])
            return func(*args, **(kwargs or {}))

    with Watch():
        fn(*args)
    return seen


def test_a_dispatch_mode_sees_operators() -> None:
    args = row(6)
    seen = keys_of(lambda *a: norm(*a, 1e-5).sum().backward(), *args)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    right = torch.autograd.grad(norm_reference(*args, 1e-5).sum(), args)
    torch.testing.assert_close([a.grad for a in args], list(right))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "expanded", "empty"])
def test_opcheck(layout: str) -> None:
    x = {
        "contiguous": torch.randn(4, 9),
        "transposed": torch.randn(9, 4).t(),
        "sliced": torch.randn(4, 12)[:, 2:11],
        "expanded": torch.randn(1, 9).expand(4, 9),
        "empty": torch.randn(0, 9),
    }[layout]
    w, b = torch.randn(9), torch.randn(9)
    (key,) = keys_of(lambda: norm(x, w, b, 1e-5))
    torch.library.opcheck(torch.ops.fusedreduce.rows.default, (key, [x, w, b], [1e-5]))
    given = [t.clone().requires_grad_() for t in (x, w, b)]
    keys = keys_of(lambda: norm(*given, 1e-5).sum().backward())
    made = torch.ops.fusedreduce.rows(keys[0], [x, w, b], [1e-5])
    more = [x, w, b, torch.randn(4 if len(x) else 0, 9), *made[1:]]
    if len(keys) == 2:
        torch.library.opcheck(torch.ops.fusedreduce.rows_backward.default, (keys[1], more, [1e-5]))


def test_two_functions_of_one_place_stay_apart() -> None:
    def made(factor):
        scale = torch.Size([factor])  # held, and not part of what is hashed

        @fr.fuse
        def fn(x):
            return fr.reduce(LogSumExp, x * scale[0])

        return fn

    x = torch.randn(3, 5)
    fast = [compiled(made(k)) for k in (1, 2, 3)]
    for k, fn in enumerate(fast, start=1):
        torch.testing.assert_close(fn(x), torch.logsumexp(k * x, -1))


# ---- torch.func --------------------------------------------------------------------------------


def test_func_grad_and_jacobians() -> None:
    x, w, b = (t.detach() for t in row(6))
    for argnums in (0, 1, (0, 1, 2)):
        got = torch.func.grad(lambda *a: norm(*a, 1e-5).sin().sum(), argnums)(x, w, b)
        right = torch.func.grad(lambda *a: norm_reference(*a, 1e-5).sin().sum(), argnums)(x, w, b)
        torch.testing.assert_close(got, right)
    f, g = (lambda x: fr.reduce(LogSumExp, x)), (lambda x: torch.logsumexp(x, -1))
    torch.testing.assert_close(torch.func.jacrev(f)(x), torch.func.jacrev(g)(x))
    torch.testing.assert_close(torch.func.hessian(f)(x[0]), torch.func.hessian(g)(x[0]))
    torch.testing.assert_close(
        torch.func.jacrev(torch.func.jacrev(f))(x[0]), torch.func.hessian(g)(x[0])
    )


def test_func_jvp_and_forward_mode() -> None:
    x, w, b = (t.detach() for t in row(6))
    tangents = (torch.randn_like(x), torch.randn_like(w), torch.randn_like(b))
    got = torch.func.jvp(lambda *a: norm(*a, 1e-5), (x, w, b), tangents)
    right = torch.func.jvp(lambda *a: norm_reference(*a, 1e-5), (x, w, b), tangents)
    torch.testing.assert_close(got, right)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangents[0])
        got = torch.autograd.forward_ad.unpack_dual(fr.reduce(LogSumExp, dual)).tangent
    torch.testing.assert_close(got, (x.softmax(-1) * tangents[0]).sum(-1))


@pytest.mark.parametrize("in_dims", [(0, None, None), (1, 0, None), (2, 0, 1), (None, 0, None)])
def test_vmap(in_dims: tuple) -> None:
    shapes = [[5, 6], [6], [6]]
    for s, d in zip(shapes, in_dims, strict=True):
        if d is not None:
            s.insert(d, 3)
    args = [torch.randn(s, dtype=torch.float64) for s in shapes]
    for out_dims in (0, 1):
        got = torch.vmap(lambda *a: norm(*a, 1e-5), in_dims, out_dims)(*args)
        right = torch.vmap(lambda *a: norm_reference(*a, 1e-5), in_dims, out_dims)(*args)
        torch.testing.assert_close(got, right)


def test_vmap_of_a_function_that_counts_dimensions_from_the_front() -> None:
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    fn = lambda x: fr.reduce(Moments, x, dim=(0, 2))["var"]
    torch.testing.assert_close(torch.vmap(fn)(x), x.var((1, 3), correction=0))
    twice = torch.vmap(torch.vmap(lambda x: fr.reduce(LogSumExp, x, dim=0), in_dims=1))
    torch.testing.assert_close(twice(x), x.transpose(1, 2).logsumexp(2))
    everything = torch.vmap(lambda x: fr.reduce(LogSumExp, x, dim=None))
    torch.testing.assert_close(everything(x), x.flatten(1).logsumexp(1))


def test_gradients_per_sample() -> None:
    x, w, b = torch.randn(4, 5, 6), torch.randn(6), torch.randn(6)
    for k in (0, 1, 2):
        dims = (0, None, None)
        got = torch.vmap(torch.func.grad(lambda *a: norm(*a, 1e-5).sin().sum(), k), dims)(x, w, b)
        plain = torch.func.grad(lambda *a: norm_reference(*a, 1e-5).sin().sum(), k)
        torch.testing.assert_close(got, torch.vmap(plain, dims)(x, w, b), atol=1e-4, rtol=1e-4)


def test_compiled_transforms() -> None:
    x = torch.randn(4, 6)
    f, g = (lambda x: fr.reduce(LogSumExp, x).sum()), (lambda x: x.logsumexp(-1).sum())
    torch.testing.assert_close(compiled(torch.func.grad(f))(x), torch.func.grad(g)(x))
    torch.testing.assert_close(compiled(torch.vmap(f))(x), torch.vmap(g)(x))


# ---- second order ------------------------------------------------------------------------------


def test_second_and_third_derivatives() -> None:
    args = row(6)
    fn = lambda *a: norm(*a, 1e-5)
    assert torch.autograd.gradgradcheck(fn, args)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: fr.reduce(LogSumExp, x), (x,))
    assert torch.autograd.gradgradcheck(lambda x: fr.reduce(Welford, x)["var"], (x,))
    third = []
    for f in (lambda x: fr.reduce(LogSumExp, x), lambda x: torch.logsumexp(x, -1)):
        y = f(x).sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        third.append(y)
    torch.testing.assert_close(*third)


@pytest.mark.parametrize("made", [norm, lambda x, w, b, eps: fr.reduce(Welford, x * w)["var"]])
def test_many_gradients_in_one_go(made) -> None:
    """autograd.grad(is_grads_batched=True), and what is built of it."""
    x, w, b = row(6)
    y = made(x, w, b, 1e-5)
    ups = torch.randn(3, *y.shape, dtype=y.dtype)
    got = torch.autograd.grad(y, (x, w), ups, is_grads_batched=True, retain_graph=True)
    for k, up in enumerate(ups):
        right = torch.autograd.grad(y, (x, w), up, retain_graph=True)
        torch.testing.assert_close([g[k] for g in got], list(right))
    fn = lambda x: made(x, w, b, 1e-5)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(fn, x, vectorize=True), jacobian(fn, x))


def test_a_gradient_penalty_trains() -> None:
    """The derivative with respect to the weight of a norm of the derivative to the input."""
    found = []
    for fn in (lambda *a: norm(*a, 1e-5), lambda *a: norm_reference(*a, 1e-5)):
        torch.manual_seed(0)
        x, w, b = row(6)
        (slope,) = torch.autograd.grad(fn(x, w, b).sin().sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)


def test_what_a_call_showed_stays_its_own() -> None:
    """Calls of one key with and without elements, the gradients asked for afterwards."""
    fused = fr.fuse(lambda x, r: torch.sum(x, -1) + r)
    r = torch.randn(3, dtype=torch.float64)
    shapes = (torch.randn(3, 0, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64))
    pulls = [torch.func.vjp(lambda x, r: fused(x, r), x, r)[1] for x in shapes]
    for x, pull in zip(shapes, pulls, strict=True):
        dx, dr = pull(torch.ones(3, dtype=torch.float64))
        assert torch.equal(dx, torch.ones_like(x))
        assert torch.equal(dr, torch.ones_like(r))


# ---- modes -------------------------------------------------------------------------------------


def test_no_grad_and_inference_mode() -> None:
    args = row(6)
    with torch.no_grad():
        assert not norm(*args, 1e-5).requires_grad
    with torch.inference_mode():
        y = norm(*args, 1e-5)
        assert y.is_inference()
        torch.testing.assert_close(y, norm_reference(*args, 1e-5))
    frozen = compiled(lambda *a: norm(*a, 1e-5))
    with torch.no_grad():
        torch.testing.assert_close(frozen(*args), norm_reference(*args, 1e-5))


@pytest.mark.parametrize("impl", [None, "eager"])
def test_autocast_leaves_a_fused_function_alone(impl: str | None) -> None:
    """Inside everything is in the dtype of the state; results keep the dtypes of the function."""
    x, w, b = (t.detach().bfloat16() for t in row(6))
    outside = norm(x, w, b, 1e-5, impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = norm(x, w, b, 1e-5, impl=impl)
        lse = fr.reduce(LogSumExp, x.float(), impl=impl)
    assert inside.dtype == outside.dtype == torch.bfloat16
    assert torch.equal(inside, outside)
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool) -> None:
    args = row(6)
    y = checkpoint(lambda *a: norm(*a, 1e-5), *args, use_reentrant=reentrant)
    got = torch.autograd.grad(y.sum(), args) if not reentrant else None
    if reentrant:
        y.sum().backward()
        got = tuple(a.grad for a in args)
    torch.testing.assert_close(got, torch.autograd.grad(norm_reference(*args, 1e-5).sum(), args))


def test_tensors_without_numbers() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = norm(torch.randn(5, 9), torch.randn(9), torch.randn(9), 1e-5)
        d = fr.reduce(Moments, torch.randn(3, 5, 9).transpose(0, 2), dim=0)
    assert y.shape == (5, 9)
    assert y.is_contiguous()
    assert d["mean"].shape == (5, 3)
