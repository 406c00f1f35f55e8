"""Tracing one function: its signature, its call on traced values, the names of its locals."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from fusedreduce.errors import DeclarationError, FusedReduceError, message
from fusedreduce.ir import expr as ir
from fusedreduce.ir.expr import Expr
from fusedreduce.trace.functions import kind_of
from fusedreduce.trace.place import function_line, refuse
from fusedreduce.trace.value import Kind, Traced


@dataclass(frozen=True)
class Signature:
    """What a user's function needs: parameters in order, and those with constants as defaults."""

    parameters: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def signature(fn: Callable[..., Any], what: str) -> Signature:
    """The parameters of `fn`; `*args`, `**kwargs` and keyword-only ones are refused."""
    if not callable(fn):
        raise refuse(f"{what} is not a function", came=repr(fn), do="write a lambda or a def")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        raise refuse(
            f"{what} has no readable signature", came=repr(fn), do="wrap it: lambda x: torch.exp(x)"
        ) from None
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise DeclarationError(
                message(
                    f"{what} takes *{p.name}",
                    expected="every operand and field by its own name",
                    where=function_line(fn),
                    do="name each parameter",
                )
            )
    return Signature(
        tuple(p.name for p in parameters if p.default is p.empty),
        {p.name: p.default for p in parameters if p.default is not p.empty},
    )


@dataclass
class Names:
    """The names that the user's variables gave to expressions, and the variables at the return."""

    of: dict[Expr, str] = field(default_factory=dict)
    locals: dict[str, Any] = field(default_factory=dict)


@contextmanager
def local_names(code: CodeType | None, names: Names) -> Iterator[None]:
    """Record, when the function with this code returns, which local holds which expression.

    NOTE: Python has one profile hook. A profiler that is no function (cProfile) cannot be called
    from ours, so while one runs the names are done without.
    """

    def hook(frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" and frame.f_code is code:
            names.locals.update(frame.f_locals)
            for name, value in frame.f_locals.items():
                if isinstance(value, Traced) and value.expr.args:
                    names.of.setdefault(value.expr, name)
        if previous is not None:
            previous(frame, event, arg)

    previous: Any = sys.getprofile()  # a C profiler (cProfile) is not callable
    if previous is not None and not callable(previous):
        yield
        return
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(previous)


class StateView:
    """The state before (`old`), new references (`new`), a side of a merge (`a`, `b`): `old.m`."""

    __slots__ = ("_fields", "_side")

    def __init__(self, side: str, fields: Mapping[str, Traced]) -> None:
        self._side = side
        self._fields = fields

    def __getattr__(self, name: str) -> Traced:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._fields:
            near = difflib.get_close_matches(name, self._fields, n=1)
            raise refuse(
                f"`{self._side}` has no field `{name}`",
                expected=f"one of {', '.join(self._fields)}",
                do=f"did you mean {self._side}.{near[0]}?" if near else "declare the field first",
            )
        return self._fields[name]


def scalar(name: str, kind: Kind = "float") -> Traced:
    return Traced(ir.var(name), kind)


def to_expr(value: Any, what: str) -> tuple[Expr, Kind]:
    """A traced value or a Python number as an expression."""
    kind = kind_of(value)
    return (value.expr if isinstance(value, Traced) else ir.const(value)), kind


def run(fn: Callable[..., Any], arguments: Mapping[str, Any], names: Names | None = None) -> Any:
    """Call a user's function on traced values; a foreign error is told with the user's line."""
    names = Names() if names is None else names
    try:
        with local_names(getattr(fn, "__code__", None), names):
            return fn(**arguments)
    except FusedReduceError:
        raise
    except (TypeError, ValueError, AttributeError, NameError, ArithmeticError, LookupError,
            RuntimeError) as error:  # fmt: skip
        raise DeclarationError(
            message(
                f"{type(error).__name__} while tracing: {error}",
                where=function_line(fn),
                do="write the function with torch operations on its parameters",
            )
        ) from error
