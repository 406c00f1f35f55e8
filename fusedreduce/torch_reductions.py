"""torch.sum, mean, var, logsumexp, softmax, ... inside a fused function: each is a declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fusedreduce.chain import TracedTensor
from fusedreduce.declare.reduction import Reduction
from fusedreduce.reductions import (
    AllOf,
    AnyOf,
    Largest,
    LogSumExp,
    MaxAndSum,
    Mean,
    Moments,
    Product,
    Smallest,
    Total,
)
from fusedreduce.trace import refuse


class SoftmaxParts(MaxAndSum):
    """m = max_j x_j and s = sum_j exp(x_j - m), of which softmax makes exp(x - m) / s."""

    jointly_gauge = True  # that is the same for every m


def _run(
    R: type[Reduction], x: Any, dim: Any, keepdim: bool, output: str, dtype: Any = None
) -> Any:
    if dtype is not None:
        x = x.to(dtype)
    name = R.record.operands[0]
    return x.chain.reduce(R, {name: x}, dim, keepdim, (output,))[output or "value"]


def _simple(R: type[Reduction], output: str = "") -> Callable[..., Any]:
    def function(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return _run(R, x, _all_of(dim), keepdim, output, dtype)

    return function


def _all_of(dim: Any) -> Any:
    """torch reduces over all dimensions where a sum, mean, amax, var ... is given none."""
    return None if isinstance(dim, (tuple, list)) and not dim else dim


def _truth(R: type[Reduction]) -> Callable[..., Any]:
    def function(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return _run(R, x, dim, keepdim, "")

    return function


def _extreme(R: type[Reduction]) -> Callable[..., Any]:
    def function(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, TracedTensor):
            op = "maximum" if R is Largest else "minimum"
            return getattr(torch, op)(x, dim)
        if dim is not None:
            raise refuse(
                f"torch.{'max' if R is Largest else 'min'}(x, dim) returns a pair",
                do="write torch.amax or torch.amin, and torch.argmax for the position",
            )
        return _run(R, x, None, False, "value")

    return function


def _moments(x: Any, dim: Any, keepdim: bool) -> tuple[Any, Any, int]:
    found = x.chain.reduce(Moments, {"x": x}, _all_of(dim), keepdim, ("mean", "var"))
    n = x.numel() // max(found["mean"].numel(), 1)
    return found["mean"], found["var"], n


def _var_mean(
    x: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    if isinstance(dim, bool):  # torch.var_mean(x, unbiased)
        dim, unbiased = None, dim
    mean, var, n = _moments(x, dim, keepdim)
    return _unbiased(var, n, unbiased, correction), mean


def _unbiased(var: Any, n: int, unbiased: bool | None, correction: float | None) -> Any:
    """sum (x - mean)^2 / max(0, n - correction): NaN of a constant row, infinite of another."""
    lost = correction if correction is not None else float(unbiased is not False)
    if lost == 0:
        return var
    return var * (n / (n - lost) if n > lost else float("inf"))


def _var(x: Any, *args: Any, **kwargs: Any) -> Any:
    return _var_mean(x, *args, **kwargs)[0]


def _std(x: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.sqrt(_var(x, *args, **kwargs))


def _std_mean(x: Any, *args: Any, **kwargs: Any) -> Any:
    var, mean = _var_mean(x, *args, **kwargs)
    return torch.sqrt(var), mean


def _log_sum_exp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    x = x.to(torch.int64) if x.kind == "bool" else x
    return _run(LogSumExp, x, dim, keepdim, "")


def _softmax(x: Any, dim: int, dtype: Any = None, _stacklevel: int = 3) -> Any:
    x, found = _max_and_sum(x, dim, dtype)
    return torch.exp(x - found["m"]) / found["s"]


def _log_softmax(x: Any, dim: int, dtype: Any = None, _stacklevel: int = 3) -> Any:
    x, found = _max_and_sum(x, dim, dtype)
    return (x - found["m"]) - torch.log(found["s"])


def _max_and_sum(x: Any, dim: int, dtype: Any) -> tuple[Any, Mapping[str, Any]]:
    if dim is None:  # torch.nn.functional would choose one, and warn
        raise refuse("softmax without dim", expected="dim=...", do="write softmax(x, dim=-1)")
    if dtype is not None:
        x = x.to(dtype)
    return x, x.chain.reduce(SoftmaxParts, {"x": x}, dim, True, ("m", "s"))


TORCH_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _simple(Total),
    "mean": _simple(Mean),
    "prod": _simple(Product),
    "amax": _simple(Largest, "value"),
    "amin": _simple(Smallest, "value"),
    "argmax": _simple(Largest, "index"),
    "argmin": _simple(Smallest, "index"),
    "any": _truth(AnyOf),
    "all": _truth(AllOf),
    "max": _extreme(Largest),
    "min": _extreme(Smallest),
    "logsumexp": _log_sum_exp,
    "var": _var,
    "std": _std,
    "var_mean": _var_mean,
    "std_mean": _std_mean,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
