"""PyTorch's own samples of the operations: values, gradients, and what torch refuses."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from fusedreduce import ops
from fusedreduce.errors import FusedReduceError
from tests.accuracy import require_near

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    methods = pytest.importorskip(
        "torch.testing._internal.common_methods_invocations",
        reason="torch's own tests need the package expecttest",
        exc_type=ImportError,
    )

NAMES = (
    "cosine_similarity", "group_norm", "instance_norm", "layer_norm", "log_softmax", "logsumexp",
    "normalize", "rms_norm", "softmax", "softmin", "var_mean",
)  # fmt: skip
TORCH = {name: name for name in NAMES} | {f"nn.functional.{name}": name for name in NAMES}
INFOS = [i for i in methods.op_db if i.name in TORCH]
each_info = pytest.mark.parametrize("info", INFOS, ids=lambda i: f"{i.name}-{i.variant_test_name}")
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
quiet = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")


def test_torch_has_samples_of_every_operation() -> None:
    assert {TORCH[i.name] for i in INFOS} == set(NAMES)


def twin(info: Any) -> Any:
    return getattr(ops, TORCH[info.name])


def mapped(sample: Any, change: Any) -> tuple[list[Any], dict[str, Any]]:
    """Copies of a sample's arguments."""
    args = [change(a) for a in (sample.input, *sample.args)]
    return args, {k: change(v) for k, v in sample.kwargs.items()}


def run(fn: Any, sample: Any, change: Any, ups: list[torch.Tensor] | None) -> list[Any]:
    """Results of a call on copies of a sample; with `ups`, gradients of the floating arguments."""
    leaves: list[torch.Tensor] = []

    def copied(a: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            return change(a)
        made = change(a.detach().clone())
        if ups is not None and a.requires_grad:
            leaves.append(made.requires_grad_())
        return made

    args, kwargs = mapped(sample, copied)
    result = fn(*args, **kwargs)
    results = list(result) if isinstance(result, tuple) else [result]
    if ups is None:
        return results
    given = [u.to(r) for u, r in zip(ups, results, strict=True)]
    return list(torch.autograd.grad(results, leaves, given, allow_unused=True))


def doubled(a: Any) -> Any:
    if isinstance(a, torch.dtype):
        return torch.float64
    return a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a


def same(a: Any) -> Any:
    return a


def compare(info: Any, sample: Any, dtype: torch.dtype, ups: Any, k: float) -> None:
    got = run(twin(info), sample, same, ups)
    plain = run(info.op, sample, same, ups)
    right = run(info.op, sample, doubled, ups)
    for g, p, r in zip(got, plain, right, strict=True):
        if p is None:
            assert g is None or not g.any()
        elif (
            g.dtype == torch.float64
        ):  # no better reference: one eps of cancelling terms is allowed
            torch.testing.assert_close(g, p, equal_nan=True)
        else:
            require_near(g, r, p, k, sample)


@quiet
@each_info
@each_dtype
def test_values_and_gradients(info: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    if dtype not in info.dtypes:
        pytest.skip(f"torch has no samples in {dtype}")
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        compare(info, sample, dtype, None, 2.0)
        ups = [torch.randn(r.shape).double() for r in run(info.op, sample, same, None)]
        compare(info, sample, dtype, ups, 3.0)


@quiet
@pytest.mark.parametrize(
    "info", [i for i in INFOS if i.error_inputs_func is not None], ids=lambda i: i.name
)
def test_what_torch_refuses(info: Any) -> None:
    for error in info.error_inputs("cpu"):
        args, kwargs = mapped(error.sample_input, same)
        with pytest.raises((FusedReduceError, TypeError, ValueError)):
            twin(info)(*args, **kwargs)


@each_info
def test_integers(info: Any) -> None:
    """Served where torch serves them, else refused."""
    for sample in info.sample_inputs("cpu", torch.float32):
        if "softm" in info.name and sample.input.numel() == 0:
            continue  # torch answers no integers
        args, kwargs = mapped(
            sample, lambda a: (3 * a).long() if isinstance(a, torch.Tensor) else a
        )
        try:
            want = info.op(*args, **kwargs)
        except (RuntimeError, TypeError):
            with pytest.raises(FusedReduceError):
                twin(info)(*args, **kwargs)
        else:
            torch.testing.assert_close(twin(info)(*args, **kwargs), want, equal_nan=True)
