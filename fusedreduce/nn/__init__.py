"""Ready-made modules with torch.nn's names, arguments and state dicts.

>>> import torch, fusedreduce as fr
>>> fr.nn.CrossEntropyLoss(z_loss=0.1)(torch.zeros(2, 4), torch.tensor([0, 3]))
tensor(1.5785)
"""

from fusedreduce.nn.losses import CrossEntropyLoss as CrossEntropyLoss
from fusedreduce.nn.losses import KLDivLoss as KLDivLoss
