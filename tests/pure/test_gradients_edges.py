"""Where a derivative has a choice: ties, absent elements, states as results, seeds."""

from __future__ import annotations

import pytest
import torch

import fusedreduce as fr
from fusedreduce import derivative, pipeline
from fusedreduce.reductions import Largest, LogSumExp, MaxAndSum, Product, Smallest, Welford
from tests import chains, printing, references

INF = float("inf")


def gradient(R: type, x: torch.Tensor, outputs: str | None = None, **options) -> torch.Tensor:
    x = x.clone().requires_grad_()
    value = fr.reduce(R, x, outputs=outputs, **options)
    return torch.autograd.grad(value.sum(), x)[0]


@pytest.mark.parametrize("R", [Largest, Smallest])
def test_a_tie_goes_to_exactly_one_element(R: type) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]])
    first = {
        Largest: [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]],
        Smallest: [[0, 0, 0, 1, 0], [1, 0, 0, 0, 0]],
    }
    assert torch.equal(gradient(R, x, "value"), torch.tensor(first[R]).float())


def test_an_absent_element_never_gets_a_gradient() -> None:
    x = torch.tensor([[-INF, -INF, -INF], [-INF, 2.0, 1.0]])
    assert torch.equal(gradient(Largest, x, "value"), torch.tensor([[0.0, 0, 0], [0, 1, 0]]))
    both = gradient(MaxAndSum, x, "s")
    assert torch.equal(both[0], torch.zeros(3))
    torch.testing.assert_close(both[1], torch.tensor([0.0, -0.36787945, 0.36787945]))


def test_a_reference_out_of_a_finite_identity() -> None:
    """k = max |x| starts at 0: a row of zeros has a largest size, and its gradient is 0."""

    class Size(fr.Reduction):
        k = fr.Max(lambda x: torch.abs(x), identity=0.0, neutral=1.0)
        q = fr.Sum(lambda x, k: (x / k) ** 2)

        def finish(k, q):
            return {"k": k, "q": q}

    x = torch.tensor([[0.0, 0.0], [3.0, -4.0]])
    assert torch.equal(gradient(Size, x, "k"), torch.tensor([[0.0, 0.0], [0.0, -1.0]]))
    torch.testing.assert_close(
        gradient(Size, x, "q"), torch.tensor([[0.0, 0.0], [6 / 16, 18 / 64]])
    )


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_product_with_zeros_is_torchs(zeros: int) -> None:
    x = torch.randn(4, 7, dtype=torch.float64)
    x[:, :zeros] = 0.0
    y = x.clone().requires_grad_()
    torch.testing.assert_close(gradient(Product, x), torch.autograd.grad(y.prod(-1).sum(), y)[0])


@pytest.mark.parametrize("R", [LogSumExp, MaxAndSum, Welford, Product], ids=lambda R: R.__name__)
def test_gradients_through_the_state(R: type) -> None:
    """finish of the state that comes out has the gradient of the finish that comes out."""
    x = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    _, state = fr.reduce(R, x, return_state=True)
    seeds = {n: torch.randn(3, dtype=torch.float64) for n in state}
    loss = sum((state[n] * seeds[n]).sum() for n in state if state[n].is_floating_point())
    (got,) = torch.autograd.grad(loss, x)
    _, state = fr.reduce(R, x, return_state=True, impl="eager")
    loss = sum((state[n] * seeds[n]).sum() for n in state if state[n].is_floating_point())
    (want,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(got, want)


def test_gradients_through_a_seed() -> None:
    """The state of the first part goes in as a seed; both parts get the gradient of the whole."""
    x = torch.randn(3, 20, dtype=torch.float64, requires_grad=True)
    for R in (LogSumExp, fr.reductions.Moments, Welford):
        outputs = R.record.outputs[-1]
        _, state = fr.reduce(R, x[:, :12], return_state=True)
        value = fr.reduce(R, x[:, 12:], seed=state)
        value = value if outputs == "" else value[outputs]
        (got,) = torch.autograd.grad(value.square().sum(), x)
        whole = fr.reduce(R, x)
        whole = whole if outputs == "" else whole[outputs]
        (want,) = torch.autograd.grad(whole.square().sum(), x)
        torch.testing.assert_close(got, want)


def test_the_largest_of_an_affine_map_finds_its_element() -> None:
    """The element is found where the maximum is taken: no second rounding can hide it."""
    x, w = torch.randn(50, 300), torch.randn(300)
    x.requires_grad_()
    (got,) = torch.autograd.grad(fr.fuse(lambda x, w: torch.amax(x * w + 0.1, -1))(x, w).sum(), x)
    assert ((got != 0).sum(-1) == 1).all()


@pytest.mark.parametrize("name", ["weighted_values", "shared_elements"])
def test_what_rows_share_is_summed_where_it_is_made(name: str) -> None:
    """The gradient of x is never stored once a row: its axes are those of x."""
    (case,) = (c for c in (*chains.CASES, *references.CASES) if c.name == name)
    task, values = printing.fused(case.fn, case.inputs(6, 10, torch.float32))
    program = pipeline.trace_task(task, values, trust=False).program
    made = derivative.derived(program, tuple(i.name for i in program.inputs))
    assert not isinstance(made, str)
    (output,) = (o for p in made.shared for o in p.outputs if o.name == "dx")
    assert output.axes == program.by_name["x"].axes


@pytest.mark.parametrize(("name", "given"), [("group_norm", "weight"), ("parts_of_a_row", "w")])
def test_the_inside_of_a_part_is_summed_where_it_is_read(name: str, given: str) -> None:
    """The gradient of a number a channel is stored once a sample and channel, not a position."""
    (case,) = (c for c in (*chains.CASES, *references.CASES) if c.name == name)
    task, values = printing.fused(case.fn, case.inputs(6, 10, torch.float32))
    program = pipeline.trace_task(task, values, trust=False).program
    made = derivative.derived(program, tuple(i.name for i in program.inputs))
    assert not isinstance(made, str)
    (output,) = (o for p in made.shared for o in p.outputs if o.name == f"d{given}")
    sample = program.outer[0].name
    assert output.axes == {sample, *program.by_name[given].axes}


def test_only_a_column_asks_for_a_gradient() -> None:
    x, w = torch.randn(5, 7), torch.randn(7, requires_grad=True)
    y = fr.fuse(lambda x, w: torch.softmax(x * w, -1) * w)(x, w)
    (got,) = torch.autograd.grad(y.square().sum(), w)
    (want,) = torch.autograd.grad((torch.softmax(x * w, -1) * w).square().sum(), w)
    torch.testing.assert_close(got, want)


def test_a_vector_of_zeros_has_a_similarity_of_zero_and_no_gradient() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    y = torch.ones(2, 3, requires_grad=True)
    loss = fr.reduce(fr.reductions.CosineSimilarity, x, y=y).sum()
    for g in torch.autograd.grad(loss, (x, y)):
        assert torch.equal(g, torch.zeros(2, 3))
