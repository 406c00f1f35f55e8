"""Modules with torch.nn's constructors, state dicts and texts, which run fused operations.

>>> import torch, fusedreduce as fr
>>> norm = fr.nn.LayerNorm(2)
>>> norm
LayerNorm((2,), eps=1e-05, elementwise_affine=True, bias=True)
>>> norm.load_state_dict(torch.nn.LayerNorm(2).state_dict())
<All keys matched successfully>
>>> norm(torch.tensor([[1.0, 3.0]])).detach()
tensor([[-1.0000,  1.0000]])

>>> fr.nn.CrossEntropyLoss(z_loss=0.1)(torch.zeros(2, 4), torch.tensor([0, 3]))
tensor(1.5785)

Each is torch.nn's module with another forward: `isinstance(norm, torch.nn.LayerNorm)` holds.
"""

from fusedreduce.nn.cosine_similarity import CosineSimilarity
from fusedreduce.nn.group_norm import GroupNorm
from fusedreduce.nn.instance_norm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from fusedreduce.nn.layer_norm import LayerNorm
from fusedreduce.nn.losses import CrossEntropyLoss, KLDivLoss
from fusedreduce.nn.rms_norm import RMSNorm
from fusedreduce.nn.softmax import LogSoftmax, Softmax, Softmin

__all__ = [
    "CosineSimilarity", "CrossEntropyLoss", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "KLDivLoss", "LayerNorm", "LogSoftmax", "RMSNorm", "Softmax", "Softmin",
]  # fmt: skip
