"""Calls that come again: what was checked of tensors that lie as these do is not checked anew.

A call is known by its options and by how q, k and v lie. Only what cannot change behind its back is
remembered: masks and scores that read no tensor, outside of everything that torch looks on at.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedreduce.masks import Mask, Score
from fusedreduce.pair_prepared import PreparedPair
from fusedreduce.pair_runner import PairRunner
from fusedreduce.request import TENSORS
from fusedreduce.run import autograd
from fusedreduce.run.calls import Direct
from fusedreduce.run.pair_inputs import NO_TABLES, PairInputs
from fusedreduce.runner import is_free

MOST = 512
NUMBERS = frozenset((type(None), bool, int, float, str))


@dataclass(slots=True)
class Call:
    """What is left to do: what was prepared, and the arguments that are not tensors.

    numbers   those of them that kernels read; offsets, of the positions of queries and keys
    calls     as autograd sees them, by the tensors that get a gradient
    """

    ready: PreparedPair
    fixed: dict[str, Any]
    numbers: dict[str, float]
    offsets: tuple[int, int]
    calls: dict[tuple[str, ...], Direct] = field(default_factory=dict)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        """NOTE: nothing stands between this and the launch, or autograd."""
        if torch.is_grad_enabled():
            wanted = tuple([n for n, t in (("q", q), ("k", k), ("v", v)) if t.requires_grad])
            if wanted:
                return self.differentiable(wanted, (q, k, v))
        return self.ready.by_inputs(PairInputs(q, k, v, NO_TABLES, self.numbers, *self.offsets))

    def differentiable(
        self, wanted: tuple[str, ...], tensors: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        call = self.calls.get(wanted)
        if call is None:
            values = {**dict(zip("qkv", tensors, strict=True)), **self.fixed}
            call = self.calls[wanted] = Direct(self.ready.plan(values, wanted), self.fixed)
        return dict(zip(call.plan.outputs, autograd.run(call, tensors), strict=True))


_calls: OrderedDict[Any, Call] = OrderedDict()


def key_of_call(
    R: Any, q: Any, k: Any, v: Any, mask: Any, score: Any, options: tuple[Any, ...]
) -> Any:
    """What a call is known by; None where it is to be checked each time.

    options   numbers and names

    NOTE: an attribute of a tensor takes 0.05 to 0.15 us, its device 0.6 us by its name.
    """
    for t in (q, k, v):
        if type(t) not in TENSORS or t.is_nested or t.is_neg() or t.layout is not torch.strided:
            return None
    on_gpu = q.is_cuda
    if not (on_gpu and k.is_cuda and v.is_cuda) and not (q.is_cpu and k.is_cpu and v.is_cpu):
        return None
    kinds = tuple(map(type, options))
    if not NUMBERS.issuperset(kinds):
        return None
    if torch.is_autocast_enabled("cuda" if on_gpu else "cpu") or not is_free():
        return None
    for text in (mask, score):
        if text is not None and (not isinstance(text, (Mask, Score)) or text.sources):
            return None
    return (
        q.shape, q.stride(), q.dtype, q.get_device(), k.shape, k.stride(), k.dtype, k.get_device(),
        v.shape, v.stride(), v.dtype, v.get_device(), R, None if mask is None else mask.text,
        None if score is None else score.text, kinds, options,
    )  # fmt: skip


def find(key: Any) -> Call | None:
    return None if key is None else _calls.get(key)


def remember(key: Any, runner: PairRunner, values: dict[str, Any], impl: str | None) -> None:
    """A call that went well, if what was prepared for it is kept."""
    ready: Any = runner.prepared.get(runner.key(values, impl, False)) if key is not None else None
    if ready is None:
        return
    fixed = {n: x for n, x in values.items() if n not in "qkv"}
    numbers = {n: values[n] for n in ready.pair.numbers}
    at = int(values["q_offset"]), int(values["k_offset"])
    _calls[key] = Call(ready, fixed, numbers, at)
    if len(_calls) > MOST:
        _calls.popitem(last=False)
