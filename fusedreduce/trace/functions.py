"""What each torch function means on traced values; a new one is a row of the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedreduce.trace.integers import require_number
from fusedreduce.trace.names import KNOWN
from fusedreduce.trace.place import refuse
from fusedreduce.trace.value import FUNCTIONS, Kind, Traced

_RANK = {"bool": 0, "int": 1, "float": 2}


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
            "a tensor from outside is used",
            expected="operands (parameters of the function), state fields and Python numbers",
            came=f"a tensor of shape {tuple(value.shape)}",
            do="name it as a parameter and pass it in the call, to fr.reduce by that name",
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
    for a in args:
        if isinstance(a, int) and not -(2**63) <= a < 2**63:
            raise refuse("a number of more than 64 bits", expected="-2^63 to 2^63 - 1", came=f"{a}")
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


def _relu(x: Any) -> Any:
    """NaN stays; the slope at 0 is 0, as torch's is (that of a clamp is 1)."""
    zero = 0 if kind_of(x) == "int" else 0.0
    return _where(emit("le", x, zero, kind="bool"), zero, x)


def _pair(op: str) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        if len(args) != 2:
            raise refuse(
                f"torch.{op[:3]} of one value",
                expected="two values: a term is written for one element",
                do=f"declare fr.{op[:3].capitalize()}(...) to reduce, or write torch.{op}(a, b)",
            )
        return emit(op, *args)

    return function


def _softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = x if beta == 1 else emit("mul", x, beta)
    y = emit("softplus", scaled, kind="float")
    y = y if beta == 1 else emit("div", y, beta)
    if threshold == 20:  # torch answers x above it, where float32 has no other number
        return y
    return _where(emit("gt", scaled, threshold, kind="bool"), x, y)


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return x * (emit("erf", x * 0.7071067811865476, kind="float") + 1.0) * 0.5
    inner = (x + x * x * x * 0.044715) * 0.7978845608028654
    return x * (emit("tanh", inner, kind="float") + 1.0) * 0.5


def _pow(x: Any, power: Any) -> Any:
    if _joined((x, power)) != "float" and isinstance(power, int) and power < 0:
        raise refuse(
            "an integer to a negative power",
            expected="a power of 0 or more, as in torch",
            came=f"a power of {power}",
            do="convert it: x.float() ** -1",
        )
    return emit("pow", x, power)


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


def _detach(x: Any) -> Any:
    raise refuse(
        "detach inside a fused function",
        expected="operations whose gradient is that of their formula",
        do="detach the argument before the call, or compute what is detached outside",
    )


def _like(value: float) -> Callable[..., Any]:
    def function(x: Any, *, dtype: torch.dtype | None = None) -> Any:
        return _full_like(x, value, dtype=dtype)

    return function


def _full_like(x: Any, fill_value: Any, *, dtype: torch.dtype | None = None) -> Any:
    kind = kind_of(x) if dtype is None else dtype_kind(dtype)
    number = {"bool": bool, "int": int, "float": float}[kind](fill_value)
    width = dtype or x.width
    if kind == "int" and width is not None:
        require_number(int(number), width)
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
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "erf", "erfc", "sigmoid",
)  # fmt: skip
_SAME_OPS = ("abs", "sign", "maximum", "minimum", "floor", "ceil", "trunc")
_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")

FUNCTIONS.update(
    {
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
        "pow": _pow,
        "square": lambda x: emit("mul", x, x),
        "where": _where,
        "clamp": _clamp,
        "clamp_min": lambda x, min: _clamp(x, min=min),
        "clamp_max": lambda x, max: _clamp(x, max=max),
        "relu": lambda x, inplace=False: _relu(x),
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
        "type_as": lambda x, other: _to(x, other.dtype),
        "float": _cast(torch.float32),
        "double": _cast(torch.float64),
        "half": _cast(torch.float16),
        "bfloat16": _cast(torch.bfloat16),
        "int": _cast(torch.int32),
        "long": _cast(torch.int64),
        "bool": _truth,
        "detach": _detach,
        "clone": lambda x: x,
        "contiguous": lambda x: x,
    }
)
KNOWN.update(FUNCTIONS)
