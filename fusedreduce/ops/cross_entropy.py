"""cross_entropy: F.cross_entropy in one read, with z-loss, softcap and a scale of the logits."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedreduce.errors import OptionError, message
from fusedreduce.ops import losses
from fusedreduce.ops.arguments import require_shape, require_tensor
from fusedreduce.ops.cross_entropy_rows import label_rows, probability_rows
from fusedreduce.ops.labels import number, require_softcap

OP, INF = "cross_entropy", float("inf")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    return_z_loss: bool = False,
    softcap: Tensor | float | None = None,
    logit_scale: Tensor | float = 1.0,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """-log softmax(x)_target + z_loss lse(x)^2, x = softcap tanh(logit_scale input / softcap).

    input      (C,), (N, C) or (N, C, d1, ...): floating
    target     classes: integers of the input's shape without C; or probabilities, of its shape
    reduction  "none": one value a row; "sum"; "mean": the loss over the weights of the labels'
               classes, as torch; the z-loss over the number of rows that count
    z_loss     factor of lse^2 (PaLM, Chowdhery et al. 2022), part of the loss; with
               return_z_loss=True the answer is (loss, z-loss), the same part again, to be shown
    softcap, logit_scale    applied to the input in the order of the formula; a tensor of one
               number is differentiated too

    The other arguments are those of torch.nn.functional.cross_entropy. The result has torch's
    dtype; inside it is float32 or wider. A label that is neither a class nor ignore_index is an
    error on the CPU; on a GPU loss and gradient of its row are NaN. Raises `ShapeError`,
    `DtypeError`, `OptionError` before any work.

    >>> import torch, fusedreduce as fr
    >>> x = torch.tensor([[0.0, 0.0], [1000.0, 0.0]])
    >>> fr.ops.cross_entropy(x, torch.tensor([1, 0]), reduction="none")
    tensor([0.6931, 0.0000])
    """
    reduction = losses.chosen_reduction(OP, reduction, size_average, reduce)
    ignore_index = losses.whole_index(OP, ignore_index)
    soft, target = _checked(input, target, weight, ignore_index, label_smoothing, softcap)
    dtype = losses.loss_dtype(input, target) if soft else losses.loss_dtype(input)
    alone = input.dim() == 1
    x, t = (input[None], target[None]) if alone else (input, target)
    smoothing = number(OP, "label_smoothing", label_smoothing, 0.0)
    z_factor = number(OP, "z_loss", z_loss, 0.0)
    options = (
        weight,
        smoothing,
        z_factor,
        number(OP, "softcap", softcap, INF),
        number(OP, "logit_scale", logit_scale, 1.0),
    )
    if soft:
        rows = probability_rows(x, t, *options, impl=impl)
    else:
        divided = reduction == "mean" and weight is None and t.numel() > 0
        count = (t != ignore_index).sum() if divided else None
        rows = label_rows(x, t, *options, ignore_index, count, impl=impl)
    by, z_by = _divisors(rows, weight, t, ignore_index, soft) if reduction == "mean" else (1, 1)
    loss = losses.total(rows["loss"], by, reduction)
    z = None if z_factor is None else losses.total(rows["z_loss"], z_by, reduction)
    loss = loss if z is None else loss + z
    if alone and reduction == "none":
        loss, z = loss[0], z if z is None else z[0]
    loss = loss.to(dtype)
    if not return_z_loss:
        return loss
    return loss, torch.zeros_like(loss) if z is None else z.to(dtype)


def _divisors(rows, weight, target, ignore_index, soft):
    """What the mean divides by: the loss by the labels' weights, the z-loss by the rows.

    None where the rows are divided already, by how many count.
    """
    if soft or not target.numel():
        return (rows["loss"].numel(),) * 2
    if weight is None:
        return None, None
    share = rows["share"]
    return share.sum(), (target != ignore_index).sum()


def _checked(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: Tensor | float | None,
) -> tuple[bool, Tensor]:
    """Does the target hold probabilities, and the target. What does not fit is an error."""
    require_tensor(OP, "input", input)
    shape, at = tuple(input.shape), min(input.dim() - 1, 1)
    classes = losses.classes_of(OP, input, at)
    require_shape(OP, "weight", weight, (classes,), "one number a class")
    losses.require_share(OP, "label_smoothing", label_smoothing)
    require_softcap(OP, softcap)
    if getattr(target, "shape", None) == input.shape:
        require_tensor(OP, "target", target)
        if ignore_index >= 0:
            raise OptionError(
                message(
                    f"{OP}: `ignore_index` beside class probabilities",
                    expected="a negative number",
                    came=repr(ignore_index),
                    do="give rows that do not count probabilities 0",
                )
            )
        return True, target
    rows = shape[:at] + shape[at + 1 :]
    require_shape(OP, "target", target, rows, "a class a row", floating=False)
    return False, losses.checked_labels(OP, target, classes, ignore_index)
