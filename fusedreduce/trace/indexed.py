"""Functions of indices: masks and scores as users write them, with the tensors they capture.

A function in FlexAttention's form, mask(b, h, i, j) or score(score, b, h, i, j), is called once on
traced indices. Whatever tensors it meets on the way (closures, globals, attributes, partials) are
seen by a torch function mode: an element t[b, i - j] becomes a read of a table, a 0-d tensor a read
of its one element.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from fusedreduce.errors import DeclarationError, FusedReduceError, message
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.expr import Expr, const
from fusedreduce.trace.captured import Captured, Captures, Position
from fusedreduce.trace.function import Names, local_names, to_expr
from fusedreduce.trace.functions import dtype_kind
from fusedreduce.trace.place import function_line, line_of

#: What the arguments of a mask and of a score are called in the language.
INDICES = ("b", "h", "i", "j")
SCORED = ("score", *INDICES)


@dataclass(frozen=True)
class Read:
    """One element of a captured tensor: the node, the table's name, an index for each dimension."""

    node: Expr
    table: str
    indices: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class Indexed:
    """A traced function of indices: its value, and the tensors it reads by the names t0, t1, ...

    `kind` is that of the value: "bool", "int" or "float".
    """

    expr: Expr
    kind: str
    tables: tuple[Any, ...]
    reads: tuple[Read, ...] = ()
    prefix: str = "t"
    names: Names = field(default_factory=Names)
    replayable: bool = True  # see `Captures`

    @property
    def table_names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{k}" for k in range(len(self.tables)))

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of the tables' elements, by name."""
        pairs = zip(self.table_names, self.tables, strict=True)
        return {name: dtype_kind(table.dtype) for name, table in pairs}

    def renamed(self, prefix: str) -> Indexed:
        """The same with tables called prefix0, prefix1, ...: two can then live in one kernel."""

        def change(expr: Expr) -> Expr:
            return ir_tables.renamed(expr, lambda name: prefix + name[len(self.prefix) :])

        reads = tuple(
            Read(change(r.node), prefix + r.table[len(self.prefix) :], (*map(change, r.indices),))
            for r in self.reads
        )
        names = Names({change(e): n for e, n in self.names.of.items()})
        return Indexed(change(self.expr), self.kind, self.tables, reads, prefix, names)


def trace_indexed(fn: Callable[..., Any], arguments: Sequence[str] = INDICES) -> Indexed:
    """The function on traced arguments, given by position; their names in it are free.

    arguments   INDICES or SCORED; `score` is a float, the others are integers

    Raises DeclarationError for control flow on traced values, a captured tensor that is used
    without its indices, operations the language does not know, a wrong number of parameters,
    integers of 8 or 16 bits that torch would wrap around.

    >>> from fusedreduce.ir.show import show
    >>> import torch
    >>> bias = torch.randn(4, 8)
    >>> traced = trace_indexed(lambda s, b, head, q, kv: s + bias[head, q - kv], SCORED)
    >>> show(traced.expr)
    'score + t0[h * t0_stride_0 + where(i - j < 0, i - j + t0_size_1, i - j) * t0_stride_1]'
    >>> traced.tables[0] is bias
    True
    """
    _check_parameters(fn, arguments)
    captures = Captures()
    values = [
        Position.named(name, "float" if name == "score" else "int", captures) for name in arguments
    ]
    names = Names()
    with local_names(getattr(_plain(fn), "__code__", None), names), Captured(captures):
        value = _called(fn, values)
    expr, kind = to_expr(captures.lifted(value), "the result")
    tables = tuple(captures.tables)
    reads = _reads(expr, tables)
    return Indexed(expr, kind, tables, reads, names=names, replayable=captures.replayable)


def _reads(expr: Expr, tables: tuple[Any, ...]) -> tuple[Read, ...]:
    zero = const(0)
    found = []
    for node in ir_tables.reads(expr):
        table, indices = ir_tables.split(node)
        rank = tables[int(table[1:])].ndim
        found.append(Read(node, table, tuple(indices.get(d, zero) for d in range(rank))))
    return tuple(found)


def _plain(fn: Any) -> Any:
    """The function that was written: under partials, methods and callable objects."""
    while isinstance(fn, partial):
        fn = fn.func
    fn = getattr(fn, "forward", fn)  # of a module
    return fn if hasattr(fn, "__code__") else vars(type(fn)).get("__call__", fn)


def _where(fn: Callable[..., Any]) -> str:
    return function_line(_plain(fn))


def _check_parameters(fn: Callable[..., Any], arguments: Sequence[str]) -> None:
    if not callable(fn):
        raise DeclarationError(
            message(
                "a mask or score is not a function",
                expected=f"a function of ({', '.join(arguments)})",
                came=repr(fn),
            )
        )
    try:
        inspect.signature(fn).bind(*arguments)
    except ValueError:  # a builtin without a signature: the call will tell
        return
    except TypeError as error:
        form = "score" if arguments[0] == "score" else "mask"
        raise DeclarationError(
            message(
                f"a {form} function takes {len(arguments)} arguments, by position",
                expected=f"({', '.join(arguments)}), by any names",
                came=f"{inspect.signature(fn)}: {error}",
                where=_where(fn),
                do="i is the query's position, j the key's; b the batch, h the head",
            )
        ) from None


def _called(fn: Callable[..., Any], values: Sequence[Any]) -> Any:
    """fn(*values); a foreign error is told with the user's line."""
    try:
        return fn(*values)
    except FusedReduceError:
        raise
    except (TypeError, ValueError, AttributeError, NameError, ArithmeticError, LookupError,
            RuntimeError) as error:  # fmt: skip
        trace = error.__traceback__
        code = getattr(_plain(fn), "__code__", None)
        lines = []
        while trace is not None:
            if trace.tb_frame.f_code is code:
                lines.append(line_of(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
        raise DeclarationError(
            message(
                f"{type(error).__name__} while tracing: {error}",
                where=lines[-1] if lines else _where(fn),
                do="write it with torch operations on indices and elements of tensors",
            )
        ) from error


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def is_traced(value: Any) -> bool:
    return isinstance(value, Position)


__all__ = ["INDICES", "SCORED", "Indexed", "Read", "is_tensor", "is_traced", "trace_indexed"]
