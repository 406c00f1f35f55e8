"""Who sees whom: masks and scores of pairs, declared on indices, composed with &, | and ~.

>>> import torch, fusedreduce as fr
>>> seen = fr.masks.causal & fr.masks.window(1, 0)
>>> fr.pairwise(fr.reductions.LogSumExp, *torch.zeros(2, 1, 1, 4, 8), mask=seen).exp()
tensor([[[1., 2., 2., 2.]]])
"""

from fusedreduce.masks.anything import from_anything
from fusedreduce.masks.library import (
    blocks,
    causal,
    causal_bottom_right,
    cu_seqlens,
    dilated,
    document,
    everything,
    neighbourhood_2d,
    prefix,
    window,
)
from fusedreduce.masks.predicate import Mask, mask
from fusedreduce.masks.score import Score, score

__all__ = [
    "Mask", "Score", "blocks", "causal", "causal_bottom_right", "cu_seqlens", "dilated", "document",
    "everything", "from_anything", "mask", "neighbourhood_2d", "prefix", "score", "window",
]  # fmt: skip
