"""prove and derive: the proofs, imported on first use so that sympy is not paid for before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusedreduce.declare.reduction import Reduction, require_reduction
from fusedreduce.pipeline import ONE_AT_A_TIME


def prove(R: type[Reduction]) -> Any:
    """The certificate of a declaration: each law proved, refuted, checked or unknown.

    Always returns one: `.proved`, `.laws`, `.facts`, `.raise_if_refuted()`; `str()` is short.

    >>> import fusedreduce as fr
    >>> fr.prove(fr.reductions.LogSumExp).proved
    True
    """
    from fusedreduce import laws

    with ONE_AT_A_TIME:
        return laws.prove(require_reduction(R))


def derive(
    term: Callable[..., Any],
    reference: str | None = None,
    companions: Any = (),
    parameters: Sequence[str] = (),
) -> Any:
    """The correction that moves sum(term) from one reference to another, or why there is none.

    >>> import torch, fusedreduce as fr
    >>> print(fr.derive(lambda x, m: torch.exp(x - m), reference="m").correction)
    s * exp(old.m - new.m)
    """
    from fusedreduce import laws

    with ONE_AT_A_TIME:
        return laws.derive(term, reference=reference, companions=companions, parameters=parameters)
