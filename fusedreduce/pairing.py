"""From a declaration, a score, a mask and operands to a pair, and to what it is run on.

A `PairTask` is what somebody asked for, without any tensor: equal tasks share everything that was
made for one of them. A call's arguments have fixed names: q, k, v, the number `scale`, the user's
tensors of the score s0, s1, ... and of the mask m0, ..., other operands o0, ..., two offsets, of
dropout the tensor `seed` and the numbers `dropped` and `kept`, and the tensor `sinks` (H,).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce import pipeline
from fusedreduce.blocks.bound import Bound, require_state
from fusedreduce.declare.dropped import dropped, keep_of
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction
from fusedreduce.declare.restrict import restricted
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.expr import Expr, const, names, substitute, var
from fusedreduce.masks.sources import Prepare, bind, one_by_one
from fusedreduce.masks.text import direct, has_tables, makes_tables, over
from fusedreduce.pair import INDICES, SCORE, SIZES, Pair, Read, Table, results_of
from fusedreduce.program import typed
from fusedreduce.request import require_positions, state_dtype
from fusedreduce.run import eager
from fusedreduce.run.pair_dropout import Offsets, keep, kept
from fusedreduce.run.pair_inputs import NO_TABLES, PairInputs
from fusedreduce.run.pair_sinks import SINKS, sink
from fusedreduce.trace import dtype_kind
from fusedreduce.trace import kind_of as trace_kind

Values = Mapping[str, Any]
WHOLE = "whole"


@dataclass(frozen=True)
class PairTask:
    """A declared reduction over the keys of each query: what `pairwise` asks for.

    outputs   of the declaration
    state     `WHOLE`: the slots of the state are the results, as `state.<slot>`
    scaled    the raw score is multiplied by the number `scale` first
    score     the text of a `Score`, "" for none; mask, the text of a `Mask`, likewise
    operands  the declaration's operands but the score, in the order of the arguments o0, o1, ...
    varying   for each of them the indices that it varies with: "bhj" of a tensor (B, H, 1, Sk)
    dropout   payloads are dropped at random: the offsets of queries and keys, by name or 0
    sinks     each head has an element before every key, of score sinks[h] and with payloads of 0
    """

    R: type[Reduction]
    outputs: tuple[str, ...]
    state: str = ""
    scaled: bool = False
    score: str = ""
    mask: str = ""
    operands: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    dropout: Offsets | None = None
    sinks: bool = False

    @property
    def name(self) -> str:
        return self.R.__name__.lower()

    @property
    def origin(self) -> str:
        return self.R.record.line

    @cached_property
    def home(self) -> tuple[str, str, str]:
        """Where the declaration is, and what: its text and the options of the call."""
        place = f"{self.R.__module__}:{self.R.__qualname__}"
        return "pairs", place, repr((digest(self.R), *self.options))

    @cached_property
    def is_bare(self) -> bool:
        """Is no table read?"""
        return not (has_tables(self.score) or has_tables(self.mask) or self.besides)

    @property
    def besides(self) -> tuple[str, ...]:
        """Arguments that may be tables, but for those of score and mask."""
        operands = (f"o{k}" for k in range(len(self.operands)))
        return *operands, *["seed"] * bool(self.dropout), *[SINKS] * self.sinks

    @cached_property
    def makes_tables(self) -> bool:
        """Is a table read whose length depends on the offsets?"""
        return makes_tables(self.score) or makes_tables(self.mask)

    @property
    def options(self) -> tuple[Any, ...]:
        return (
            self.outputs, self.state, self.scaled, self.score, self.mask, self.operands,
            self.varying, self.dropout, self.sinks,
        )  # fmt: skip

    @cached_property
    def score_tables(self) -> dict[str, int]:
        """The tables of the score that are tensors of the user: which one each is."""
        return {f"s{k}": n for k, n in direct(self.score).items()} if self.score else {}

    def eager(self, values: Values) -> dict[str, Tensor]:
        """By the user's own functions on all scores at once."""
        given, record = Given(self, values), self.R.record
        v = values.get("v")
        if v is None and record.payloads:  # no output that is asked for reads it
            v = values["k"].new_zeros(()).expand(*values["k"].shape[:3], 1)
        operands = {n: four(values[f"o{k}"], values["q"]) for k, n in enumerate(self.operands)}
        arguments = (self.R, values["q"], values["k"], v, given.score, given.mask)
        weigh = given.keep if self.dropout else None
        first = values[SINKS][:, None, None] if self.sinks else None
        with pipeline.meaning():
            if not self.state:
                return eager.pair(*arguments, self.outputs, operands, keep=weigh, first=first)
            found = eager.pair_state(*arguments, operands, keep=weigh, first=first)
        return {f"state.{s.name}": found[s.name] for s in record.slots}


def four(value: Any, like: Tensor) -> Tensor:
    """An operand as a tensor of four dimensions."""
    if isinstance(value, Tensor):
        return value
    dtype = state_dtype(like.dtype) if isinstance(value, float) else None
    return torch.full((1, 1, 1, 1), value, dtype=dtype, device=like.device)


def digest(R: type[Reduction]) -> str:
    return hashlib.sha256(R.record.text.encode()).hexdigest()[:8]


class Given:
    """The arguments of a call, with score and mask bound to its lengths.

    prepare   who makes the tables that depend on lengths
    """

    def __init__(self, task: PairTask, values: Values, prepare: Prepare = one_by_one) -> None:
        self.task, self.values, self.prepare = task, values, prepare

    @cached_property
    def score_bound(self) -> Bound | None:
        return self.bound("score", self.task.score, "s")

    @cached_property
    def mask_bound(self) -> Bound | None:
        return self.bound("mask", self.task.mask, "m")

    def bound(self, what: str, text: str, prefix: str) -> Bound | None:
        if not text:
            return None
        q, k = self.values["q"], self.values["k"]
        given = [v for n, v in self.values.items() if n[0] == prefix and n[1:].isdigit()]
        numbers = {"Sq": q.shape[2], "Sk": k.shape[2]}
        numbers |= {"q_offset": self.offset("q"), "k_offset": self.offset("k")}
        batch = {"b": q.shape[0], "h": q.shape[1]}
        state = state_dtype(q.dtype)
        bound = bind(
            *over(text, given), numbers, q.device, what, batch, state, prepare=self.prepare
        )
        require_state(what, bound)
        return bound

    def offset(self, of: str) -> int:
        return int(self.values[f"{of}_offset"])

    # -- as a pair

    @property
    def tables(self) -> Mapping[str, Tensor]:
        """Those of score and mask under different names, and the operands'."""
        if self.task.is_bare:
            return NO_TABLES
        found: dict[str, Tensor] = {}
        if has_tables(self.task.score) and self.score_bound:
            found |= self.score_bound.renamed("s").tables
        if has_tables(self.task.mask) and self.mask_bound:
            found |= self.mask_bound.renamed("m").tables
        return found | {n: v for n in self.task.besides if isinstance(v := self.values[n], Tensor)}

    def inputs(self, numbers: tuple[str, ...]) -> PairInputs:
        v = self.values
        q, k, at = v["q"], v["k"], (self.offset("q"), self.offset("k"))
        require_positions(q.shape[2], k.shape[2], *at)
        return PairInputs(q, k, v.get("v"), self.tables, {n: v[n] for n in numbers}, *at)

    # -- as functions of index tensors, for the meaning

    def score(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if self.task.scaled:
            score = score * self.values["scale"]
        return score if self.score_bound is None else self.score_bound.evaluate(b, h, i, j, score)

    @property
    def mask(self) -> Any:
        return None if self.mask_bound is None else self.mask_bound.evaluate

    def keep(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert self.task.dropout is not None
        offsets = {"q_offset": self.offset("q"), "k_offset": self.offset("k")}
        at = {"b": b, "h": h, "i": i, "j": j, **offsets}
        return kept(self.task.dropout, self.values, at, state_dtype(self.values["q"].dtype))


def pair_of(task: PairTask, values: Values, trust: bool) -> Pair:
    """The normal form for arguments of these dtypes and widths."""
    given = Given(task, values)
    record = record_of(task, values, trust)
    score = given.score_bound.renamed("s").expr if given.score_bound else var(SCORE)
    seen = given.mask_bound.renamed("m").expr if given.mask_bound else None
    if task.scaled:
        score = substitute(score, {SCORE: var(SCORE) * var("scale")})
    operands = [(record.operands[0], score)]
    operands += [(n, operand(task, k, values)) for k, n in enumerate(task.operands)]
    if task.dropout:
        operands.append((keep_of(record), keep(task.dropout)))
        record = dropped(record)
    first = sink(record) if task.sinks else ()
    exprs = [*(e for _, e in operands), *([] if seen is None else [seen]), *(e for _, e in first)]
    tables = {n: Table(n, t.dim(), name_of(t.dtype)) for n, t in given.tables.items()}
    reads = ir_tables.reads(*exprs)
    read = set(ir_tables.tables(*exprs))
    variables = names(*exprs)
    numbers = tuple(n for n, v in values.items() if isinstance(v, float) and n in variables
                    and n not in SIZES)  # fmt: skip
    q, v = values["q"], values.get("v")
    dtype, state = name_of(q.dtype), name_of(state_dtype(q.dtype))
    return Pair(
        task.name, record, tuple(operands), seen,
        tuple(t for n, t in tables.items() if n in read),
        tuple(read_of(node, tables) for node in reads), numbers,
        results_of(record, task.outputs, bool(task.state), dtype, state), dtype, state,
        q.shape[-1], 0 if v is None else v.shape[-1], first,
    )  # fmt: skip


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def record_of(task: PairTask, values: Values, trust: bool) -> Record:
    """The certified record with the fields that are needed here, and their types."""
    kinds = tuple([kind_of_value(values[f"o{k}"]) for k in range(len(task.operands))])
    return _record_of(task, kinds, "v" in values, trust)


@lru_cache(maxsize=1024)
def _record_of(task: PairTask, operands: tuple[str, ...], payload: bool, trust: bool) -> Record:
    for part in task.R.parts:  # a join has no definition of its own: parts are judged by theirs
        pipeline.certified(part.record, trust)
    record, _ = pipeline.certified(task.R.record, trust)
    kinds = dict.fromkeys(("b", "h", "i"), "int")
    kinds |= dict.fromkeys((record.operands[0], *record.payloads), "float")
    kinds |= zip(task.operands, operands, strict=True)
    record = restricted(typed(record, kinds), frozenset(task.outputs), bool(task.state))
    return record if payload else replace(record, payloads=())


def kind_of_value(value: Any) -> str:
    return dtype_kind(value.dtype) if isinstance(value, Tensor) else trace_kind(value)


def operand(task: PairTask, k: int, values: Values) -> Expr:
    """What an operand is: a read of its table, a run-time number, or a constant."""
    name = f"o{k}"
    value = values[name]
    if isinstance(value, Tensor):
        return ir_tables.element(name, [var(d) if d in task.varying[k] else const(0)
                                        for d in INDICES])  # fmt: skip
    return var(name) if isinstance(value, float) else const(value)


def read_of(node: Expr, tables: Mapping[str, Table]) -> Read:
    name, indices = ir_tables.split(node)
    return Read(node, name, tuple(indices.get(d, const(0)) for d in range(tables[name].dims)))
