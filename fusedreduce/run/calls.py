"""One differentiable run: what autograd is told of it, and how it is made from a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

Values = Mapping[str, Any]
Run = Callable[[Values], list[Tensor]]


@dataclass(frozen=True)
class Plan:
    """How a run is differentiated, for the inputs that ask for it.

    names     the tensor arguments, in order
    wanted    those that get a gradient
    forward   outputs, then what the backward needs
    outputs   names of those the caller gets; `floating` the ones that have a gradient
    saved     names of the rest
    kept      names of outputs that the backward reads too
    meaning   the unfused function
    backward  gradients by argument name from arguments, `d_<output>` and saved values; None when
              the meaning is to be differentiated instead
    """

    names: tuple[str, ...]
    wanted: tuple[str, ...]
    forward: Run
    outputs: tuple[str, ...]
    floating: tuple[str, ...]
    saved: tuple[str, ...]
    meaning: Run
    backward: Callable[[Values], dict[str, Tensor]] | None
    kept: tuple[str, ...] = ()

    def gradients(
        self,
        fixed: Values,
        tensors: Sequence[Tensor],
        ups: Sequence[Tensor],
        saved: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """The gradient of each wanted input; None where nothing depends on it."""
        assert self.backward is not None
        values = dict(zip(self.given, (*tensors, *ups, *saved), strict=True))
        values.update(fixed)
        found = self.backward(values)
        return [found.get(n) for n in self.wanted]

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The names of what the backward reads, in order."""
        return (*self.names, *(f"d_{o}" for o in self.floating), *self.kept, *self.saved)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where the kept outputs are among the outputs."""
        return tuple(self.outputs.index(n) for n in self.kept)

    @cached_property
    def order(self) -> tuple[int | None, ...]:
        """For each argument the place of its gradient among the wanted ones."""
        return tuple(self.wanted.index(n) if n in self.wanted else None for n in self.names)


class Call(Protocol):
    """One run as autograd sees it; what it says of its results holds after `run`."""

    @property
    def names(self) -> tuple[str, ...]: ...  # of the tensor arguments

    @property
    def wanted(self) -> tuple[str, ...]: ...  # those that get a gradient

    @property
    def outputs(self) -> int: ...  # how many results the caller gets; the others are saved

    @property
    def floating(self) -> int: ...  # how many of them have a gradient

    @property
    def kept(self) -> tuple[int, ...]: ...  # the results that the backward reads, by their place

    @property
    def derived(self) -> bool: ...  # are there backward programs?

    @property
    def order(self) -> tuple[int | None, ...]: ...  # the place of each argument's gradient

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]: ...

    def backward(
        self, tensors: Sequence[Tensor], ups: Sequence[Tensor], saved: Sequence[Tensor]
    ) -> list[Tensor | None]: ...

    def meaning(self, tensors: Sequence[Tensor]) -> list[Tensor]: ...


@dataclass
class Direct:
    """A call of a plan, with the arguments that are not tensors; of tensors that lie in one way.

    lies      the strides of what is saved; `results`, shape, dtype and device of each: as the
              first call has them
    """

    plan: Plan
    fixed: Values
    lies: list[tuple[int, ...]] | None = None
    results: list[tuple[torch.Size, torch.dtype, torch.device]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names, self.wanted = self.plan.names, self.plan.wanted
        self.outputs, self.floating = len(self.plan.outputs), len(self.plan.floating)
        self.kept = self.plan.places
        self.derived = self.plan.backward is not None
        self.order = self.plan.order

    def values(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        return {**dict(zip(self.names, tensors, strict=True)), **self.fixed}

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self.plan.forward(self.values(tensors))

    def backward(
        self, tensors: Sequence[Tensor], ups: Sequence[Tensor], saved: Sequence[Tensor]
    ) -> list[Tensor | None]:
        return self.plan.gradients(self.fixed, tensors, ups, saved)

    def meaning(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self.plan.meaning(self.values(tensors))
