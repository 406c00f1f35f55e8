"""Who sees whom: masks and scores of pairs, declared on indices, composed with &, | and ~."""

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
