"""The rows of cross_entropy as fused functions: for labels, and for class probabilities."""

from __future__ import annotations

import torch

from fusedreduce.api.fuse import fuse
from fusedreduce.api.reduce import reduce
from fusedreduce.declare import join
from fusedreduce.ops.arguments import wide
from fusedreduce.ops.labels import Label, LabelWeight, scores, wrong_is_nan
from fusedreduce.reductions import CrossEntropy

Labels = join(Label, CrossEntropy, LabelWeight)


@fuse
def label_rows(input, target, weight, smoothing, z_loss, softcap, logit_scale, ignore_index, count):
    """loss, z-loss if asked for, and share (the weight of the label's class, if there are weights).

    The losses are divided by `count`, the number of rows that count, where it is given.
    """
    x, classes = scores(input, softcap, logit_scale), max(input.shape[1], 1)
    outputs = ["Label.nll"]
    outputs += ["Label.lse"] if z_loss is not None else []
    outputs += ["CrossEntropy.loss"] if smoothing is not None else []
    outputs += ["LabelWeight"] if weight is not None else []
    w = 1.0 if weight is None else weight.reshape(-1, *[1] * (x.dim() - 2))
    r = reduce(Labels, x, 1, outputs=tuple(outputs), target=target.unsqueeze(1), w=w)
    counted = target != ignore_index
    loss = r["Label"]["nll"]
    loss = loss if weight is None else loss * r["LabelWeight"]
    if smoothing is not None:
        loss = (1.0 - smoothing) * loss + smoothing / classes * r["CrossEntropy"]["loss"]
    right = wrong_is_nan(target, classes, counted)
    rows = {"loss": torch.where(counted, loss * right, 0.0)}
    if z_loss is not None:
        lse = r["Label"]["lse"]
        rows["z_loss"] = torch.where(counted, z_loss * lse * lse * right, 0.0)
    if count is not None:
        rows = {name: each / count for name, each in rows.items()}
    if weight is not None:
        rows["share"] = torch.where(counted, r["LabelWeight"], 0.0)
    return rows


@fuse
def probability_rows(input, target, weight, smoothing, z_loss, softcap, logit_scale):
    """loss, and z-loss if asked for, of every row; the target holds a probability per class."""
    x, w = scores(input, softcap, logit_scale), wide(target)
    if smoothing is not None:
        w = (1.0 - smoothing) * w + smoothing / max(input.shape[1], 1)
    if weight is not None:
        w = w * weight.reshape(-1, *[1] * (x.dim() - 2))
    outputs = ("loss",) if z_loss is None else ("loss", "lse")
    r = reduce(CrossEntropy, x, 1, outputs=outputs, w=w)
    rows = {"loss": r["loss"]}
    return rows if z_loss is None else {**rows, "z_loss": z_loss * r["lse"] * r["lse"]}
