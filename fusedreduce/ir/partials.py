"""d(op)/d(argument), one rule an argument: the data of the table's column `derivative`.

Every operation here is elementwise, so its derivative with respect to one argument is the linear
map t -> (d op / d argument) t on numbers. One rule therefore serves both directions: forward, t is
the tangent of the argument; backward, t is the adjoint of the result. A rule is called as
rule(t, y, *args), y being the node itself, so that exp' is written t * y and nothing is computed
twice. `None` says that the derivative is zero almost everywhere.

Choices at the points where there is no derivative (torch's, except that ties are not shared):
    abs         0 at 0
    maximum     a tie goes to the first argument
    minimum     a tie goes to the first argument
    where       each branch gets its own part by a select, never by a product: 0 * inf is NaN
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from fusedreduce.ir.expr import Expr, call, const, is_const, where

Rule: TypeAlias = Callable[..., Expr]

_LN2, _LN10 = math.log(2.0), math.log(10.0)
_ERF_SLOPE = 2.0 / math.sqrt(math.pi)


def _power(t: Expr, y: Expr, a: Expr, b: Expr) -> Expr:
    """t b a^(b - 1), the exponent computed here when it is a number; 0 when it is 0."""
    if is_const(b):
        n = b.value
        assert isinstance(n, (int, float))
        return t * 0.0 if n == 0 else t * (b * call("pow", a, const(n - 1)))
    return where(call("eq", b, 0.0), 0.0, t * (b * call("pow", a, b - 1.0)))


def _exponent(t: Expr, y: Expr, a: Expr, b: Expr) -> Expr:
    """t a^b log a, and 0 at a = 0, where a^b is flat in b."""
    return where(call("eq", a, 0.0), 0.0, t * (y * call("log", a)))


def _converted(t: Expr, y: Expr, x: Expr) -> Expr:
    """Rounding to a float dtype counts as the identity; integers and booleans are flat."""
    return t * 0.0 if str(y.value).startswith(("bool", "int", "uint")) else t


def _beyond_one(x: Expr) -> Expr:
    """1 - x^2 as (1 - x) (1 + x), which keeps its digits near 1."""
    return (1.0 - x) * (1.0 + x)


PARTIALS: Mapping[str, tuple[Rule | None, ...]] = {
    "const": (),
    "var": (),
    "cast": (_converted,),
    "read": (None, None),
    "add": (lambda t, y, a, b: t, lambda t, y, a, b: t),
    "sub": (lambda t, y, a, b: t, lambda t, y, a, b: -t),
    "mul": (lambda t, y, a, b: t * b, lambda t, y, a, b: t * a),
    "div": (lambda t, y, a, b: t / b, lambda t, y, a, b: -(t * (y / b))),
    "floordiv": (None, None),
    "mod": (lambda t, y, a, b: t, lambda t, y, a, b: -(t * call("floordiv", a, b))),
    "neg": (lambda t, y, x: -t,),
    "pow": (_power, _exponent),
    "exp": (lambda t, y, x: t * y,),
    "exp2": (lambda t, y, x: t * (y * _LN2),),
    "expm1": (lambda t, y, x: t * (y + 1.0),),
    "log": (lambda t, y, x: t / x,),
    "log2": (lambda t, y, x: t / (x * _LN2),),
    "log10": (lambda t, y, x: t / (x * _LN10),),
    "log1p": (lambda t, y, x: t / (1.0 + x),),
    "sqrt": (lambda t, y, x: t * (0.5 / y),),
    "rsqrt": (lambda t, y, x: t * (-0.5 * (y / x)),),
    "reciprocal": (lambda t, y, x: -(t * (y * y)),),
    "abs": (lambda t, y, x: t * call("sign", x),),
    "sign": (None,),
    "sin": (lambda t, y, x: t * call("cos", x),),
    "cos": (lambda t, y, x: -(t * call("sin", x)),),
    "tan": (lambda t, y, x: t * (1.0 + y * y),),
    "asin": (lambda t, y, x: t * call("rsqrt", _beyond_one(x)),),
    "acos": (lambda t, y, x: -(t * call("rsqrt", _beyond_one(x))),),
    "atan": (lambda t, y, x: t / (1.0 + x * x),),
    "atan2": (
        lambda t, y, a, b: t * (b / (a * a + b * b)),
        lambda t, y, a, b: -(t * (a / (a * a + b * b))),
    ),
    "sinh": (lambda t, y, x: t * call("cosh", x),),
    "cosh": (lambda t, y, x: t * call("sinh", x),),
    "tanh": (lambda t, y, x: t * (1.0 - y * y),),
    "asinh": (lambda t, y, x: t * call("rsqrt", x * x + 1.0),),
    "acosh": (lambda t, y, x: t * call("rsqrt", (x - 1.0) * (x + 1.0)),),
    "atanh": (lambda t, y, x: t / _beyond_one(x),),
    "erf": (lambda t, y, x: t * (_ERF_SLOPE * call("exp", -(x * x))),),
    "erfc": (lambda t, y, x: -(t * (_ERF_SLOPE * call("exp", -(x * x)))),),
    "sigmoid": (lambda t, y, x: t * (y * (1.0 - y)),),
    "softplus": (lambda t, y, x: t * call("sigmoid", x),),
    "maximum": (
        lambda t, y, a, b: where(call("ge", a, b), t, 0.0),
        lambda t, y, a, b: where(call("ge", a, b), 0.0, t),
    ),
    "minimum": (
        lambda t, y, a, b: where(call("le", a, b), t, 0.0),
        lambda t, y, a, b: where(call("le", a, b), 0.0, t),
    ),
    "where": (
        None,
        lambda t, y, c, a, b: where(c, t, 0.0),
        lambda t, y, c, a, b: where(c, 0.0, t),
    ),
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), (None,)),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "not", "bitnot"), (None,)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"), (None, None)),
    **dict.fromkeys(("bitand", "bitor", "bitxor", "shl", "shr"), (None, None)),
    "random": (None,) * 5,
}
