"""explain: what a call would do, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusedreduce.errors import OptionError, message
from fusedreduce.pair_runner import PairRunner
from fusedreduce.report import pairs, rows
from fusedreduce.runner import Noted, noting


def explain(
    call: Callable[..., Any], /, *args: Any, architecture: str | None = None, **kw: Any
) -> str:
    """What call(*args, **kw) would run, as text: implementation and reason, plans, blocks, memory.

    call          `fr.attention`, `fr.pairwise`, `fr.reduce`, a fused function, an operation of
                  `fr.ops`, a module of `fr.nn`, or a function that calls some of them
    architecture  "sm_90", ...: plans and compiles for it; None: for the tensors' own GPU, else for
                  sm_90

    Nothing is launched: what is called inside answers empty tensors. Tensors on device "meta" do.
    Kernels are compiled ahead of time for their registers, spilled bytes and shared memory; where
    that is impossible the line says why. Raises what the call raises for wrong arguments, and
    `OptionError` where the call reduces nothing.

    >>> import torch, fusedreduce as fr
    >>> q = torch.empty(1, 1, 8192, 64, dtype=torch.bfloat16, device="meta")
    >>> for line in fr.explain(fr.attention, q, q, q, is_causal=True).splitlines():
    ...     if "memory" in line or "saved" in line:
    ...         print(line.strip())
    blocks    16,384 of 64 x 64: 8,128 skipped, 128 partial, 8,128 full; 49.6 % of the work saved
    memory    scores, 134.2 MB, are never stored; for the backward 32.8 kB, 1 number a query
    """
    return "\n\n".join(
        pairs.text(found, architecture)
        if isinstance(found.runner, PairRunner)
        else rows.text(found, architecture)
        for found in noted(call, *args, **kw)
    )


def noted(call: Callable[..., Any], /, *args: Any, **kw: Any) -> list[Noted]:
    """The reductions that a call runs, in order, not run."""
    if not callable(call):
        raise OptionError(
            message("explain: the first argument is not called", expected="a function, then its "
                    "arguments: fr.explain(fr.attention, q, k, v)", came=type(call).__name__)
        )  # fmt: skip
    with noting() as calls:
        call(*args, **kw)
    if not calls:
        name = getattr(call, "__name__", type(call).__name__)
        raise OptionError(
            message(f"explain: {name} ran no reduction of this library",
                    expected="fr.attention, fr.reduce, a fused function, ...")
        )  # fmt: skip
    return calls
