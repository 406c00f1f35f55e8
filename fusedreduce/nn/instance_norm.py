"""InstanceNorm1d, 2d, 3d: ops.instance_norm as modules."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.instancenorm import _InstanceNorm

from fusedreduce import ops


class Fused(_InstanceNorm):
    """torch.nn's module, its checks and its unbatched inputs included, with the fused operation."""

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        return ops.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )


class InstanceNorm1d(Fused, torch.nn.InstanceNorm1d):
    """(x - mean) / sqrt(var + eps) of (N, C, L) or (C, L); torch.nn.InstanceNorm1d's twin.

    >>> InstanceNorm1d(1)(torch.tensor([[1.0, 3.0]]))
    tensor([[-1.0000,  1.0000]])
    """


class InstanceNorm2d(Fused, torch.nn.InstanceNorm2d):
    """(x - mean) / sqrt(var + eps) of (N, C, H, W) or (C, H, W); torch.nn.InstanceNorm2d's twin.

    >>> InstanceNorm2d(1)(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[-1.0000,  1.0000]]])
    """


class InstanceNorm3d(Fused, torch.nn.InstanceNorm3d):
    """(x - mean) / sqrt(var + eps) of (N, C, D, H, W); torch.nn.InstanceNorm3d's twin.

    >>> InstanceNorm3d(1)(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[[-1.0000,  1.0000]]]])
    """
