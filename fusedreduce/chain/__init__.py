"""Fused functions to the normal form: tensors that know their axes, not their numbers."""

from fusedreduce.chain import views as _views  # fills VIEWS
from fusedreduce.chain.chain import Chain
from fusedreduce.chain.tensor import TracedTensor, normalized_dims

assert _views

__all__ = ["Chain", "TracedTensor", "normalized_dims"]
