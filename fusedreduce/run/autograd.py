"""Gradients: by the derived backward programs, or by running the meaning again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Values = Mapping[str, Any]
Run = Callable[[Values], list[Tensor]]


@dataclass(frozen=True)
class Plan:
    """A differentiable run.

    names     the tensor arguments, in order; the others are fixed
    forward   outputs, then what the backward needs
    outputs   how many of those the caller gets
    saved     names of the rest
    meaning   the unfused function, for second derivatives
    backward  gradients by argument name from arguments, `d_<output>` and saved values; None when
              the meaning is to be differentiated instead
    """

    names: tuple[str, ...]
    forward: Run
    outputs: tuple[str, ...]
    saved: tuple[str, ...]
    meaning: Callable[[Values], list[Tensor]]
    backward: Callable[[Values], dict[str, Tensor]] | None


def run(plan: Plan, values: Values) -> list[Tensor]:
    """The outputs of a run that torch can differentiate, twice if need be."""
    fixed = {n: v for n, v in values.items() if n not in plan.names}
    tensors = [values[n] for n in plan.names]
    made = Differentiable.apply(plan, fixed, *tensors)  # type: ignore[no-untyped-call]
    return list(made)


class Differentiable(torch.autograd.Function):
    """forward: the fused run; backward: the derived programs, else torch on the meaning."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, fixed: Values, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = {**dict(zip(plan.names, inputs, strict=True)), **fixed}
        made = plan.forward(values)
        count = len(plan.outputs)
        ctx.plan, ctx.fixed, ctx.count = plan, fixed, count
        ctx.save_for_backward(*inputs, *made[count:])
        outputs = tuple(made[:count])
        ctx.mark_non_differentiable(*(t for t in outputs if not t.is_floating_point()))
        ctx.shapes = [(t.shape, t.dtype, t.device) for t in outputs]
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        plan, n = ctx.plan, len(ctx.plan.names)
        inputs, saved = ctx.saved_tensors[:n], ctx.saved_tensors[n:]
        wanted = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled() or plan.backward is None:
            return (None, None, *again(plan, ctx.fixed, inputs, wanted, gradients))
        values = {**dict(zip(plan.names, inputs, strict=True)), **ctx.fixed}
        values |= dict(zip(plan.saved, saved, strict=True))
        for name, g, (shape, dtype, device) in zip(
            plan.outputs, gradients, ctx.shapes, strict=True
        ):
            zero = torch.zeros((), dtype=dtype, device=device).expand(shape)
            values[f"d_{name}"] = zero if g is None else g
        found = plan.backward(values)
        return (
            None,
            None,
            *(found.get(m) if w else None for m, w in zip(plan.names, wanted, strict=True)),
        )


def again(
    plan: Plan,
    fixed: Values,
    inputs: Sequence[Tensor],
    wanted: Sequence[bool],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Differentiate the meaning, run again on the inputs themselves."""
    twice = torch.is_grad_enabled()  # somebody will differentiate this backward
    with torch.enable_grad():
        given = [_apart(t, twice) if w else t for t, w in zip(inputs, wanted, strict=True)]
        outputs = plan.meaning({**dict(zip(plan.names, given, strict=True)), **fixed})
    pairs = [
        (o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and o.requires_grad
    ]
    found = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            [t for t, w in zip(given, wanted, strict=True) if w],
            [g for _, g in pairs],
            create_graph=twice,
            allow_unused=True,
        )
    )
    return [next(found) if w else None for w in wanted]


def _apart(tensor: Tensor, twice: bool) -> Tensor:
    """The same numbers as a tensor of its own: one argument may be made from another, or be it."""
    return tensor.view_as(tensor) if twice else tensor.detach().requires_grad_()
