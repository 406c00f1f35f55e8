"""Definitions traced: for any number of elements, and for a known one."""

from __future__ import annotations

import pytest
import torch

from fusedreduce.errors import DeclarationError
from fusedreduce.ir.evaluate import dialect, evaluate
from fusedreduce.ir.show import show
from fusedreduce.laws.states import operand
from fusedreduce.vectors import of_elements, population
from tests.laws import zoo

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)

FORMULAS = [
    lambda x: torch.logsumexp(x, 0),
    lambda x: torch.mean((x - torch.mean(x)) ** 2),
    lambda x: torch.sum(torch.softmax(x, 0) * x),
    lambda x: torch.amax(x) - x.amin(),
    lambda x: torch.var(x),
    lambda x: x.prod() / x.shape[0],
    lambda x: torch.max(torch.minimum(x, torch.mean(x))),
    lambda x: torch.log_softmax(x, dim=0).sum(),
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_on_elements_is_torchs(formula) -> None:
    ((_, e),) = of_elements(formula, {"x": "float"}, operand, 3)
    env = {operand("x", i): v for i, v in enumerate(X, 1)}
    double = dialect("torch", {"torch": torch}, dtype=torch.float64)
    assert torch.allclose(evaluate(e, env, double), formula(X))


def test_a_population_names_its_totals() -> None:
    d = population(zoo.moments_definition, {"x": "float"})
    assert [(t.kind, show(t.term)) for t in d.totals] == [
        ("sum", "x"),
        ("sum", "1.0"),
        ("sum", "(x - total.0 / total.1) ** 2"),
    ]
    assert [(n, show(e)) for n, e in d.outputs] == [
        ("mean", "total.0 / total.1"),
        ("var", "total.2 / total.1"),
    ]


def test_what_varies_along_the_row_is_no_result() -> None:
    with pytest.raises(DeclarationError, match="value for each element"):
        population(lambda x: x - torch.mean(x), {"x": "float"})


def test_a_population_has_no_length() -> None:
    with pytest.raises(DeclarationError, match="length"):
        population(zoo.best_slice, {"x": "float"})
