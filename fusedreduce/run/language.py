"""Expressions as torch functions of tiles: compiled once, computed in the dtype of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fusedreduce.blocks.language import load, torch_dialect
from fusedreduce.ir.check import promote
from fusedreduce.ir.evaluate import compiled_all
from fusedreduce.ir.expr import Expr, call, is_const, names, rewrite

Values: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True)
class Function:
    """Several expressions with shared parts, of the variables they name; every value is 2-D."""

    parameters: tuple[str, ...]
    body: Any
    dtypes: tuple[torch.dtype | None, ...]

    def __call__(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        made = self.body(*[values[n] for n in self.parameters])
        return [_flat(v, d) for v, d in zip(made, self.dtypes, strict=True)]


def _flat(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    value = value if value.ndim else value.reshape(1, 1)
    return value if dtype is None or value.dtype is dtype else value.to(dtype)


@dataclass(frozen=True)
class Language:
    """The operations of the language on tensors whose floats are in `state`."""

    state: torch.dtype
    device: torch.device

    def dtype(self, kind: str) -> torch.dtype:
        return {"bool": torch.bool, "int": torch.int64}.get(kind, self.state)

    def full(self, value: float, kind: str) -> Tensor:
        return torch.full((1, 1), value, dtype=self.dtype(kind), device=self.device)

    def load(self, value: Tensor) -> Tensor:
        """What is computed with: floats in the state's dtype, integers in int64."""
        return load(value, self.state)

    def function(
        self, exprs: Sequence[Expr], kinds: Mapping[str, str], types: Sequence[str]
    ) -> Function:
        """The expressions, over variables of these kinds, their values converted to `types`."""
        ready = tuple(rewrite(promote(e, kinds), _cheap_power) for e in exprs)
        parameters = tuple(dict.fromkeys(names(*ready)))
        compiled = compiled_all if unwatched() else compiled_all.__wrapped__
        body = compiled(ready, parameters, torch_dialect(self.state, self.device))
        return Function(
            parameters, body, tuple(None if t == "any" else self.dtype(t) for t in types)
        )


def unwatched() -> bool:
    """Does no transform or trace look on?

    NOTE: constants that are made inside of one belong to it: they are not to be kept for others.
    """
    inside = torch._C._functorch.peek_interpreter_stack() is not None
    return not inside and torch._C._len_torch_dispatch_stack() == 0


def _cheap_power(node: Expr) -> Expr | None:
    """x ** 2 as x * x: torch's power by a tensor is an exponential and a logarithm."""
    if node.op != "pow" or not is_const(node.args[1]):
        return None
    x, power = node.args[0], node.args[1].value
    if power in (2, 3) and not isinstance(power, bool):
        return call("mul", x, x) if power == 2 else call("mul", call("mul", x, x), x)
    return {0.5: call("sqrt", x), 1: x}.get(power)  # type: ignore[arg-type]
