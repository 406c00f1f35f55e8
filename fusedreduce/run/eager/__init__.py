"""The meaning: the user's own functions on whole tensors, in two passes; the oracle.

Nothing of the compiler is used here: no expression, no program. What is shared is the edge rule of
`declare.edges`. Everything is differentiable: where a value is masked, what flows back is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedreduce.declare.reduction import Reduction
from fusedreduce.errors import OptionError, message
from fusedreduce.run.eager.pairs import pair, pair_state
from fusedreduce.run.eager.results import finished
from fusedreduce.run.eager.rows import Values, arranged, require_operands
from fusedreduce.run.eager.state import final_state

__all__ = ["pair", "pair_state", "reduce", "state"]


def reduce(
    R: type[Reduction],
    operands: Mapping[str, Tensor | float],
    dims: Sequence[int],
    keepdim: bool = False,
    outputs: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
) -> Values:
    """finish(merge of lift(element) over `dims`), by output name; "" for a bare finish.

    The operands broadcast against the first one. Outputs of a join are keyed "Part.output".

    >>> from fusedreduce.reductions import LogSumExp
    >>> reduce(LogSumExp, {"x": torch.tensor([1000.0, 1000.0])}, (0,))
    {'': tensor(1000.6932)}
    """
    require_operands(R.record, operands)
    results = _results(R, operands, dims, keepdim, dtype)
    return {k: v for k, v in results.items() if outputs is None or k in outputs}


def state(
    R: type[Reduction],
    operands: Mapping[str, Tensor | float],
    dims: Sequence[int],
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Values:
    """The state of the elements over `dims`, by slot. Raises `OptionError` for a join.

    >>> from fusedreduce.reductions import LogSumExp
    >>> state(LogSumExp, {"x": torch.tensor([1000.0, 1000.0])}, (0,))
    {'m': tensor(1000.), 's': tensor(2.)}
    """
    if R.parts or R.record.payloads:
        raise OptionError(
            message(
                "the state of a join or of a payload, run eagerly or differentiated",
                do="ask each declaration of a join for its own state",
            )
        )
    rows = arranged(R.record, operands, dims, keepdim, dtype)
    record, found = final_state(R.record, rows)
    return {s.name: rows.rows(found[s.name]).reshape(rows.final) for s in record.slots}


def _results(
    R: type[Reduction],
    operands: Mapping[str, Any],
    dims: Sequence[int],
    keepdim: bool,
    dtype: torch.dtype | None,
) -> Values:
    """Of a join: those of each part on its own, under the names that the join gave them."""
    if R.parts:
        apart = [v for p in R.parts for v in _results(p, operands, dims, keepdim, dtype).values()]
        return dict(zip(R.record.outputs, apart, strict=True))
    rows = arranged(R.record, operands, dims, keepdim, dtype)
    return finished(*final_state(R.record, rows), rows)
