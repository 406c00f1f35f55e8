"""Learned sinks of attention: a virtual key a head, whose state is merged with that of the keys."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce import pipeline
from fusedreduce.api.pairwise import PairCall
from fusedreduce.declare.record import Record
from fusedreduce.errors import ShapeError, message
from fusedreduce.gradient.pair_state import unit_sum
from fusedreduce.ir.expr import call as op
from fusedreduce.ir.expr import const, rewrite, substitute, var
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import is_vector
from fusedreduce.run import merging

State = dict[str, Tensor]


def with_sinks(call: PairCall, sinks: Any) -> State:
    """The outputs of a call to whose keys each head adds one, of these scores and of v = 0."""
    heads = call.q.shape[1]
    if not isinstance(sinks, Tensor) or sinks.shape != (heads,) or not sinks.is_floating_point():
        came = f"{tuple(sinks.shape)}, {sinks.dtype}" if isinstance(sinks, Tensor) else repr(sinks)
        raise ShapeError(
            message("attention: `sinks` are no logits of heads", came=came,
                    expected=f"a float tensor of shape ({heads},), one a head of q")
        )  # fmt: skip
    record = pipeline.certified(call.R.record)[0]
    names, short = state_names(record), call.q.dtype.itemsize == 2
    if names is not None and short and set(call.outputs) <= {"out", "lse"}:
        return by_results(call, record, names, sinks)
    # NOTE: a transform may differentiate twice without telling; autograd tells (`Plan.joint`).
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    joint = set(call.outputs) <= set(record.gauge) and not transformed
    which = "joint" if joint else "whole"
    state = call.state(which)
    seed = sink_of(call.record(which), sinks, min(state.values(), key=Tensor.dim))
    seed = {n: (t[..., None] if t.dim() < state[n].dim() else t).expand(state[n].shape)
            for n, t in seed.items()}  # fmt: skip
    return call.finished(which, call.merged(which, seed, state))


def sink_of(record: Record, sinks: Tensor, like: Tensor) -> State:
    """The state of one virtual key a head, (B, H, Sq) each, as `like` is."""
    floats = like.dtype if like.is_floating_point() else torch.float32
    logits = sinks.to(floats)[:, None].expand(like.shape)
    nothing = dict.fromkeys(record.payloads, torch.zeros_like(logits))
    return merging.lift(record, {record.operands[0]: logits} | nothing)


# ---- in 16 bits: the results are the state ------------------------------------------------------


def by_results(call: PairCall, record: Record, names: tuple[str, str, str], sinks: Tensor) -> State:
    """The same from out and lse: the state at the reference where its sum is 1.

    v of the sink is 0, so `out` is multiplied by what becomes of a payload of 1: one number a
    query. In 16 bits the backward keeps the state as this one number anyway.
    """
    found = replace(call, outputs=("out", "lse")).results()
    out, lse = found["out"], found["lse"]
    reference, total, vector = names
    there = (lse != float("-inf")).to(lse.dtype)
    one = {reference: lse, total: there, vector: there}
    made = merging.finish(record, merging.merge(record, sink_of(record, sinks, lse), one))
    scaled = (out * made["out"][..., None]).to(out.dtype)
    return {n: scaled if n == "out" else made[n] for n in call.outputs}


@lru_cache(maxsize=64)
def state_names(record: Record) -> tuple[str, str, str] | None:
    """Reference, sum and vector of a state that (lse, 1, out) is too; None where it is not.

    Claim   every output is gauge and a sum moves by exp (`unit_sum`): a state may be moved to where
            that sum is 1. If there `out` is the vector and `lse` the reference, they are the state.
    """
    unit, finish = unit_sum(record), dict(record.finish)
    vectors = [f.name for f in record.fields if is_vector(record, f)]
    if unit is None or len(vectors) != 1 or not {"out", "lse"} <= set(finish):
        return None
    names = unit.reference, unit.sum, vectors[0]
    if {f.name for f in record.fields} != set(names):
        return None
    at = dict(zip(names, (var("lse"), const(1.0), var("out")), strict=True))
    log_of_one = {op("log", const(1.0)): const(0.0)}
    results = {n: rewrite(substitute(finish[n], at), log_of_one.get) for n in ("out", "lse")}
    return names if all(simplify(e) is var(n) for n, e in results.items()) else None
