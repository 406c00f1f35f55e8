"""Calls that come again: what was checked of tensors that lie as these do is not checked anew.

A call is known by its options and by how q, k and v lie. Only what cannot change behind its back is
remembered: masks and scores that read no tensor, outside of everything that torch looks on at.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedreduce.masks import Mask, Score
from fusedreduce.pair_runner import PairRunner
from fusedreduce.request import TENSORS
from fusedreduce.runner import Prepared, is_free

MOST = 512
NUMBERS = frozenset((type(None), bool, int, float, str))


@dataclass(slots=True)
class Call:
    """What is left to do: the runner, what it prepared, the arguments that are not tensors."""

    runner: PairRunner
    ready: Prepared
    fixed: dict[str, Any]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        values = {"q": q, "k": k, "v": v, **self.fixed}
        found: dict[str, Tensor] = self.runner.go(self.ready, values)
        return found


_calls: OrderedDict[Any, Call] = OrderedDict()


def key_of_call(
    R: Any, q: Any, k: Any, v: Any, texts: tuple[Any, ...], options: tuple[Any, ...]
) -> Any:
    """What a call is known by; None where it is to be checked each time.

    texts   masks and scores; options, numbers and names
    """
    for t in (q, k, v):
        if type(t) not in TENSORS or t.is_nested or t.is_neg() or t.layout != torch.strided:
            return None
    for o in options:
        if type(o) not in NUMBERS:
            return None
    kind = q.device.type
    if kind not in ("cpu", "cuda") or torch.is_autocast_enabled(kind) or not is_free():
        return None
    known = []
    for text in texts:
        if text is not None and (not isinstance(text, (Mask, Score)) or text.sources):
            return None
        known.append(None if text is None else text.text)
    return (
        q.shape, q.stride(), q.dtype, q.device, k.shape, k.stride(), k.dtype, k.device,
        v.shape, v.stride(), v.dtype, v.device, R, *known, *options, *map(type, options),
    )  # fmt: skip


def find(key: Any) -> Call | None:
    return None if key is None else _calls.get(key)


def remember(key: Any, runner: PairRunner, values: dict[str, Any], impl: str | None) -> None:
    """A call that went well, if what was prepared for it is kept."""
    ready = runner.prepared.get(runner.key(values, impl, False)) if key is not None else None
    if ready is None:
        return
    fixed = {n: x for n, x in values.items() if n not in "qkv"}
    _calls[key] = Call(runner, ready, fixed)
    if len(_calls) > MOST:
        _calls.popitem(last=False)
