"""Ready-made operations: each a declaration and a fused function, with torch's signature.

>>> import torch, fusedreduce as fr
>>> fr.ops.cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
tensor(1.3863)
"""

from fusedreduce.ops.cross_entropy import cross_entropy as cross_entropy
from fusedreduce.ops.js_div import js_div as js_div
from fusedreduce.ops.kl_div import kl_div as kl_div
from fusedreduce.ops.loss_head import loss_head as loss_head
from fusedreduce.ops.tvd import tvd as tvd
