"""The traced value: torch's own protocol on an expression."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from fusedreduce.errors import DeclarationError
from fusedreduce.ir import expr as ir
from fusedreduce.ir.expr import Expr
from fusedreduce.trace.names import ALIASES, unknown_operation
from fusedreduce.trace.place import advice, refuse

Kind: TypeAlias = str  # "bool" | "int" | "float"
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # filled by `functions`


@dataclass(frozen=True)
class Call:
    """A Python call as the user made it: to be repeated on stand-ins, for shapes and dtypes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Traced:
    """One number in a user's function: an expression and its kind (bool, int, float)."""

    __slots__ = ("expr", "kind")
    expr: Expr
    kind: Kind
    __array_ufunc__ = None

    def __init__(self, expr: Expr, kind: Kind) -> None:
        self.expr = expr
        self.kind = kind

    @property
    def width(self) -> torch.dtype | None:
        """The dtype that torch has an integer in, where it is known."""
        return None

    # -- building: a subclass with shapes overrides these two

    def build(self, op: str, args: Sequence[Any], kind: Kind) -> Any:
        """The value op(args); `self` is any traced argument and knows the subclass."""
        return Traced(ir.call(op, *(a.expr if isinstance(a, Traced) else a for a in args)), kind)

    def convert(self, dtype: str, kind: Kind) -> Any:
        return Traced(ir.cast(self.expr, dtype), kind)

    def settle(self, compute: Callable[[], Any], call: Call | None) -> Any:
        """Run one torch function; a subclass checks shapes with `call` on stand-ins first."""
        return compute()

    def lookup(self, name: str) -> Callable[..., Any] | None:
        """The function a subclass adds to the language under this torch name."""
        return None

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        return apply(_function_name(func), args, kwargs, Call(func, tuple(args), kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _method(self, name)

    # -- what Python would do with a number, refused with advice

    def _control(self, what: str) -> DeclarationError:
        return refuse(
            f"{what}: a traced value has no number yet",
            expected="tensor operations, which work on every element at once",
            came=f"the value of {self.expr.op} used as a Python {what.split()[-1]}",
            do=advice(),
        )

    def __bool__(self) -> bool:
        raise self._control("control flow on a bool")

    def __float__(self) -> float:
        raise self._control("conversion to a float")

    def __int__(self) -> int:
        raise self._control("conversion to an int")

    def __index__(self) -> int:
        raise self._control("conversion to an int")

    def __iter__(self) -> Iterator[Any]:
        raise self._control("iteration over a list")

    def __len__(self) -> int:
        raise self._control("length of a list")

    def __contains__(self, item: Any) -> bool:
        raise self._control("membership in a list")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise refuse("assignment into a traced value", do="write torch.where(condition, new, old)")

    def __getitem__(self, key: Any) -> Any:
        raise refuse(
            "indexing a traced value",
            expected="a term is written for one element",
            do="pass what you index as an operand of its own",
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise refuse("numpy cannot run on a traced value", do="write torch.exp, torch.log, ...")

    __hash__ = object.__hash__

    def __matmul__(self, other: Any) -> Any:
        return torch.matmul(self, other)  # type: ignore[arg-type]

    def __abs__(self) -> Any:
        return apply("abs", (self,), {}, Call(abs, (self,), {}))

    def __neg__(self) -> Any:
        return apply("neg", (self,), {}, Call(operator.neg, (self,), {}))

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return apply("bitwise_not", (self,), {}, Call(operator.invert, (self,), {}))

    def __round__(self, ndigits: int | None = None) -> Any:
        raise self._control("rounding to an int")


def _binary(name: str, python: Any, swap: bool = False) -> Callable[[Traced, Any], Any]:
    def written(self: Traced, other: Any) -> Any:
        args = (other, self) if swap else (self, other)
        return apply(name, args, {}, Call(python, args, {}))

    return written


for _python, _name in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}.items():  # fmt: skip
    _operator = getattr(operator, f"__{_python}__")
    setattr(Traced, f"__{_python}__", _binary(_name, _operator))
    setattr(Traced, f"__r{_python}__", _binary(_name, _operator, swap=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Traced, f"__{_name}__", _binary(_name, getattr(operator, _name)))


def _function_name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).removeprefix("special_").strip("_")


_signature = lru_cache(maxsize=512)(inspect.signature)


def _first_traced(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
    values = [*args, *kwargs.values()]
    values += [v for a in values if isinstance(a, (tuple, list)) for v in a]
    return next(a for a in values if isinstance(a, Traced))


def apply(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call | None = None
) -> Any:
    """Run the torch function called `name` on traced values."""
    first = _first_traced(args, kwargs)
    function = first.lookup(name) or FUNCTIONS.get(ALIASES.get(name, name))
    if function is None:
        raise unknown_operation(name)
    args = tuple(args)
    for key in ("input", "self"):  # torch.exp(input=x)
        if key in kwargs:
            args, kwargs = (kwargs[key], *args), {k: v for k, v in kwargs.items() if k != key}
    if "other" in kwargs:
        args, kwargs = (*args, kwargs["other"]), {k: v for k, v in kwargs.items() if k != "other"}
    known = _signature(inspect.unwrap(function))
    try:
        known.bind(*args, **kwargs)
    except TypeError as error:
        raise refuse(
            f"arguments of {name} that the language does not know",
            came=f"{name}({', '.join([*('...' for _ in args), *(f'{k}=' for k in kwargs)])})",
            expected=f"{name}{known}",
            do=f"{error}; compose it from the language's operations",
        ) from None
    return first.settle(lambda: function(*args, **kwargs), call)


#: What those want who ask for something that a traced value has not.
ASKED = {
    "dtype": "leave the cast out, or name a dtype: all is computed in the dtype of the state",
    "device": "make tensors outside of the function, on the device of the others",
}


def _method(value: Traced, name: str) -> Any:
    if name in ("shape", "ndim", "dtype", "device", "T", "mT", "grad", "data", "size"):
        raise refuse(
            f"`.{name}` of a traced value",
            expected="a term is written for one element and has no shape",
            do=ASKED.get(name, "count elements with fr.Sum(lambda x: 1.0)"),
        )
    if value.lookup(name) is None and ALIASES.get(name, name) not in FUNCTIONS:
        raise unknown_operation(name)

    def method(*args: Any, **kwargs: Any) -> Any:
        call = Call(getattr(torch.Tensor, name), (value, *args), kwargs)
        swapped = name == "where"  # x.where(condition, other)
        args = (args[0], value, *args[1:]) if swapped else (value, *args)
        return apply(name, args, kwargs, call)

    return method
