"""The operators fusedreduce::rows, ::pairs and their backwards: how torch sees a run it looks at.

    rows(key, tensors, numbers)           -> outputs, then what the backward reads
    rows_backward(key, tensors, numbers)  -> a gradient for each wanted input
                                             (tensors: inputs, gradients of outputs, saved values)

and the same for pairs. `key` says which function, which of its arguments are what, and the values
of those that are fixed; `operators` turns it into an `Entry`. All are defined once, when the
package is imported: a schema cannot be made inside a compiled region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fusedreduce.run.autograd import in_front

Tensors = list[Tensor]


class Entry(Protocol):
    """What a key stands for."""

    def forward(self, tensors: Tensors, numbers: Sequence[float]) -> Tensors: ...

    def backward(self, tensors: Tensors, numbers: Sequence[float]) -> Tensors: ...

    def fake_forward(self, tensors: Tensors, numbers: Sequence[float]) -> Tensors: ...

    def fake_backward(self, tensors: Tensors, numbers: Sequence[float]) -> Tensors: ...

    def batched(self) -> Entry: ...

    def learn(self, inside: Any) -> None: ...

    @property
    def key(self) -> str: ...


Lookup = Callable[[str], Entry]

# NOTE: the operators disappear when this object is garbage collected (torch 2.13).
LIBRARY = torch.library.Library("fusedreduce", "FRAGMENT")  # type: ignore[no-untyped-call]
SCHEMA = "(str key, Tensor[] tensors, float[] numbers) -> Tensor[]"


def define(operator: str, find: Lookup) -> None:
    """Define an operator and its backward; `find` answers what a key stands for."""
    for name, method in ((operator, "forward"), (f"{operator}_backward", "backward")):
        tags = (torch.Tag.pt2_compliant_tag,)
        LIBRARY.define(name + SCHEMA, tags=tags)  # type: ignore[no-untyped-call]
        for device in ("CPU", "CUDA"):
            LIBRARY.impl(name, _calling(find, method), device)  # type: ignore[no-untyped-call]
        fake = _calling(find, f"fake_{method}")
        torch.library.register_fake(f"fusedreduce::{name}", fake, lib=LIBRARY)
        torch.library.register_vmap(f"fusedreduce::{name}", _batching(name, find), lib=LIBRARY)


def _calling(find: Lookup, method: str) -> Callable[[str, Tensors, Sequence[float]], Tensors]:
    def function(key: str, tensors: Tensors, numbers: Sequence[float]) -> Tensors:
        found: Tensors = getattr(find(key), method)(tensors, numbers)
        return found

    return function


def _batching(name: str, find: Lookup) -> Callable[..., Any]:
    """vmap: the same function with one more outer axis, which every tensor has in front."""

    def rule(
        info: Any, in_dims: Any, key: str, tensors: Tensors, numbers: Sequence[float]
    ) -> tuple[Tensors, list[int]]:
        entry = find(key)
        inside = entry.batched()
        wide = in_front(tensors, in_dims[1], info.batch_size)
        found = getattr(torch.ops.fusedreduce, name)(inside.key, wide, numbers)
        entry.learn(inside)
        return found, [0] * len(found)

    return rule


def call(name: str, key: str, tensors: Sequence[Tensor], numbers: Sequence[float]) -> Tensors:
    """fusedreduce::name(key, tensors, numbers)."""
    operator = getattr(torch.ops.fusedreduce, name)
    found: Tensors = operator(key, list(tensors), list(numbers))
    return found
