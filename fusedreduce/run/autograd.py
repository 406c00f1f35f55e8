"""Gradients: by the derived backward programs, or by differentiating the meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedreduce.run.calls import Call, Direct

# NOTE: autograd.grad(is_grads_batched=True) batches what flows back by a vmap older than
# torch.func's, which torch's own operations follow and no operator of ours can.
in_a_loop = torch._C._functorch.is_legacy_batchedtensor
transform = torch._C._functorch.peek_interpreter_stack


def run(call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a call that torch can differentiate, as often as it likes."""
    if isinstance(call, Direct):
        return list(_applied(call, *tensors))  # type: ignore[no-untyped-call]
    return list(OpenRows.apply(call, *tensors)[: call.outputs])  # type: ignore[no-untyped-call]


def _remember(ctx: Any, call: Call, tensors: Sequence[Tensor], output: Sequence[Tensor]) -> None:
    """NOTE: where torch transforms a run, what is saved has to be among its results."""
    results, saved = output[: call.outputs], output[call.outputs :]
    ctx.call = call
    ctx.save_for_backward(*tensors, *(results[k] for k in call.kept), *saved)
    ctx.mark_non_differentiable(*(t for t in results if not t.is_floating_point()), *saved)
    ctx.set_materialize_grads(False)
    ctx.results = [(t.shape, t.dtype, t.device) for t in results]
    ctx.strides, ctx.saved = None, len(saved)


def _remember_direct(ctx: Any, call: Direct, kept: list[Tensor], results: list[Tensor]) -> None:
    """The same, shorter: what is saved is no result, how everything lies is known of the call."""
    ctx.call = call
    ctx.save_for_backward(*kept)
    if call.lies is None:  # set last: another thread may be here
        call.results = [(t.shape, t.dtype, t.device) for t in results]
        call.lies = [t.stride() for t in kept]
    if call.floating < call.outputs:
        ctx.mark_non_differentiable(*[t for t in results if not t.is_floating_point()])
    ctx.set_materialize_grads(False)
    ctx.results, ctx.strides = call.results, call.lies


class Rows(torch.autograd.Function):
    """forward: the fused run; backward: the derived programs, else torch on the meaning."""

    @staticmethod
    def forward(ctx: Any, call: Direct, *tensors: Tensor) -> tuple[Tensor, ...]:
        made = call.run(tensors)
        results, saved = made[: call.outputs], made[call.outputs :]
        kept = [results[k] for k in call.kept]
        _remember_direct(ctx, call, [*tensors, *kept, *saved], results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call, n = ctx.call, len(ctx.call.names)
        kept = ctx.saved_tensors  # NOTE: to be asked for once, checkpointing recomputes them
        if ctx.strides is not None:
            kept = [laid_out(t, strides) for t, strides in zip(kept, ctx.strides, strict=True)]
        tensors, saved = kept[:n], kept[n:]
        ups = [
            torch.zeros((), dtype=dtype, device=device).expand(shape) if g is None else plain(g)
            for g, (shape, dtype, device) in zip(gradients, ctx.results, strict=False)
            if dtype.is_floating_point
        ]
        if not call.derived or any(map(in_a_loop, ups)) or transformed(call):
            found = pulled_back(call, tensors, ups)
        elif torch.is_grad_enabled():
            found = RowsBackward.apply(call, *tensors, *ups, *saved)  # type: ignore[no-untyped-call]
        else:
            found = call.backward(tensors, ups, saved)
        return None, *[None if k is None else found[k] for k in call.order]


def plain(gradient: Tensor) -> Tensor:
    """One whose memory holds its values: torch leaves the signs of imaginary parts for later."""
    return gradient.resolve_neg() if gradient.is_neg() else gradient


def transformed(call: Call) -> bool:
    """Does torch transform the backward of a run that it did not transform: vmap over grad?"""
    level: int = torch.autograd.forward_ad._current_level
    return isinstance(call, Direct) and (transform() is not None or level >= 0)


def laid_out(t: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A saved tensor as it lay: hooks that move or compress it may give it other strides.

    NOTE: what was prepared for a direct call knows the strides of the forward.
    """
    if t.stride() == strides:
        return t
    if apart(t.shape, strides):
        return torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, strides, strict=True) if n)
    places = torch.arange(extent, device=t.device).as_strided(t.shape, strides)
    return t.new_zeros(extent).index_put((places,), t).as_strided(t.shape, strides)


def apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Has each element a place of its own?

    >>> apart((2, 3), (3, 1)), apart((2, 3), (0, 1)), apart((3, 2), (1, 1))
    (True, False, False)
    """
    extent = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < extent:
            return False
        extent += stride * (size - 1)
    return True


#: What Function.apply comes to where nothing transforms the run and no transform left tensors over.
_applied = super(torch.autograd.Function, Rows).apply


class OpenRows(Rows):
    """The same where torch transforms the run.

    NOTE: torch looks at the signature of such a forward at each call (20 us); the vmap rule is
    written out, as torch.func.hessian fails with the generated one (2.13).
    """

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(call.run(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        _remember(ctx, call, tensors, output)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        """Along tangents: by the meaning, whose tangents need nothing saved."""
        found = iter(_along(ctx.call, _outputs, ctx.saved_tensors, tangents))
        answer = (next(found) if d.is_floating_point else None for _, d, _ in ctx.results)
        return *answer, *(None,) * ctx.saved

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Any, *tensors: Tensor) -> Any:
        return _batched(OpenRows, info.batch_size, in_dims[1:], call, tensors)


class RowsBackward(torch.autograd.Function):
    """The derived backward as a function of the inputs and the gradients of the outputs."""

    @staticmethod
    def forward(call: Call, *given: Tensor) -> tuple[Tensor | None, ...]:
        n, m = len(call.names), len(call.names) + call.floating
        return tuple(call.backward(given[:n], given[n:m], given[m:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        call, *given = inputs
        count = len(call.names) + call.floating
        ctx.call, ctx.saved = call, len(given) - count
        ctx.save_for_backward(*given[:count])
        ctx.save_for_forward(*given[:count])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Differentiate the derivative of the meaning."""
        given, call = ctx.saved_tensors, ctx.call
        asked = [k for k, g in enumerate(gradients) if g is not None]
        if not asked:
            return (None,) * (1 + len(given) + ctx.saved)
        moved = [
            k for k, t in enumerate(given) if k >= len(call.names) or call.names[k] in call.wanted
        ]

        def first(*some: Tensor) -> tuple[Tensor, ...]:
            found = _gradients(call, _with(given, moved, some))
            return tuple(found[k] for k in asked)

        _, pull, *_ = torch.func.vjp(first, *(given[k] for k in moved))
        table = dict(zip(moved, pull(tuple(gradients[k] for k in asked)), strict=True))
        return None, *map(table.get, range(len(given))), *(None,) * ctx.saved

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        given = ctx.saved_tensors
        return tuple(_along(ctx.call, _gradients, given, tangents[: len(given)]))

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Any, *given: Tensor) -> Any:
        return _batched(RowsBackward, info.batch_size, in_dims[1:], call, given)


def _batched(
    function: Any, size: int, in_dims: Sequence[int | None], call: Any, tensors: Sequence[Tensor]
) -> tuple[Any, Any]:
    """The same call with one more outer axis, which every tensor has in front."""
    inside = call.batched()
    found = function.apply(inside, *in_front(tensors, in_dims, size))
    call.learn(inside)
    return found, tuple(None if t is None else 0 for t in found)


def in_front(tensors: Sequence[Tensor], in_dims: Sequence[int | None], size: int) -> list[Tensor]:
    """Each tensor with the batch as its first dimension; one without it is repeated, not copied."""
    return [
        t.expand(size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims, strict=True)
    ]


# ---- the meaning, differentiated ---------------------------------------------------------------


def _outputs(call: Call, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The floating outputs of the meaning."""
    return tuple(o for o in call.meaning(tensors) if o.is_floating_point())


def _gradients(call: Call, given: Sequence[Tensor]) -> Sequence[Tensor]:
    n = len(call.names)
    return pulled_back(call, given[:n], given[n:])


def pulled_back(call: Call, tensors: Sequence[Tensor], ups: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradients of the wanted inputs by torch, on the meaning run again."""
    moved = [call.names.index(w) for w in call.wanted]
    _, pull, *_ = torch.func.vjp(
        lambda *some: _outputs(call, _with(tensors, moved, some)), *(tensors[k] for k in moved)
    )
    found: Sequence[Tensor] = pull(tuple(ups))
    return found


def _along(
    call: Call,
    function: Callable[[Call, Sequence[Tensor]], Sequence[Tensor]],
    given: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
) -> Sequence[Tensor]:
    """The slope of a function along tangents; None stands for 0."""
    moved = [k for k, t in enumerate(tangents) if t is not None]
    _, slopes, *_ = torch.func.jvp(
        lambda *some: tuple(function(call, _with(given, moved, some))),
        tuple(given[k] for k in moved),
        tuple(t for t in tangents if t is not None),
    )
    found: Sequence[Tensor] = slopes
    return found


def _with(given: Sequence[Tensor], moved: Sequence[int], some: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, with some in their places."""
    table = dict(zip(moved, some, strict=True))
    return [table.get(k, t) for k, t in enumerate(given)]
