"""Declarations about the class that a label names, and the scores that losses read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce.declare import Reduction, Sum
from fusedreduce.errors import OptionError, ShapeError, message
from fusedreduce.ops.arguments import real, wide
from fusedreduce.reductions import LogSumExp

NAN = float("nan")


class Label(LogSumExp):
    """nll = -log softmax(x)_target = log s - (x_target - m): a large log-sum-exp costs no digits.

    >>> import fusedreduce as fr
    >>> fr.reduce(Label, torch.tensor([1000.0, 1000.0]), target=torch.tensor([1]), outputs="nll")
    tensor(0.6931)
    """

    picked = Sum(lambda x, j, target: torch.where(j == target, x, 0.0))
    definition = None  # type: ignore[assignment]

    def finish(m, s, picked):
        return {"nll": torch.log(s) - (picked - m), "lse": m + torch.log(s)}


class LabelWeight(Reduction):
    """w_target, the weight of a row's class."""

    share = Sum(lambda w, j, target: torch.where(j == target, w, 0.0))

    def finish(share):
        return share


def scores(logits, softcap, logit_scale):
    """cap tanh(logit_scale logits / cap), in the dtype of the state; None leaves a step out."""
    x = wide(logits)
    x = x if logit_scale is None else x * logit_scale
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def wrong_is_nan(target, classes, counted):
    """1 for a class, NaN for a counted label that is none: as a factor, of loss and gradient."""
    return torch.where((target >= 0) & (target < classes) | ~counted, 1.0, NAN)


def number(op: str, name: str, value: Any, off: float) -> Tensor | float | None:
    """An option that is a run-time number: None at the value that means nothing."""
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        found = real(op, name, value)
        return None if found == off else found
    if value.numel() != 1:
        raise ShapeError(
            message(f"{op}: `{name}` is not one number", expected="a number, or a tensor of one",
                    came=f"a tensor of shape {tuple(value.shape)}")
        )  # fmt: skip
    return value.reshape(())  # a dimension of its own would be one of the loss


def require_softcap(op: str, softcap: Tensor | float | None) -> None:
    """A number must be positive; the value of a tensor is not looked at."""
    if softcap is None or isinstance(softcap, torch.Tensor):
        return
    if not real(op, "softcap", softcap) > 0:
        raise OptionError(
            message(f"{op}: `softcap` is not positive", expected="a number above 0, or None",
                    came=repr(softcap))
        )  # fmt: skip
