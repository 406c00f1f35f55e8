"""loss_head: loss, log-probability, entropy and accuracy of the labels, from one read of logits."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.declare import join
from fusedreduce.errors import OptionError, message
from fusedreduce.ops import losses
from fusedreduce.ops.arguments import require_shape, require_tensor
from fusedreduce.ops.labels import Label, number, require_softcap, scores, wrong_is_nan
from fusedreduce.reductions import Largest, SoftmaxEntropy

OUTPUTS = ("loss", "log_prob", "entropy", "accuracy")
READS = {
    "loss": "Label.nll",
    "log_prob": "Label.nll",
    "entropy": "SoftmaxEntropy.entropy",
    "accuracy": "Largest.index",
}
Head = join(Label, SoftmaxEntropy, Largest)


@fuse
def head_rows(logits, target, wanted, z_loss, softcap, logit_scale, ignore_index):
    """Each wanted output of every row; 0 (False) where the label is ignored."""
    x, classes = scores(logits, softcap, logit_scale), logits.shape[-1]
    with_z = "loss" in wanted and z_loss is not None
    outputs = dict.fromkeys([READS[w] for w in wanted] + ["Label.lse"] * with_z)
    r = reduce(Head, x, outputs=tuple(outputs), target=target.unsqueeze(-1))
    counted = target != ignore_index
    right = wrong_is_nan(target, classes, counted)
    rows = {}
    if "loss" in wanted:
        loss = r["Label"]["nll"]
        loss = loss + z_loss * r["Label"]["lse"] * r["Label"]["lse"] if with_z else loss
        rows["loss"] = torch.where(counted, loss * right, 0.0)
    if "log_prob" in wanted:
        rows["log_prob"] = torch.where(counted, -r["Label"]["nll"] * right, 0.0)
    if "entropy" in wanted:
        rows["entropy"] = torch.where(counted, r["SoftmaxEntropy"]["entropy"], 0.0)
    if "accuracy" in wanted:
        rows["accuracy"] = counted & (r["Largest"]["index"] == target)
    return rows


def loss_head(
    logits: Tensor,
    target: Tensor,
    outputs: str | tuple[str, ...] = OUTPUTS,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    z_loss: float = 0.0,
    softcap: Tensor | float | None = None,
    logit_scale: Tensor | float = 1.0,
    impl: str | None = None,
) -> dict[str, Tensor]:
    """What a training step asks of its logits, by name, from one read of them.

    With p = softmax(x), x = softcap tanh(logit_scale logits / softcap), lse = log sum exp(x):

    loss       -log p_target + z_loss lse^2, reduced by `reduction`; "mean" is over the rows that
               count (NaN without one)
    log_prob   log p_target, one a row
    entropy    -sum_j p_j log p_j in nats, one a row
    accuracy   arg-max == target, reduced by `reduction`: a share, a number, or True and False

    logits (..., C), the classes last, as a language model has them; target (...), integers. Loss,
    log_prob and entropy are differentiable, together, in one backward. A row whose label is
    ignore_index gives 0, everywhere. logit_scale is 1 / temperature. Results have the dtype of
    the logits, a share of accuracy float32. Labels and errors are as in `cross_entropy`.

    >>> import torch, fusedreduce as fr
    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 1000.0], [0.0, 0.0]])
    >>> found = fr.ops.loss_head(logits, torch.tensor([0, 1, -100]))
    >>> found["loss"], found["accuracy"]
    (tensor(0.3466), tensor(1.))
    >>> found["entropy"]
    tensor([0.6931, 0.0000, 0.0000])
    """
    reduction = losses.chosen_reduction("loss_head", reduction)
    ignore_index = losses.whole_index("loss_head", ignore_index)
    several = isinstance(outputs, Iterable) and not isinstance(outputs, str)
    wanted = tuple(outputs) if several else (outputs,)
    if not wanted or any(w not in OUTPUTS for w in wanted):
        raise OptionError(
            message(
                "loss_head: `outputs` are not some of its own",
                expected=", ".join(OUTPUTS),
                came=repr(outputs),
            )
        )
    require_tensor("loss_head", "logits", logits)
    require_softcap("loss_head", softcap)
    classes = losses.classes_of("loss_head", logits, -1)
    require_shape("loss_head", "target", target, logits.shape[:-1], "a class a row", floating=False)
    target = losses.checked_labels("loss_head", target, classes, ignore_index)
    options = (
        number("loss_head", "z_loss", z_loss, 0.0),
        number("loss_head", "softcap", softcap, float("inf")),
        number("loss_head", "logit_scale", logit_scale, 1.0),
    )
    rows = head_rows(logits, target, wanted, *options, ignore_index, impl=impl)
    dtype = losses.loss_dtype(logits)
    mean = reduction == "mean" and not {"loss", "accuracy"}.isdisjoint(wanted)
    count = (target != ignore_index).sum() if mean else 1
    accuracy = rows.pop("accuracy", None)
    if "loss" in rows:
        rows["loss"] = losses.total(rows["loss"], count, reduction)
    found = {n: v.to(dtype) for n, v in rows.items()}
    if accuracy is not None:
        share = accuracy.double() if reduction == "mean" else accuracy
        accuracy = losses.total(share, count, reduction)
        found["accuracy"] = accuracy.float() if reduction == "mean" else accuracy
    return found
