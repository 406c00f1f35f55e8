"""User functions to expressions: torch's own protocol on our own value, the only door from Python code to the IR."""

from __future__ import annotations

import difflib
import inspect
import linecache
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, ClassVar, TypeAlias

import torch

from fusedreduce.errors import DeclarationError, FusedReduceError, message
from fusedreduce.ir import expr as ir
from fusedreduce.ir.expr import Expr

Kind: TypeAlias = str  # "bool" | "int" | "float"
_RANK = {"bool": 0, "int": 1, "float": 2}
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_DECLARING = tuple(os.path.join(_PACKAGE, room) for room in ("reductions", "ops", "nn"))


# ---- where we are in the user's code ---------------------------------------------------------------


def user_frame() -> FrameType | None:
    """The innermost frame that is neither ours nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_ours(filename: str) -> bool:
    """Ours or torch's; the rooms of ready-made declarations are users like any other."""
    return filename.startswith((_PACKAGE, _TORCH)) and not filename.startswith(_DECLARING)


def user_line() -> str:
    """The user's file, line number and line of code: `demo.py:12: if x > 0:`."""
    frame = user_frame()
    return line_of(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def line_of(filename: str, number: int) -> str:
    text = linecache.getline(filename, number).strip()
    return f"{filename}:{number}" + (f": {text}" if text else "")


def function_line(fn: Callable[..., Any]) -> str:
    """Where `fn` was written."""
    code = getattr(fn, "__code__", None)
    return line_of(code.co_filename, code.co_firstlineno) if code else repr(fn)


def refuse(fact: str, *, expected: str = "", came: str = "", do: str = "") -> DeclarationError:
    """The error for a mistake at the line that is running now."""
    return DeclarationError(
        message(fact, expected=expected, came=came, where=user_line(), do=do)
    )


@dataclass(frozen=True)
class Call:
    """A Python call as the user made it: to be repeated on stand-ins, for shapes and dtypes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


# ---- the value ----------------------------------------------------------------------------------------

_CONTROL = (
    ("math.", "the math module works on numbers: write torch.exp, torch.log, ... instead"),
    (" and ", "write `&` with parentheses instead of `and`"),
    (" or ", "write `|` with parentheses instead of `or`"),
    ("not ", "write `~` instead of `not`"),
    ("max(", "write torch.maximum(a, b), or torch.clamp(x, min=0.0), instead of max()"),
    ("min(", "write torch.minimum(a, b), or torch.clamp(x, max=0.0), instead of min()"),
    ("abs(", "write torch.abs(x)"),
    ("if ", "write torch.where(condition, a, b) instead of `if`"),
    ("while ", "a loop over a value cannot be traced: write the closed form"),
    ("<", "write (0 < i) & (i < 5) instead of 0 < i < 5"),
    (">", "write (a > b) & (b > c) instead of a > b > c"),
)


def _advice() -> str:
    frame = user_frame()
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""
    found = [text for sign, text in _CONTROL if sign in line]
    return found[0] if found else "write torch.where(condition, a, b), torch.maximum, &, |, ~"


class Traced:
    """One number on its way through a user's function: an expression and its kind (bool, int, float)."""

    __slots__ = ("expr", "kind")
    expr: Expr
    kind: Kind
    __array_ufunc__ = None

    def __init__(self, expr: Expr, kind: Kind) -> None:
        self.expr = expr
        self.kind = kind

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
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
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
            do=_advice(),
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


# ---- the torch names -----------------------------------------------------------------------------------


def kind_of(value: Any) -> Kind:
    """The kind of a traced value or a Python number."""
    if isinstance(value, Traced):
        return value.kind
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    if isinstance(value, torch.Tensor):
        raise refuse(
            "a tensor from outside is used in a declaration",
            expected="operands (parameters of the function), state fields and Python numbers",
            came=f"a tensor of shape {tuple(value.shape)}",
            do="make it an operand: name it as a parameter and pass it by that name to fr.reduce",
        )
    raise refuse(
        "an argument is neither traced nor a number",
        expected="operands, state fields and Python numbers",
        came=f"{type(value).__name__}",
        do="make it an operand or a Python number",
    )


def _joined(args: Sequence[Any]) -> Kind:
    return max((kind_of(a) for a in args), key=_RANK.__getitem__)


def emit(op: str, *args: Any, kind: Kind | None = None) -> Any:
    """op(args) as a traced value; the kind is the joined one unless given."""
    joined = _joined(args)
    first = next((a for a in args if isinstance(a, Traced)), None)
    if first is None:
        raise refuse(f"{op} of constants only", do="compute it with Python's own operators")
    return first.build(op, args, kind or joined)


def _same(op: str, kind: Kind | None = None) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        return emit(op, *args, kind=kind)

    return function


def _arithmetic(op: str) -> Callable[..., Any]:
    def function(a: Any, b: Any, *, alpha: Any = 1) -> Any:
        return emit(op, a, b if alpha == 1 else emit("mul", b, alpha), kind=_count(a, b))

    return function


def _count(*args: Any) -> Kind:
    """Arithmetic on booleans counts: the result is an int."""
    return max(_joined(args), "int", key=_RANK.__getitem__)


def _div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return emit("div", a, b, kind="float")
    if rounding_mode == "floor":
        return emit("floordiv", a, b)
    raise refuse(f"rounding_mode={rounding_mode!r}", expected="None or 'floor'", do="use floor")


def _logic(op: str, integer: str | None) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        if _joined(args) == "bool":
            return emit(op, *args, kind="bool")
        if integer is None or _joined(args) == "float":
            raise refuse(
                f"`{op}` of numbers",
                expected="booleans" + ("" if integer is None else " or integers"),
                came=", ".join(kind_of(a) for a in args),
                do="compare first: (x > 0) & (y > 0)",
            )
        return emit(integer, *args)

    return function


def _logical(op: str) -> Callable[..., Any]:
    """torch.logical_*: a number is true unless it is zero."""

    def function(*args: Any) -> Any:
        return emit(op, *(_truth(a) for a in args), kind="bool")

    return function


def _truth(a: Any) -> Any:
    return a if kind_of(a) == "bool" else emit("ne", a, 0, kind="bool")


def _where(condition: Any, a: Any, b: Any) -> Any:
    if kind_of(condition) != "bool":
        raise refuse("the condition of torch.where is not a boolean", came=kind_of(condition))
    return emit("where", condition, a, b, kind=_joined((a, b)))


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    if min is None and max is None:
        raise refuse("torch.clamp without a bound", expected="min=, max=, or both")
    y = x if min is None else emit("maximum", x, min)
    return y if max is None else emit("minimum", y, max)


def _pair(op: str) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        if len(args) != 2:
            raise refuse(
                f"torch.{op[:3]} of one value",
                expected="two values: a term is written for one element",
                do=f"declare a field fr.{op[:3].capitalize()}(...) to reduce, or write torch.{op}(a, b)",
            )
        return emit(op, *args)

    return function


def _softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    if beta == 1:
        return emit("softplus", x, kind="float")
    return emit("div", emit("softplus", emit("mul", x, beta), kind="float"), beta)


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return x * (emit("erf", x * 0.7071067811865476, kind="float") + 1.0) * 0.5
    inner = (x + x * x * x * 0.044715) * 0.7978845608028654
    return x * (emit("tanh", inner, kind="float") + 1.0) * 0.5


def _logaddexp(a: Any, b: Any) -> Any:
    m = emit("maximum", a, b)
    safe = _where(emit("isinf", m, kind="bool"), 0.0, m)
    return emit("log", emit("exp", a - safe) + emit("exp", b - safe)) + safe


def _addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    return x + (a * b if value == 1 else a * b * value)


def _round(x: Any, *, decimals: int = 0) -> Any:
    if decimals:
        raise refuse("torch.round(decimals=...)", do="scale, round and scale back yourself")
    return emit("round", x)


def _like(value: float) -> Callable[..., Any]:
    def function(x: Any, *, dtype: torch.dtype | None = None) -> Any:
        return _full_like(x, value, dtype=dtype)

    return function


def _full_like(x: Any, fill_value: Any, *, dtype: torch.dtype | None = None) -> Any:
    kind = kind_of(x) if dtype is None else dtype_kind(dtype)
    number = {"bool": bool, "int": int, "float": float}[kind](fill_value)
    return x.build("where", (x == x, number, number), kind)


def dtype_kind(dtype: torch.dtype) -> Kind:
    if dtype == torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"


def _to(x: Any, dtype: Any = None, *, non_blocking: bool = False, copy: bool = False) -> Any:
    if isinstance(dtype, Traced):
        raise refuse("x.to(other)", expected="a dtype", do="write x.to(torch.float32)")
    if not isinstance(dtype, torch.dtype):
        raise refuse("x.to(...)", expected="a dtype", came=repr(dtype), do="move devices outside")
    return x.convert(str(dtype).removeprefix("torch."), dtype_kind(dtype))


def _cast(dtype: torch.dtype) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        return _to(x, dtype)

    return function


_FLOAT_OPS = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan atan2 sinh "
    "cosh tanh asinh acosh atanh erf erfc sigmoid"
).split()
_SAME_OPS = "abs sign maximum minimum floor ceil trunc".split()
_TESTS = "eq ne lt le gt ge isnan isinf isfinite".split()

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _same(name, "float") for name in _FLOAT_OPS},
    **{name: _same(name) for name in _SAME_OPS},
    **{name: _same(name, "bool") for name in _TESTS},
    **{name: _arithmetic(name) for name in ("add", "sub", "mul")},
    **{f"bitwise_{n}": _logic(n, f"bit{n}") for n in ("and", "or", "xor", "not")},
    **{f"logical_{n}": _logical(n) for n in ("and", "or", "xor", "not")},
    "bitwise_left_shift": _same("shl"),
    "bitwise_right_shift": _same("shr"),
    "neg": _same("neg"),
    "div": _div,
    "floor_divide": _same("floordiv"),
    "remainder": _same("mod"),
    "pow": _same("pow"),
    "square": lambda x: emit("mul", x, x),
    "where": _where,
    "clamp": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min=min),
    "clamp_max": lambda x, max: _clamp(x, max=max),
    "relu": lambda x, inplace=False: _clamp(x, min=0 if kind_of(x) == "int" else 0.0),
    "max": _pair("maximum"),
    "min": _pair("minimum"),
    "round": _round,
    "softplus": _softplus,
    "logsigmoid": lambda x: -_softplus(-x),
    "silu": lambda x, inplace=False: x * emit("sigmoid", x, kind="float"),
    "gelu": _gelu,
    "logaddexp": _logaddexp,
    "lerp": lambda a, b, weight: a + (b - a) * weight,
    "addcmul": _addcmul,
    "rsub": lambda a, b: b - a,
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "full_like": _full_like,
    "to": _to,
    "type_as": lambda x, other: x,
    "float": _cast(torch.float32),
    "double": _cast(torch.float64),
    "half": _cast(torch.float16),
    "bfloat16": _cast(torch.bfloat16),
    "int": _cast(torch.int32),
    "long": _cast(torch.int64),
    "bool": _truth,
    "detach": lambda x: x,
    "clone": lambda x: x,
    "contiguous": lambda x: x,
}
_ALIASES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "negative": "neg",
    "absolute": "abs", "sgn": "sign", "fix": "trunc", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "clip": "clamp", "expit": "sigmoid", "greater": "gt", "less": "lt",
    "greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "float_power": "pow",
    "swish": "silu",
}  # fmt: skip
_REDUCTIONS = frozenset(
    "sum mean var std prod amax amin argmax argmin logsumexp softmax log_softmax cumsum norm any all".split()
)


def _function_name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).removeprefix("special_").strip("_")


def known_names() -> tuple[str, ...]:
    """Every torch name the language understands, sorted."""
    return tuple(sorted({*FUNCTIONS, *_ALIASES}))


def unknown_operation(name: str) -> DeclarationError:
    near = difflib.get_close_matches(name, known_names(), n=3)
    if name in _REDUCTIONS:
        do = "declare a field (fr.Sum, fr.Max, ...): a term is written for one element"
    elif name.endswith("_") and name.rstrip("_") in FUNCTIONS:
        do = f"in-place operations cannot be traced: write {name.rstrip('_')}"
    else:
        do = f"near ones: {', '.join(near)}" if near else "compose it from the language's operations"
    return refuse(f"the language has no operation `{name}`", came=f"{name}(...)", do=do)


def _first_traced(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
    values = [*args, *kwargs.values()]
    values += [v for a in values if isinstance(a, (tuple, list)) for v in a]
    return next(a for a in values if isinstance(a, Traced))


def apply(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call | None = None
) -> Any:
    """Run the torch function called `name` on traced values."""
    first = _first_traced(args, kwargs)
    function = first.lookup(name) or FUNCTIONS.get(_ALIASES.get(name, name))
    if function is None:
        raise unknown_operation(name)
    args = tuple(args)
    for key in ("input", "self"):  # torch.exp(input=x)
        if key in kwargs:
            args, kwargs = (kwargs[key], *args), {k: v for k, v in kwargs.items() if k != key}
    if "other" in kwargs:
        args, kwargs = (*args, kwargs["other"]), {k: v for k, v in kwargs.items() if k != "other"}
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise refuse(
            f"arguments of {name} that the language does not know",
            came=f"{name}({', '.join([*('...' for _ in args), *(f'{k}=' for k in kwargs)])})",
            expected=f"{name}{inspect.signature(function)}",
            do=f"{error}; compose it from the language's operations",
        ) from None
    return first.settle(lambda: function(*args, **kwargs), call)


def _method(value: Traced, name: str) -> Any:
    if name in ("shape", "ndim", "dtype", "device", "T", "mT", "grad", "data", "size"):
        raise refuse(
            f"`.{name}` of a traced value",
            expected="a term is written for one element and has no shape",
            do="count elements with fr.Sum(lambda x: 1.0)",
        )
    if value.lookup(name) is None and _ALIASES.get(name, name) not in FUNCTIONS:
        raise unknown_operation(name)

    def method(*args: Any, **kwargs: Any) -> Any:
        call = Call(getattr(torch.Tensor, name), (value, *args), kwargs)
        if name == "where":  # x.where(condition, other)
            args = (args[0], value, *args[1:])
        else:
            args = (value, *args)
        return apply(name, args, kwargs, call)

    return method


# ---- tracing one function ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """What a user's function needs: its parameters in order, and those that carry constants as defaults."""

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
    """Names that the user's own variables gave to expressions, and those variables at the return."""

    of: dict[Expr, str] = field(default_factory=dict)
    locals: dict[str, Any] = field(default_factory=dict)


@contextmanager
def local_names(code: CodeType | None, names: Names) -> Iterator[None]:
    """Record, when the function with this code returns, which local variable holds which expression."""

    def hook(frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" and frame.f_code is code:
            names.locals.update(frame.f_locals)
            for name, value in frame.f_locals.items():
                if isinstance(value, Traced) and value.expr.args:
                    names.of.setdefault(value.expr, name)
        if previous is not None:
            previous(frame, event, arg)

    previous = sys.getprofile()
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(previous)


class StateView:
    """The whole state before (`old`), the new references (`new`), a side of a merge (`a`, `b`): `old.m`."""

    __slots__ = ("_fields", "_side")
    _builtin: ClassVar[frozenset[str]] = frozenset({"_fields", "_side"})

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
    """Call a user's function by name on traced values; a foreign error is told with the user's line."""
    names = Names() if names is None else names
    try:
        with local_names(getattr(fn, "__code__", None), names):
            return fn(**arguments)
    except FusedReduceError:
        raise
    except (TypeError, ValueError, AttributeError, NameError, ZeroDivisionError) as error:
        raise DeclarationError(
            message(
                f"{type(error).__name__} while tracing: {error}",
                where=function_line(fn),
                do="write the function with torch operations on its parameters",
            )
        ) from error
