"""pairwise: a declared reduction over the keys of each query."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedreduce import operators
from fusedreduce.api.operands import is_asked, operands_of, outputs_of
from fusedreduce.api.pair_arguments import (
    as_argument,
    check_deterministic,
    offset,
    placed,
    portable,
    queries_keys,
    seen,
    shifts,
)
from fusedreduce.api.reduce import require_seed, shaped
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction, require_reduction
from fusedreduce.errors import OperandError, OptionError, message
from fusedreduce.masks import Mask, Score
from fusedreduce.pair import depends_on, is_vector
from fusedreduce.pair_runner import PairRunner
from fusedreduce.pairing import WHOLE, PairTask, record_of
from fusedreduce.run import merging, opaque
from fusedreduce.run.pair_dropout import Dropout
from fusedreduce.run.pair_sinks import SINKS
from fusedreduce.trace.compiled import outside_graphs


def _runner_at(place: str, options: str) -> PairRunner:
    """The runner of a declaration that stands in a module that was imported."""
    module, _, path = place.partition(":")
    R: Any = functools.reduce(getattr, path.split("."), sys.modules[module])
    _, *rest = ast.literal_eval(options)
    return runner_of(PairTask(R, *rest))


operators.HOMES["pairs"] = _runner_at


@functools.lru_cache(maxsize=1024)
def runner_of(task: PairTask) -> PairRunner:
    return PairRunner(task)


@functools.lru_cache(maxsize=1024)
def runner_for(R: Any, *options: Any) -> PairRunner:
    """The runner of a task by its parts: what is asked at every call."""
    return runner_of(PairTask(R, *options))


@functools.lru_cache(maxsize=1024)
def reads_v_alone(R: Any, outputs: tuple[str, ...]) -> bool:
    """Is v all that these outputs of a declaration need besides the score?"""
    record = R.record
    alone = len(record.operands) == len(record.payloads) == 1
    return alone and is_asked(record, outputs, record.payloads[0])


def pairwise(
    R: type[Reduction],
    q: Tensor,
    k: Tensor,
    *,
    v: Tensor | None = None,
    score_mod: Any = None,
    mask: Any = None,
    seed: Mapping[str, Tensor] | None = None,
    return_state: bool = False,
    q_offset: int = 0,
    k_offset: int = 0,
    outputs: str | tuple[str, ...] | None = None,
    deterministic: bool | None = None,
    impl: str | None = None,
    trust: bool = False,
    **operands: Any,
) -> Any:
    """finish(merge over keys j of lift(q_i . k_j)) for each query i: the scores are never stored.

    R         a subclass of `Reduction`; its first operand is the score
    q, k      (B, H, Sq, D) and (B, Hk, Sk, D); H is a multiple of Hk, widths of 1 to 512
    v         (B, Hk, Sk, DV), the payload, where an output needs it
    score_mod a function (score, b, h, i, j) of the raw score, or an `fr.score` of one
    mask      who sees whom: a mask, a function (b, h, i, j), a bool tensor; a float tensor is added
              to the scores. What is not seen is absent
    operands  the other operands by name: numbers, or tensors (B, H, Sk) per key, (B, H, Sq) per
              query; where Sq and Sk are equal three dimensions mean keys, and (B, H, Sq, 1) is per
              query. Each size may be 1
    seed      a state (from return_state) whose elements come before these keys
    return_state   answer (value, state): the state is a dict of one tensor a slot
    q_offset, k_offset   the positions of the first query and key in the whole: masks and scores
              count from there
    outputs   one name (a tensor comes back) or several (a dict); None for what `finish` returns
    deterministic   gradients in the same bits every time; None: as torch's own switch says
    impl      None (the best for the device), "eager", "tiles", "triton", "gluon": it or an error
    trust     run without a warning what is neither proved nor refuted

    Vectors are (B, H, Sq, DV) in q's dtype; numbers (B, H, Sq) in the state's, float32 or float64;
    positions int64. A query that sees nothing gets what the declaration says of nothing. Raises
    `LawViolation`, `OperandError`, `ShapeError`, `DtypeError`, `DeviceError` before any launch.

    >>> import torch, fusedreduce as fr
    >>> q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4)
    >>> fr.pairwise(fr.reductions.LogSumExp, q, k).exp()
    tensor([[[3., 3.]]])
    >>> fr.pairwise(fr.reductions.LogSumExp, q, k, mask=lambda b, h, i, j: i >= j).exp()
    tensor([[[1., 2.]]])
    """
    given = dict(v=v, score_mod=score_mod, mask=mask, seed=seed, return_state=return_state,
                 q_offset=q_offset, k_offset=k_offset, outputs=outputs,
                 deterministic=deterministic, impl=impl, trust=trust, **operands)  # fmt: skip
    if torch.compiler.is_compiling():
        given |= {"score_mod": portable(score_mod), "mask": portable(mask)}
        return opaque.call(_pairwise, opaque.named(R), (q, k), given)
    return _pairwise(R, q, k, **given)


@outside_graphs
def _pairwise(
    R: type[Reduction], q: Any, k: Any, /, *, v: Any, score_mod: Any, mask: Any, seed: Any,
    return_state: bool, q_offset: Any, k_offset: Any, outputs: Any, deterministic: bool | None,
    impl: str | None, trust: bool, **operands: Any,
) -> Any:  # fmt: skip
    """What `pairwise` does."""
    require_reduction(R)
    check_deterministic("pairwise", deterministic)
    q, k, v = queries_keys("pairwise", q, k, v)
    q_offset = offset("pairwise", "q_offset", q_offset)
    k_offset = offset("pairwise", "k_offset", k_offset)
    mask, score = seen(mask, score_mod, q, k, shifts(q_offset, k_offset))
    call = PairCall(
        R, q, k, v, None, score, mask, outputs_of(R.record, outputs), operands,
        q_offset, k_offset, impl, trust,
    )  # fmt: skip
    if seed is None and not return_state:
        return shaped(R.record, call.results(), outputs)
    state = call.state()
    if seed is not None:
        require_seed(seed, state, "fr.pairwise")
        state = call.merged(seed, state)
    value = shaped(R.record, call.finished(state), outputs)
    return (value, state) if return_state else value


@dataclass(slots=True)  # frozen, it takes 3 us to make
class PairCall:
    """One checked call: what is reduced, over which pairs.

    scale   the raw score times this; None: as it is
    """

    R: Any  # a type[Reduction]
    q: Tensor
    k: Tensor
    v: Tensor | None
    scale: float | None
    score: Score | None
    mask: Mask | None
    outputs: tuple[str, ...]
    operands: Mapping[str, Any]
    q_offset: int | torch.SymInt
    k_offset: int | torch.SymInt
    impl: str | None
    trust: bool
    dropout: Dropout | None = None
    sinks: Tensor | None = None

    def results(self) -> dict[str, Tensor]:
        """The outputs by name."""
        if not self.outputs:
            raise OptionError(message("no output is asked for", expected="a name, several or None"))
        found: dict[str, Tensor] = self.run("")
        return found

    def state(self) -> dict[str, Tensor]:
        """The slots of the state."""
        return {n.removeprefix("state."): t for n, t in self.run(WHOLE).items()}

    def run(self, state: str) -> dict[str, Tensor]:
        runner, values = self.prepared(state)
        found: dict[str, Tensor] = runner(values, self.impl, self.trust)
        return found

    def prepared(self, state: str) -> tuple[PairRunner, dict[str, Any]]:
        """The runner of the task, and the arguments by their names."""
        given = self.checked(state)
        score, mask, record = self.score, self.mask, self.R.record
        names = record.operands[1:]
        others, varying = placed({n: given[n] for n in names}, self.q, self.k)
        runner = runner_for(
            self.R, self.outputs, state, self.scale is not None,
            "" if score is None else score.text, "" if mask is None else mask.text, names, varying,
            None if self.dropout is None else self.dropout.by, self.sinks is not None,
        )  # fmt: skip
        values: dict[str, Any] = {"q": self.q, "k": self.k}
        payload = next((given[n] for n in record.payloads if n in given), None)
        if payload is not None:
            values["v"] = payload
        values |= {f"o{n}": t for n, t in enumerate(others)}
        if score is not None:
            values |= {f"s{n}": t for n, t in enumerate(score.tensors)}
        if mask is not None:
            values |= {f"m{n}": t for n, t in enumerate(mask.tensors)}
        if self.scale is not None:
            values["scale"] = float(self.scale)
        if self.dropout is not None:
            values |= self.dropout.values
        if self.sinks is not None:
            values[SINKS] = self.sinks
        values["q_offset"] = as_argument(self.q_offset)
        values["k_offset"] = as_argument(self.k_offset)
        return runner, values

    def checked(self, state: str) -> dict[str, Any]:
        """Operands and payload by the declaration's names, those that are needed."""
        record = self.R.record
        if self.v is not None and not self.operands and reads_v_alone(self.R, self.outputs):
            return {record.payloads[0]: self.v}
        given = dict(self.operands)
        if self.v is not None:
            if len(record.payloads) != 1:
                raise OperandError(
                    message(
                        f"{record.name} takes no v",
                        expected="a declaration with one payload: v = fr.Payload()",
                        came=f"payloads: {', '.join(record.payloads) or 'none'}",
                        where=record.line,
                    )
                )
            given[record.payloads[0]] = self.v
        return operands_of(record, self.q, given, record.outputs if state else self.outputs)

    def merged(self, seed: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The elements of the seed, then those of the state."""
        before = {n: seed[n].to(t.dtype) for n, t in state.items()}
        return merging.merge(self.record, before, state)

    def finished(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a state; vectors in q's dtype."""
        record = self.record
        found = merging.finish(record, state)
        vectors = [f.name for f in record.fields if is_vector(record, f)]
        finish = dict(record.finish)
        return {
            o: found[o].to(self.q.dtype) if depends_on(record, finish[o], vectors) else found[o]
            for o in self.outputs
        }

    @property
    def record(self) -> Record:
        """That of the whole state, with its types here."""
        runner, values = self.prepared(WHOLE)
        return record_of(runner.task, values, self.trust)
