"""Calls that come again: what was checked of tensors that lie as these do is not checked anew.

A call is known by its options and by how its tensors lie, those it reads besides q, k and v too:
its mask's, its score's and its sinks. What is in them is read in every call. Nothing is remembered
of calls that torch looks on at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fusedreduce.masks import Mask, Score
from fusedreduce.pair_prepared import PreparedPair
from fusedreduce.pair_runner import PairRunner
from fusedreduce.request import is_odd
from fusedreduce.run import autograd
from fusedreduce.run.calls import Direct
from fusedreduce.run.pair_inputs import NO_TABLES, PairInputs
from fusedreduce.runner import is_free
from fusedreduce.trace.closures import TENSORS, parts_of
from fusedreduce.trace.compiled import outside_graphs

MOST = 512
NUMBERS = frozenset((type(None), bool, int, float, str))


@dataclass(slots=True)
class Call:
    """What is left to do: what was prepared, and the arguments that are not tensors.

    numbers   those of them that kernels read; offsets, of the positions of queries and keys
    tables    names of tensors that the call reads besides, and which of these each is
    calls     as autograd sees them, by the tensors that get a gradient
    """

    ready: PreparedPair
    fixed: dict[str, Any]
    numbers: dict[str, float]
    offsets: tuple[int, int]
    tables: tuple[tuple[str, int], ...]
    calls: dict[tuple[str, ...], Direct] = field(default_factory=dict)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, others: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """NOTE: nothing stands between this and the launch, or autograd.

        others   the tensors of mask and score, and sinks
        """
        values = {"q": q, "k": k, "v": v}
        if self.tables:
            values |= {n: others[at] for n, at in self.tables}
        if torch.is_grad_enabled():
            wanted = tuple([n for n, t in values.items() if t.requires_grad])
            if wanted:
                return self.differentiable(wanted, values)
        if self.tables:
            found = self.ready.run({**values, **self.fixed})
            return dict(zip(self.ready.structure, found, strict=True))
        return self.ready.by_inputs(PairInputs(q, k, v, NO_TABLES, self.numbers, *self.offsets))

    def differentiable(
        self, wanted: tuple[str, ...], tensors: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        call = self.calls.get(wanted)
        if call is None:
            plan = self.ready.plan({**tensors, **self.fixed}, wanted)
            call = self.calls[wanted] = Direct(plan, self.fixed)
        made = autograd.run(call, [*tensors.values()])
        return dict(zip(call.plan.outputs, made, strict=True))


_calls: OrderedDict[Any, Call] = OrderedDict()


def subject(given: Any) -> tuple[Any, tuple[Tensor, ...]] | None:
    """What a mask or a score is known by, and the tensors it reads; None where by nothing."""
    if given is None:
        return None, ()
    if isinstance(given, (Mask, Score)):
        return given.text, given.tensors if given.sources else ()
    return parts_of(given) if type(given) is FunctionType else None


def key_of_call(
    R: Any, q: Any, k: Any, v: Any, mask: Any, score: Any, sinks: Any, options: tuple[Any, ...]
) -> tuple[Any, tuple[Tensor, ...]]:
    """What a call is known by, and the tensors of mask and score, and sinks.

    None: it is to be checked each time. options: numbers and names, and whether there are sinks

    NOTE: an attribute of a tensor takes 0.05 to 0.15 us, its device 0.6 us by its name.
    """
    seen, scored = subject(mask), subject(score)
    if seen is None or scored is None or not isinstance(R, type):
        return None, ()
    others = seen[1] + scored[1] if sinks is None else (*seen[1], *scored[1], sinks)
    for t in (q, k, v, *others):
        if type(t) not in TENSORS or t.layout is not torch.strided or is_odd(t):
            return None, ()
    on_gpu = q.is_cuda
    if not (on_gpu and k.is_cuda and v.is_cuda) and not (q.is_cpu and k.is_cpu and v.is_cpu):
        return None, ()
    kinds = tuple(map(type, options))
    if not NUMBERS.issuperset(kinds):
        return None, ()
    if torch.is_autocast_enabled("cuda" if on_gpu else "cpu") or not is_free():
        return None, ()
    if len(others) > 1 and len(others) > len(set(map(id, others))):
        return None, ()
    known = tuple([(t.shape, t.stride(), t.dtype, t.device) for t in others])
    key = (
        q.shape, q.stride(), q.dtype, q.get_device(), k.shape, k.stride(), k.dtype, k.get_device(),
        v.shape, v.stride(), v.dtype, v.get_device(), R, seen[0], scored[0], known, kinds, options,
    )  # fmt: skip
    return key, others


def traced(given: Any, make: Callable[[Any], Mask | Score], key: Any) -> tuple[Any, Any]:
    """A plain function as a mask or a score, and the key, None where it is to be traced anew."""
    if type(given) is not FunctionType:
        return given, key
    made = make(given)
    return made, key if made.replayable else None


@outside_graphs
def answered(
    R: Any, q: Any, k: Any, v: Any, mask: Any, score: Any, sinks: Any, options: tuple[Any, ...]
) -> tuple[dict[str, Tensor] | None, Any, tuple[Tensor, ...]]:
    """The results of a call that was met before; else None, and what `key_of_call` says of it.

    NOTE: where torch.compile gave `attention` up, for a bare function, it would go on in here.
    """
    key, others = key_of_call(R, q, k, v, mask, score, sinks, options)
    again = None if key is None else _calls.get(key)
    return None if again is None else again(q, k, v, others), key, others


def remember(
    key: Any, runner: PairRunner, values: dict[str, Any], impl: str | None, others: Sequence[Tensor]
) -> None:
    """A call that went well, if what was prepared for it is kept and its tensors are known."""
    ready: Any = runner.prepared.get(runner.key(values, impl, False)) if key is not None else None
    if ready is None:
        return
    places = {id(t): at for at, t in enumerate(others)}
    read = {n: x for n, x in values.items() if n not in "qkv" and isinstance(x, Tensor)}
    if not all(id(t) in places for t in read.values()):
        return
    tables = tuple((n, places[id(t)]) for n, t in read.items())
    fixed = {n: x for n, x in values.items() if n not in "qkv" and n not in read}
    numbers = {n: values[n] for n in ready.pair.numbers}
    at = int(values["q_offset"]), int(values["k_offset"])
    _calls[key] = Call(ready, fixed, numbers, at, tables)
    if len(_calls) > MOST:
        _calls.popitem(last=False)
