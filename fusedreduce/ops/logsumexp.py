"""logsumexp: max + log sum exp(x - max)."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedreduce.api.reduce import reduce
from fusedreduce.api.repeated import repeated
from fusedreduce.errors import ShapeError, message
from fusedreduce.ops.arguments import require_tensor, result_dtype
from fusedreduce.reductions import LogSumExp


@repeated
def logsumexp(
    input: Tensor, dim: int | tuple[int, ...], keepdim: bool = False, *, impl: str | None = None
) -> Tensor:
    """log sum_j exp(x_j) over one dimension or several, as torch.logsumexp.

    The input's dtype, torch's default for integers. A row of nothing, or of -inf alone, is -inf;
    what flows back into such a row is 0. Raises `ShapeError` for a `dim` that is none.

    >>> import torch, fusedreduce as fr
    >>> fr.ops.logsumexp(torch.tensor([[1000.0, 1000.0]]), dim=1)
    tensor([1000.6932])
    """
    require_tensor("logsumexp", "input", input, floating=False)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        raise ShapeError(
            message("logsumexp: `dim` names no dimension", expected="an integer or several",
                    came=repr(dim), do="for all of them: dim=tuple(range(input.dim()))")
        )  # fmt: skip
    floating = input.dtype.is_floating_point
    dtype = result_dtype(input) if floating else torch.get_default_dtype()
    return reduce(LogSumExp, input, dim, keepdim, dtype=dtype, impl=impl)
