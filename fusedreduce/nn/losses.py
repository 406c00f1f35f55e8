"""CrossEntropyLoss and KLDivLoss: torch.nn's modules, run by fusedreduce.ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedreduce import ops


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`ops.cross_entropy` as a module: torch.nn's arguments and state dict, and its options.

    >>> import torch, fusedreduce as fr
    >>> loss = fr.nn.CrossEntropyLoss(label_smoothing=0.1, z_loss=1e-4)
    >>> loss(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor(1.3865)
    """

    def __init__(
        self,
        *args: Any,
        z_loss: float = 0.0,
        return_z_loss: bool = False,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        impl: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.z_loss, self.return_z_loss = z_loss, return_z_loss
        self.softcap, self.logit_scale, self.impl = softcap, logit_scale, impl

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return ops.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            return_z_loss=self.return_z_loss,
            softcap=self.softcap,
            logit_scale=self.logit_scale,
            impl=self.impl,
        )


class KLDivLoss(torch.nn.KLDivLoss):
    """`ops.kl_div` as a module: torch.nn's arguments.

    >>> import torch, fusedreduce as fr
    >>> fr.nn.KLDivLoss(reduction="batchmean")(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor(0.)
    """

    def __init__(self, *args: Any, impl: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.impl = impl

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return ops.kl_div(
            input, target, reduction=self.reduction, log_target=self.log_target, impl=self.impl
        )
