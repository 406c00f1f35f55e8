"""Terms as text: what they mean, what is refused, and that nothing is run."""

from __future__ import annotations

import pytest
import torch

from fusedreduce import trace
from fusedreduce.errors import OptionError
from fusedreduce.ir.evaluate import dialect, evaluate
from fusedreduce.laws import derive
from fusedreduce.laws.terms import term_function

X, M = torch.tensor(2.0), torch.tensor(0.5)

MEANT = {
    "exp(x - m)": lambda x, m: torch.exp(x - m),
    "torch.exp(x - m) * 2": lambda x, m: torch.exp(x - m) * 2,
    "(x - m) ^ 2": lambda x, m: (x - m) ** 2,
    "-x ** 2 + m": lambda x, m: -(x**2) + m,
    "where(x > m, x, m)": torch.maximum,
    "x if (x > 0) & ~(m > 1) else m": lambda x, m: x,
    "maximum(x, m) // 1": torch.maximum,
    "x % m + 1e-3": lambda x, m: x % m + 1e-3,
}


@pytest.mark.parametrize(("text", "meant"), MEANT.items(), ids=MEANT)
def test_a_text_is_its_formula(text: str, meant) -> None:
    traced = term_function(text)(x=trace.scalar("x"), m=trace.scalar("m"))
    plain = dialect("torch", {"torch": torch})
    assert torch.allclose(evaluate(traced.expr, {"x": X, "m": M}, plain), meant(X, M))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "().__class__.__bases__", "x.__class__", "x.data",
        "(lambda: 1)()", "[x for x in y]", "open(x)", "eval(x)", "print(x)", "torch.load(x)",
        "torch.os.system(x)", "getattr(x, m)", "exp(x", "x and m", "not x", "f'{x}'", "'x'",
        "x[0]", "exp(input=x)", "exp(*x)", "x := 3", "1 < x < 2", "None", "...", "1j", "x @ m",
        "x << 2", "await x", "lambda x: x", "import os", "x; m", "", " ", "\0", "exp(x)(m)",
        "exp.__call__(x)", "x" + " + x" * 1000, "-" * 1900 + "x", "(" * 900 + "x" + ")" * 900,
        "abs" * 1000 + "(x)",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        term_function(text)


@pytest.mark.parametrize(
    "text",
    ["9 ** 9 ** 9 ** 9 * exp(x - m)", "2 ** 100000 * (x - m)", "(x - m) ** 100000",
     "(x - m) ** 400", "exp(exp(exp(exp(exp(x - m)))))", "1e999 * exp(x - m)", "sin(1e7 * (x - m))",
     "x" + " + m" * 150, "1 / (1 + exp(0.1234567 * (x - m)))"],
)  # fmt: skip
def test_numbers_and_powers_out_of_reach_are_told_in_time(text: str) -> None:
    assert str(derive(term_function(text), reference="m"))
