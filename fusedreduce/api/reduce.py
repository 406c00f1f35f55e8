"""reduce: one declared reduction of tensors."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fusedreduce import operators, pipeline
from fusedreduce.api.operands import (
    argument_names,
    arguments_of,
    dims_of,
    dtype_kind,
    has_shape,
    operand_names,
    operands_of,
    outputs_of,
    reads_payload,
)
from fusedreduce.chain import Chain, TracedTensor, normalized_dims
from fusedreduce.declare.join import nested
from fusedreduce.declare.record import Record
from fusedreduce.declare.reduction import Reduction, require_reduction
from fusedreduce.errors import OperandError, OptionError, message
from fusedreduce.program import typed
from fusedreduce.request import require_dtype
from fusedreduce.run import eager, merging, opaque
from fusedreduce.runner import Runner
from fusedreduce.trace import Names


@dataclass(frozen=True)
class ReduceTask:
    """One declared reduction of tensors: what `reduce` asks the pipeline for."""

    R: type[Reduction]
    dim: Any
    keepdim: bool
    outputs: tuple[str, ...]
    dtype: torch.dtype | None
    state: bool = False  # the slots of the state are results too, as "state.<slot>"

    @property
    def name(self) -> str:
        return self.R.__name__.lower()

    @property
    def origin(self) -> str:
        return self.R.record.line

    @functools.cached_property
    def home(self) -> tuple[str, str, str]:
        """Where the declaration is, and what: its text and the options of the call."""
        place = f"{self.R.__module__}:{self.R.__qualname__}"
        digest = hashlib.sha256(self.R.record.text.encode()).hexdigest()[:8]
        dtype = self.dtype and str(self.dtype).removeprefix("torch.")
        options = (digest, self.dim, self.keepdim, self.outputs, dtype, self.state)
        return "reduce", place, repr(options)

    def trace(self, chain: Chain, values: Mapping[str, Any], names: Names) -> dict[str, Any]:
        """The results by output name."""
        values = self.operands(values)
        first = next(iter(values))
        if self.dtype is not None:
            values[first] = values[first].to(self.dtype)
        record = self.R.record
        deep = [o for o in self.outputs if reads_payload(record, o)]
        flat = [o for o in self.outputs if o not in deep]
        plain = {n: v for n, v in values.items() if n not in record.payloads}
        found: dict[str, Any] = {}
        if flat or self.state:
            found |= chain.reduce(self.R, plain, self.dim, self.keepdim, tuple(flat), self.state)
        if deep:  # the payload's D is one more outer axis: x gets a last dimension of size 1
            dims = normalized_dims(self.dim, values[first].dim())
            wide = {n: v[..., None] if has_shape(v) else v for n, v in plain.items()}
            wide |= {n: values[n] for n in record.payloads}
            found |= chain.reduce(self.R, wide, dims, self.keepdim, tuple(deep))
        slots = {n: v for n, v in found.items() if n.startswith("state.")}
        return {o: found[o or "value"] for o in self.outputs} | slots

    def eager(self, values: Mapping[str, Any]) -> dict[str, Any]:
        values = self.operands(values)
        first = next(iter(values.values()))
        dims = normalized_dims(self.dim, first.dim())
        with pipeline.meaning():
            found = eager.reduce(self.R, values, dims, self.keepdim, self.outputs, self.dtype)
            results = {o: found[o] for o in self.outputs}
            if self.state:
                slots = eager.state(self.R, values, dims, self.keepdim, self.dtype)
                results |= {f"state.{n}": v for n, v in slots.items()}
        return results

    def operands(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values by the declaration's own names, not those of a printed kernel."""
        table = dict(zip(argument_names(self.R.record), operand_names(self.R.record), strict=True))
        return {table.get(n, n): v for n, v in values.items()}


def _runner_at(place: str, options: str) -> Runner:
    """The runner of a declaration that stands in a module that was imported."""
    module, _, path = place.partition(":")
    R: Any = functools.reduce(getattr, path.split("."), sys.modules[module])
    _, dim, keepdim, outputs, dtype, state = ast.literal_eval(options)
    return _runner(ReduceTask(R, dim, keepdim, outputs, dtype and getattr(torch, dtype), state))


operators.HOMES["reduce"] = _runner_at


@functools.lru_cache(maxsize=1024)
def _runner(task: ReduceTask) -> Runner:
    return Runner(task)


def reduce(
    R: type[Reduction],
    x: torch.Tensor,
    /,
    dim: int | tuple[int, ...] | None = -1,
    keepdim: bool = False,
    outputs: str | tuple[str, ...] | None = None,
    dtype: torch.dtype | None = None,
    *,
    seed: Mapping[str, torch.Tensor] | None = None,
    return_state: bool = False,
    impl: str | None = None,
    trust: bool = False,
    **operands: Any,
) -> Any:
    """finish(merge over `dim` of lift(element)): one declared reduction, in one kernel.

    R         a subclass of `Reduction`
    x         the operand named `x`, or the first one the declaration names; any shape
    dim       the dimension or dimensions to reduce; None for all
    keepdim   keep reduced dimensions with size 1
    outputs   one name (a tensor comes back) or several (a dict); None for what `finish` returns
    dtype     cast `x` first, as torch.sum does
    operands  the other operands by name: tensors that broadcast against `x`, or numbers
    seed      a state (from return_state) whose elements come before those of `x`
    return_state   answer (value, state): the state is a dict of one tensor a slot
    impl      None (Triton on a GPU, else tiles), "eager", "tiles", "triton": it or an error
    trust     run without a warning what is neither proved nor refuted

    The state is float32, or float64 for float64 input. Floating results have x's dtype, except
    counts, which have the state's; integers are int64. Raises `LawViolation` for a refuted one,
    `OperandError`, `ShapeError`, `DeviceError`, `DtypeError` before any launch.

    >>> import torch, fusedreduce as fr
    >>> x = torch.tensor([[0.0, 0.0], [1000.0, -1000.0]])
    >>> fr.reduce(fr.reductions.LogSumExp, x)
    tensor([6.9315e-01, 1.0000e+03])
    >>> fr.reduce(fr.reductions.Moments, x, dim=0, outputs="mean")
    tensor([ 500., -500.])
    """
    given = dict(dim=dim, keepdim=keepdim, outputs=outputs, dtype=dtype, seed=seed,
                 return_state=return_state, impl=impl, trust=trust, **operands)  # fmt: skip
    if torch.compiler.is_compiling() and not isinstance(x, TracedTensor):
        return opaque.call(_reduced, opaque.named(R), (x,), given)
    return _reduced(R, x, **given)


def _reduced(
    R: type[Reduction],
    x: torch.Tensor,
    /,
    dim: Any,
    keepdim: bool,
    outputs: str | tuple[str, ...] | None,
    dtype: torch.dtype | None,
    seed: Mapping[str, torch.Tensor] | None,
    return_state: bool,
    impl: str | None,
    trust: bool,
    **operands: Any,
) -> Any:
    """What `reduce` does."""
    require_reduction(R)
    record = R.record
    dim = dims_of(dim)
    if keepdim not in (True, False):
        raise OptionError(message("keepdim is not a bool", came=repr(keepdim)))
    if dtype is not None:
        require_dtype("dtype", dtype)
    wanted = outputs_of(record, outputs)
    values = operands_of(record, x, operands, wanted)
    first = next(iter(values.values()))
    if isinstance(first, TracedTensor):
        return _in_fused(R, values, dim, keepdim, outputs, wanted, dtype)
    with_state = return_state or seed is not None
    if not wanted and not with_state:
        raise OptionError(message("no output is asked for", expected="a name, several or None"))
    task = ReduceTask(R, dim, keepdim, wanted, dtype, with_state)
    found = _runner(task)(arguments_of(record, values), impl, trust)
    if not with_state:
        return shaped(record, found, outputs)
    state = {n.removeprefix("state."): found.pop(n) for n in [*found] if n.startswith("state.")}
    if seed is not None:
        state, found = _seeded(R, values, seed, state, found, trust)
    value = shaped(record, found, outputs)
    return (value, state) if return_state else value


def _seeded(
    R: Any,  # a type[Reduction]
    values: Mapping[str, Any],
    seed: Mapping[str, torch.Tensor],
    state: dict[str, torch.Tensor],
    found: Mapping[str, torch.Tensor],
    trust: bool,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The state after a seed, and its finish in the dtypes of the results."""
    require_seed(seed, state, "fr.reduce")
    record = _typed(R, tuple([(n, dtype_kind(v)) for n, v in values.items()]), trust)
    state = merging.merge(record, {n: seed[n] for n in state}, state)
    finished = merging.finish(record, state)
    return state, {o: finished[o].to(v.dtype) for o, v in found.items()}


@functools.lru_cache(maxsize=1024)
def _typed(R: Any, kinds: tuple[tuple[str, str], ...], trust: bool) -> Record:
    """The certified record with its types for operands of these kinds."""
    return typed(pipeline.certified(R.record, trust)[0], dict(kinds))


def require_seed(seed: Any, state: Mapping[str, torch.Tensor], source: str) -> None:
    """Raises `OperandError` where the seed is no state like this one."""
    given = (
        {n: getattr(t, "shape", t) for n, t in seed.items()} if isinstance(seed, Mapping) else seed
    )
    if given != {n: t.shape for n, t in state.items()}:
        raise OperandError(
            message(
                "the seed is not a state of this declaration and shape",
                expected=", ".join(f"{n} {tuple(t.shape)}" for n, t in state.items()),
                came=", ".join(f"{n} {s}" for n, s in given.items())
                if isinstance(given, Mapping)
                else type(seed).__name__,
                do=f"take it from {source}(..., return_state=True)",
            )
        )


def _in_fused(
    R: type[Reduction],
    values: Mapping[str, Any],
    dim: Any,
    keepdim: bool,
    outputs: Any,
    wanted: tuple[str, ...],
    dtype: torch.dtype | None,
) -> Any:
    chain = next(iter(values.values())).chain
    found = ReduceTask(R, dim, keepdim, wanted, dtype).trace(chain, values, Names())
    return shaped(R.record, found, outputs)


def shaped(record: Record, found: Mapping[str, Any], outputs: Any) -> Any:
    """A tensor for a bare finish or a single name, else a dict; a join's by declaration."""
    if isinstance(outputs, str):
        return found[outputs]
    if record.outputs == ("",):
        return found[""]
    return nested(found)
