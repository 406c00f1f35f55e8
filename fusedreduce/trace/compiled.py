"""Python that runs outside of graphs where torch.compile meets it: masks and scores are made so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo

F = TypeVar("F", bound=Callable[..., Any])


def outside_graphs(fn: F) -> F:
    """fn, before which a compiled function ends its graph; with fullgraph=True torch refuses.

    NOTE: torch.compiler.disable would import torch's compiler here, for a second or more.
    """
    skipped = _disable_dynamo(fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return skipped(*args, **kwargs) if torch.compiler.is_compiling() else fn(*args, **kwargs)

    return call  # type: ignore[return-value]
