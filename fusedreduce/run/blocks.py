"""Block maps and their lists, for whoever runs kernels; `fusedreduce.blocks` makes them."""

from fusedreduce.blocks.bound import Bound

__all__ = ["Bound"]
