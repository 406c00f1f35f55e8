"""Ready-made operations, torch's own by name and signature: each a declaration, one fused function.

>>> import torch, fusedreduce as fr
>>> x = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
>>> fr.ops.softmax(x, dim=-1)
tensor([[0.5000, 0.5000],
        [0.1192, 0.8808]])
>>> fr.ops.layer_norm(x, (2,))
tensor([[ 0.0000,  0.0000],
        [-1.0000,  1.0000]])
>>> fr.ops.cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
tensor(1.3863)

Every operation also takes `impl=`: None (Triton on a GPU, else tiles), "eager", "tiles", "triton".
`docs/ops.md` and `docs/losses.md` list them.
"""

from fusedreduce.ops.cosine_similarity import cosine_similarity
from fusedreduce.ops.cross_entropy import cross_entropy
from fusedreduce.ops.group_norm import group_norm
from fusedreduce.ops.instance_norm import instance_norm
from fusedreduce.ops.js_div import js_div
from fusedreduce.ops.kl_div import kl_div
from fusedreduce.ops.layer_norm import layer_norm
from fusedreduce.ops.log_softmax import log_softmax
from fusedreduce.ops.logsumexp import logsumexp
from fusedreduce.ops.loss_head import loss_head
from fusedreduce.ops.normalize import normalize
from fusedreduce.ops.rms_norm import rms_norm
from fusedreduce.ops.scaled_dot_product_attention import scaled_dot_product_attention
from fusedreduce.ops.softmax import softmax, softmin
from fusedreduce.ops.tvd import tvd
from fusedreduce.ops.var_mean import var_mean

__all__ = [
    "cosine_similarity", "cross_entropy", "group_norm", "instance_norm", "js_div", "kl_div",
    "layer_norm", "log_softmax", "logsumexp", "loss_head", "normalize", "rms_norm",
    "scaled_dot_product_attention", "softmax", "softmin", "tvd", "var_mean",
]  # fmt: skip
