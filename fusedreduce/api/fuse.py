"""fuse: a function whose chain of operations, reductions included, is one kernel."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from fusedreduce import operators, pipeline, trace
from fusedreduce.api.explain import explain
from fusedreduce.api.repeated import Repeated
from fusedreduce.chain import Chain, TracedTensor
from fusedreduce.errors import DeclarationError, NotFusible, OperandError, OptionError, message
from fusedreduce.kernels.names import safe_names
from fusedreduce.run import opaque
from fusedreduce.runner import Runner
from fusedreduce.trace import Names
from fusedreduce.trace.closures import numbers_read

P = ParamSpec("P")
T = TypeVar("T")
OPTIONS = ("impl", "trust")


@dataclass(eq=False)
class FuseTask:
    """A fused function: what `fuse` asks the pipeline for.

    given   the function's parameters by the names that its arguments have in a printed kernel
    """

    fn: Callable[..., Any]
    given: Mapping[str, str]

    @property
    def name(self) -> str:
        name: str = getattr(self.fn, "__name__", "fused")
        return safe_names((name,))[0] if name.isidentifier() else "fused"

    @property
    def origin(self) -> str:
        return trace.function_line(self.fn)

    @functools.cached_property
    def home(self) -> tuple[str, str, str]:
        """Where the function was declared, and what it is: the text and the constants it holds."""
        place = f"{self.fn.__module__}:{self.fn.__qualname__}"
        cells = [c.cell_contents for c in self.fn.__closure__ or ()]
        held = [c if isinstance(c, (bool, int, float, str)) else type(c).__name__ for c in cells]
        try:
            text = inspect.getsource(self.fn)
        except (OSError, TypeError):
            text = self.fn.__code__.co_code.hex()
        return "fuse", place, hashlib.sha256(f"{text}{held!r}".encode()).hexdigest()[:8]

    def trace(self, chain: Chain, values: Mapping[str, Any], names: Names) -> Any:
        try:
            return trace.run(self.fn, self.arguments(values), names)
        except NotFusible:
            raise
        except DeclarationError as error:
            raise NotFusible(f"{self.name} cannot be one kernel: {error}") from error

    def eager(self, values: Mapping[str, Any]) -> Any:
        with pipeline.meaning():
            return self.fn(**self.arguments(values))

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values by the function's own names."""
        return {self.given[n]: v for n, v in values.items()}


class Fused(Generic[P, T]):
    """A function whose chain of operations, reductions in the middle included, is one kernel."""

    def __init__(self, fn: Callable[P, T]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.signature = _signature(fn)
        parameters = tuple(self.signature.parameters)
        self.names = safe_names(parameters)
        self.given = dict(zip(self.names, parameters, strict=True))
        self.known_as = opaque.named(self)
        self.numbers = numbers_read(fn)
        self.forget(self.numbers())

    def forget(self, held: tuple[Any, ...]) -> None:
        """Nothing was traced yet; `held` are the numbers that the function reads from outside."""
        self.held = held
        self.runner = Runner(FuseTask(self.fn, self.given))
        self.repeated = Repeated(self.run)

    def follow(self) -> None:
        """Forget what was traced while the function read other numbers."""
        held = self.numbers()
        if held != self.held:
            self.forget(held)

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not kwargs and len(args) == len(self.names):
            return dict(zip(self.names, args, strict=True))
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise OperandError(
                message(
                    f"{self.runner.task.name}: {error}",
                    expected=str(self.signature),
                    where=self.runner.task.origin,
                    do="a method is not bound: fuse a function of tensors, and call it in methods",
                )
            ) from None
        bound.apply_defaults()
        return dict(zip(self.names, bound.arguments.values(), strict=True))

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        if torch.compiler.is_compiling() and not _traced(args, kwargs):
            return opaque.call(Fused.run, self.known_as, args, kwargs)  # type: ignore[no-any-return]
        self.follow()
        return self.repeated(args, kwargs)  # type: ignore[no-any-return]

    def run(self, *args: Any, impl: str | None = None, trust: bool = False, **kwargs: Any) -> T:
        if TracedTensor in map(type, args) or _traced((), kwargs):
            return self.fn(*args, **kwargs)  # inside another fused function
        self.follow()
        return self.runner(self.values(args, kwargs), impl, trust)  # type: ignore[no-any-return]

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The printed kernel for these arguments, as text."""
        self.follow()
        values = self.values(args, kwargs)
        return pipeline.print_task(self.runner.task, values, trust=False).kernel.source

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What a call with these arguments would run, as text: see `fr.explain`."""
        return explain(self, *args, **kwargs)


def _traced(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(v, TracedTensor) for v in (*args, *kwargs.values()))


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a function to be fused: each can be given by its name."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        raise OptionError(
            message(
                "fr.fuse: a function without a readable signature",
                came=repr(fn),
                do="wrap it: fr.fuse(lambda x: torch.exp(x))",
            )
        ) from None
    for p in signature.parameters.values():
        unnamed = p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if unnamed or p.name in OPTIONS:
            raise OptionError(
                message(
                    f"fr.fuse: the parameter `{p.name}`",
                    expected="named parameters, none called impl or trust",
                    came=f"{p.kind.description}: {p}",
                    where=trace.function_line(fn),
                )
            )
    return signature


def _runner_at(place: str, digest: str) -> Runner:
    """The runner of a fused function that is declared in a module that was imported."""
    module, _, path = place.partition(":")
    fused: Fused[Any, Any] = functools.reduce(getattr, path.split("."), sys.modules[module])  # type: ignore[arg-type]
    return fused.runner


operators.HOMES["fuse"] = _runner_at


def fuse(fn: Callable[P, T]) -> Fused[P, T]:
    """fn as one kernel: prologue, declared reductions, epilogue; one read of the data if it fits.

    `fn` is an ordinary PyTorch function of tensors that may call `fr.reduce` (and torch.sum, mean,
    var, softmax, logsumexp, ...); run without `@fr.fuse` it is its own definition. Same shapes and
    dtypes; inside everything is float32 (float64 if an input is), rounded only at explicit casts
    and outputs. Float arguments are run-time numbers; int, bool, str and None are fixed at tracing,
    and so are numbers that `fn` itself reads of its module or its closure: where one has changed,
    the next call traces anew. Everything else it reads there is taken as it was at the first call.
    The result takes `impl=` and `trust=` as `reduce` does, and has `.source(*args)` and
    `.explain(*args)`. While it is traced its tensors are not instances of torch.Tensor: do not
    branch on isinstance inside.

    It is differentiable, twice if need be, and works inside torch.compile(fullgraph=True) with
    dynamic shapes, torch.export, torch.func transforms (grad, vmap, jvp, ...) and checkpointing:
    there it is one operator, `fusedreduce::rows`, and one more for its backward. Autocast changes
    nothing inside.

    Raises `NotFusible` naming the operation that stands in the way.

    >>> import torch, fusedreduce as fr
    >>> @fr.fuse
    ... def softmax(x):
    ...     lse = fr.reduce(fr.reductions.LogSumExp, x, keepdim=True)
    ...     return torch.exp(x - lse)
    >>> softmax(torch.zeros(1, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if not callable(fn):
        raise OptionError(
            message("fr.fuse of something else", expected="a function", came=repr(fn))
        )
    return Fused(fn)
