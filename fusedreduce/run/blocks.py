"""Block maps and their lists, for whoever runs kernels; `fusedreduce.blocks` makes them."""

from fusedreduce.blocks.bound import Bound
from fusedreduce.blocks.classify import classify
from fusedreduce.blocks.lists import BlockLists, lists

__all__ = ["BlockLists", "Bound", "classify", "lists"]
