"""Definitions to expressions: a two-pass formula on 1-D tensors that hold all elements of a row.

Two readings. A *population* has any number of elements: what varies is an expression of one
element, and every torch.sum, amax, ... becomes a named total over all of them. *Elements* are k
numbers, so reductions are folded, and indexing, slicing and len work too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

from fusedreduce import trace
from fusedreduce.ir import expr as ir
from fusedreduce.ir.expr import Expr
from fusedreduce.trace import Kind, Traced

Outputs: TypeAlias = "tuple[tuple[str, Expr], ...]"


@dataclass(frozen=True)
class Total:
    """`name` stands for the sum (max, min, prod, any, all) of `term` over all elements.

    The term is over operands and the names of earlier totals.
    """

    name: str
    kind: str
    term: Expr


@dataclass(frozen=True)
class Definition:
    """A two-pass formula: totals in order, then outputs over their names."""

    totals: tuple[Total, ...]
    outputs: Outputs


def population(fn: Callable[..., Any], operands: Mapping[str, Kind]) -> Definition:
    """The definition for any number of elements; `DeclarationError` if it needs to know how many.

    >>> import torch
    >>> from fusedreduce.ir.show import show
    >>> d = population(lambda x: torch.mean(x ** 2), {"x": "float"})
    >>> [(t.name, t.kind, show(t.term)) for t in d.totals]
    [('total.0', 'sum', 'x ** 2'), ('total.1', 'sum', '1.0')]
    """
    log = _Log()
    arguments = {n: _Population(ir.var(n), kind, True, log) for n, kind in operands.items()}
    outputs = _outputs(trace.run(fn, arguments))
    return Definition(tuple(log.totals), outputs)


def of_elements(
    fn: Callable[..., Any],
    operands: Mapping[str, Kind],
    name: Callable[[str, int], str],
    count: int,
) -> Outputs:
    """The outputs for `count` elements; operand o of element i is name(o, i), i from 1."""
    arguments = {
        n: _Elements(tuple(ir.var(name(n, i)) for i in range(1, count + 1)), kind, True)
        for n, kind in operands.items()
    }
    return _outputs(trace.run(fn, arguments))


def _outputs(value: Any) -> Outputs:
    """finish's convention: a dict of outputs, or one under the name ""."""
    values = value if isinstance(value, dict) else {"": value}
    for name, v in values.items():
        if getattr(v, "varies", False):
            raise trace.refuse(
                "a definition returns a value for each element",
                expected="one number a row",
                came=f"the output {name!r} varies along the row",
                do="reduce it: torch.sum, torch.mean, torch.amax, ...",
            )
    return tuple((name, trace.to_expr(v, name)[0]) for name, v in values.items())


@dataclass
class _Log:
    """The totals met so far; an equal one is shared."""

    totals: list[Total] = field(default_factory=list)

    def total(self, kind: str, term: Expr) -> Expr:
        for known in self.totals:
            if (known.kind, known.term) == (kind, term):
                return ir.var(known.name)
        made = Total(f"total.{len(self.totals)}", kind, term)
        self.totals.append(made)
        return ir.var(made.name)


class _Vector(Traced):
    """A value that may vary along the row, with torch's reductions."""

    __slots__ = ("varies",)
    varies: bool

    def over(self, kind: str) -> Any:
        """The sum (max, ...) of this value over all elements."""
        raise NotImplementedError

    def constant(self, value: float) -> Any:
        """The same number for every element."""
        raise NotImplementedError

    def lookup(self, name: str) -> Callable[..., Any] | None:
        return _REDUCTIONS.get(name)

    def __getattr__(self, name: str) -> Any:
        if name == "shape" and self.varies:
            return (_count(self),)
        return Traced.__getattr__(self, name)


class _Population(_Vector):
    """Any number of elements."""

    __slots__ = ("register",)
    register: _Log

    def __init__(self, expr: Expr, kind: Kind, varies: bool, register: _Log) -> None:
        super().__init__(expr, kind)
        self.varies = varies
        self.register = register

    def build(self, op: str, args: Sequence[Any], kind: Kind) -> Any:
        expr = ir.call(op, *(a.expr if isinstance(a, Traced) else a for a in args))
        return _Population(
            expr, kind, any(getattr(a, "varies", False) for a in args), self.register
        )

    def convert(self, dtype: str, kind: Kind) -> Any:
        return _Population(ir.cast(self.expr, dtype), kind, self.varies, self.register)

    def over(self, kind: str) -> Any:
        if not self.varies:  # torch.sum(torch.mean(x)) is the mean
            return self
        return _Population(
            self.register.total(kind, self.expr), _total_kind(self, kind), False, self.register
        )

    def constant(self, value: float) -> Any:
        return _Population(ir.const(value), "float", self.varies, self.register)


class _Elements(_Vector):
    """A known number of elements; `items` has one expression if the value does not vary."""

    __slots__ = ("items",)
    items: tuple[Expr, ...]

    def __init__(self, items: tuple[Expr, ...], kind: Kind, varies: bool) -> None:
        super().__init__(items[0], kind)
        self.items = items
        self.varies = varies

    def build(self, op: str, args: Sequence[Any], kind: Kind) -> Any:
        varying = [a for a in args if isinstance(a, _Elements) and a.varies]
        count = len(varying[0].items) if varying else 1
        columns = [_column(a, count) for a in args]
        items = tuple(ir.call(op, *row) for row in zip(*columns, strict=True))
        return _Elements(items, kind, bool(varying))

    def convert(self, dtype: str, kind: Kind) -> Any:
        return _Elements(tuple(ir.cast(e, dtype) for e in self.items), kind, self.varies)

    def over(self, kind: str) -> Any:
        whole = reduce(lambda a, b: ir.call(_TWO[kind], a, b), self.items)
        return _Elements((whole,), _total_kind(self, kind), False)

    def constant(self, value: float) -> Any:
        return _Elements((ir.const(value),) * len(self.items), "float", self.varies)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and self.items[key]:
            return _Elements(self.items[key], self.kind, True)
        if isinstance(key, int):
            return _Elements((self.items[key],), self.kind, False)
        return Traced.__getitem__(self, key)


_TWO = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


def _column(a: Any, count: int) -> tuple[Any, ...]:
    if isinstance(a, _Elements):
        return a.items if a.varies else a.items * count
    return (a,) * count


def _total_kind(x: Traced, kind: str) -> Kind:
    return "int" if kind == "sum" and x.kind == "bool" else x.kind


# ---- torch's reductions --------------------------------------------------------------------------


def _reduction(kind: str) -> Callable[..., Any]:
    def function(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        _row_only(dim)
        return x.over(kind)

    return function


def _row_only(dim: Any) -> None:
    if dim not in (None, 0, -1, (0,), (-1,), [0], [-1]):
        raise trace.refuse(
            "a definition reduces along its one dimension", expected="dim 0", came=f"dim={dim!r}"
        )


def _count(x: Any) -> Any:
    return x.constant(1.0).over("sum")


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    _row_only(dim)
    return x.over("sum") / _count(x)


def _variance(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    off = (1 if unbiased else 0) if correction is None else correction
    return ((x - _mean(x, dim)) ** 2).over("sum") / (_count(x) - off)


def _logsumexp(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    _row_only(dim)
    return x.exp().over("sum").log()


def _softmax(x: Any, dim: Any = None, *, dtype: Any = None) -> Any:
    _row_only(dim)
    e = x.exp()
    return e / e.over("sum")


def _extreme(kind: str) -> Callable[..., Any]:
    def function(x: Any, other: Any = None) -> Any:
        if other is not None and not isinstance(other, int):
            return trace.FUNCTIONS[f"{kind}imum"](x, other)
        return x.over(kind)

    return function


_REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: _reduction(name) for name in ("sum", "prod", "any", "all")},
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "mean": _mean,
    "var": _variance,
    "std": lambda x, *args, **kw: _variance(x, *args, **kw).sqrt(),
    "logsumexp": _logsumexp,
    "softmax": _softmax,
    "ones_like": lambda x: x.constant(1.0),
    "zeros_like": lambda x: x.constant(0.0),
    "full_like": lambda x, fill_value: x.constant(float(fill_value)),
    "log_softmax": lambda x, dim=None, *, dtype=None: x - _logsumexp(x, dim),
    "numel": _count,
    "size": lambda x, dim=0: _count(x),
}
