"""Gradients by recomputing: nothing is saved but the inputs; backward runs the meaning again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Values = Mapping[str, Any]


class Recompute(torch.autograd.Function):
    """forward: the fused run; backward: torch differentiates the unfused function on the inputs.

    Twice differentiable: the backward is made of torch operations on the inputs themselves.
    """

    @staticmethod
    def run(
        fused: Callable[[Values], list[torch.Tensor]],
        meaning: Callable[[Values], Any],
        structure: Any,
        values: Values,
        rebuild: Callable[[Any, list[torch.Tensor]], Any],
    ) -> Any:
        """The result of a fused run that torch can differentiate."""
        names = [n for n, v in values.items() if isinstance(v, torch.Tensor)]
        fixed = {n: v for n, v in values.items() if n not in names}
        tensors = [values[n] for n in names]
        order = list(values)

        def again(*inputs: torch.Tensor) -> list[torch.Tensor]:
            table = {**dict(zip(names, inputs, strict=True)), **fixed}
            return _tensors(meaning({n: table[n] for n in order}))

        def forward(*inputs: torch.Tensor) -> list[torch.Tensor]:
            table = {**dict(zip(names, inputs, strict=True)), **fixed}
            return fused({n: table[n] for n in order})

        outputs = Recompute.apply(forward, again, *tensors)  # type: ignore[no-untyped-call]
        return rebuild(structure, list(outputs))

    @staticmethod
    def forward(
        ctx: Any,
        fused: Callable[..., list[torch.Tensor]],
        again: Callable[..., list[torch.Tensor]],
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.again = again
        ctx.save_for_backward(*inputs)
        outputs = tuple(fused(*inputs))
        ctx.mark_non_differentiable(*(t for t in outputs if not t.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        twice = torch.is_grad_enabled()  # somebody will differentiate this backward
        wanted = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            inputs = [
                _apart(t, twice) if w else t for t, w in zip(ctx.saved_tensors, wanted, strict=True)
            ]
            outputs = ctx.again(*inputs)
        pairs = [
            (o, g)
            for o, g in zip(outputs, gradients, strict=True)
            if g is not None and o.requires_grad
        ]
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs],
                [t for t, w in zip(inputs, wanted, strict=True) if w],
                [g for _, g in pairs],
                create_graph=twice,
                allow_unused=True,
            )
        )
        return (None, None, *(next(found) if w else None for w in wanted))


def _apart(tensor: torch.Tensor, twice: bool) -> torch.Tensor:
    """The same numbers as a tensor of its own: one argument may be made from another, or be it."""
    return tensor.view_as(tensor) if twice else tensor.detach().requires_grad_()


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return (
        [t for v in values for t in _tensors(v)] if isinstance(result, (dict, tuple, list)) else []
    )
