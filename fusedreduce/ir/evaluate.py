"""The value of an expression in torch, numpy, mpmath or sympy, by the spellings of the table.

Every node is evaluated once and nothing is skipped: both branches of a `where` are computed, as
IEEE arithmetic and every kernel do. The library comes in as an argument, so this module imports
none: `dialect("torch", {"torch": torch})`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fusedreduce.ir.expr import Expr, walk
from fusedreduce.ir.ops import OPS, Op
from fusedreduce.ir.philox import random

Hook = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Dialect:
    """What the operations mean in one library.

    `const` makes a library value of a Python number, `value` one of whatever the caller passes for
    a variable, `cast` converts (value, dtype or kind), `read` indexes (table, index), `scalar`
    makes a constant last argument of the rows that are marked so (a power's exponent).
    """

    name: str
    namespace: Mapping[str, Any]
    const: Hook
    value: Hook
    cast: Hook
    read: Hook
    scalar: Hook
    ops: Mapping[str, Hook] = field(default_factory=dict)


def dialect(
    name: str,
    namespace: Mapping[str, Any],
    *,
    const: Hook | None = None,
    value: Hook | None = None,
    cast: Hook | None = None,
    read: Hook | None = None,
    dtype: Any = None,
) -> Dialect:
    """The dialect `name` of the table over the libraries in `namespace`; hooks left out are usual.

    `dtype` is the dtype of the state: what float constants and "float" conversions become. In
    torch, constants are 0-d tensors, so that torch.where(c, 1.0, 2.0) has tensors to work on.

    >>> import math
    >>> double = dialect("mpmath", {"mp": __import__("mpmath").mp})
    >>> float(double.ops["add"](2, 3))
    5.0
    """
    usual = _USUAL[name](namespace, dtype)
    hooks = {
        "const": const or usual["const"],
        "value": value or usual["value"],
        "cast": cast or usual["cast"],
        "read": read or _index,
        "scalar": usual.get("scalar") or const or usual["const"],
    }
    ours = {"real": real, "divide": divide, "remainder": remainder, "random": random}
    scope = {"math": math, **ours, **namespace}
    ops = {n: _function(op, name, scope) for n, op in OPS.items() if op.result in _RESULTS}
    return Dialect(name, scope, **hooks, ops={**ops, "cast": hooks["cast"], "read": hooks["read"]})


_RESULTS = ("join", "bool", "int", "float")


def _function(op: Op, name: str, scope: Mapping[str, Any]) -> Hook:
    """The callable of one row, compiled from our own constant text."""
    marks = [f"a{i}" for i in range(op.arity)]
    code = f"lambda {', '.join(marks)}: {op.spelling(name).format(*marks)}"
    return eval(code, dict(scope))  # type: ignore[no-any-return]


def real(f: Hook, *args: Any) -> Any:
    """f(args) over the reals, as IEEE arithmetic has it: NaN where it is complex, inf at a pole."""
    try:
        y = f(*args)
    except ZeroDivisionError:
        return math.inf
    except (ValueError, TypeError):
        return math.nan
    return y.real if getattr(y, "imag", 0) == 0 else math.nan


def divide(a: Any, b: Any) -> Any:
    """a / b for mpmath, which raises at b = 0 and whose zero has no sign: a * inf, or NaN."""
    if b == 0:
        return math.nan if a == 0 or a != a else math.inf if a > 0 else -math.inf
    return a / b


def remainder(a: Any, b: Any) -> Any:
    """a mod b with the sign of b, and NaN where IEEE says so."""
    undefined = b == 0 or a != a or b != b or abs(a) == math.inf
    return math.nan if undefined else a if abs(b) == math.inf and (a >= 0) == (b > 0) else a % b


def _index(table: Any, index: Any) -> Any:
    return table[index]


def _of_torch(namespace: Mapping[str, Any], dtype: Any) -> dict[str, Hook]:
    torch = namespace["torch"]
    state = dtype or torch.float32
    kinds = {"float": state, "int": torch.int64, "bool": torch.bool}

    def const(value: Any) -> Any:
        return torch.tensor(value, dtype=state if isinstance(value, float) else None)

    def value(x: Any) -> Any:
        return x if isinstance(x, torch.Tensor) else const(x)

    def cast(x: Any, to: str) -> Any:
        return x.to(kinds.get(to) or getattr(torch, to))

    return {"const": const, "value": value, "cast": cast, "scalar": lambda value: value}


def _of_numpy(namespace: Mapping[str, Any], dtype: Any) -> dict[str, Hook]:
    """Integers stay Python's, so that numpy does not promote float32 by them."""
    np = namespace["np"]
    state = dtype or np.float64
    kinds = {"float": state, "int": np.int64, "bool": np.bool_}

    def const(value: Any) -> Any:
        return (
            np.bool_(value)
            if isinstance(value, bool)
            else state(value)
            if isinstance(value, float)
            else value
        )

    def cast(x: Any, to: str) -> Any:
        return np.asarray(x).astype(kinds.get(to) or getattr(np, to))[()]

    return {"const": const, "value": const, "cast": cast}


def _of_mpmath(namespace: Mapping[str, Any], dtype: Any) -> dict[str, Hook]:
    """All numbers are mpf (an int / int in Python would be a double), booleans are Python's."""
    mp = namespace["mp"]

    def const(value: Any) -> Any:
        return value if isinstance(value, bool) else mp.mpf(value)

    kinds: dict[str, Hook] = {"int": lambda x: mp.mpf(int(x)), "bool": bool}

    def cast(x: Any, to: str) -> Any:
        return kinds.get(to.rstrip("0123456789"), mp.mpf)(x)

    return {"const": const, "value": const, "cast": cast}


def _of_sympy(namespace: Mapping[str, Any], dtype: Any) -> dict[str, Hook]:
    """Floats that are integers or simple become exact; conversions between dtypes do not exist."""
    sp = namespace["sp"]

    def const(value: Any) -> Any:
        if isinstance(value, bool):
            return sp.true if value else sp.false
        return sp.sympify(value) if isinstance(value, int) else sp.nsimplify(value, rational=True)

    return {"const": const, "value": lambda x: x, "cast": lambda x, to: x}


_USUAL: Mapping[str, Callable[[Mapping[str, Any], Any], dict[str, Hook]]] = {
    "torch": _of_torch,
    "numpy": _of_numpy,
    "mpmath": _of_mpmath,
    "sympy": _of_sympy,
}


def evaluate(expr: Expr, env: Mapping[str, Any], dialect: Dialect) -> Any:
    """The value of an expression, its variables as in `env`.

    >>> import math
    >>> from fusedreduce.ir.expr import call, var
    >>> mp = dialect("mpmath", {"mp": __import__("mpmath").mp})
    >>> float(evaluate(call("maximum", var("x"), 2.0) + 1, {"x": 5.0}, mp))
    6.0
    """
    done: dict[Expr, Any] = {}
    for node in walk(expr):
        args = [done[a] for a in node.args]
        if node.op == "var":
            done[node] = dialect.value(env[str(node.value)])
        elif node.op == "const":
            done[node] = dialect.const(node.value)
        elif node.op == "cast":
            done[node] = dialect.cast(args[0], node.value)
        else:
            if _takes_scalar(node):
                args[-1] = dialect.scalar(node.args[-1].value)
            done[node] = dialect.ops[node.op](*args)
    return done[expr]


def _takes_scalar(node: Expr) -> bool:
    return OPS[node.op].scalar and node.args[-1].op == "const"


def compiled(expr: Expr, names: tuple[str, ...], dialect: Dialect) -> Callable[..., Any]:
    """A Python function of the values of `names`, in that order, that evaluates the expression.

    Made once for equal arguments. Temporaries are overwritten as soon as nobody needs them.

    >>> from fusedreduce.ir.expr import var
    >>> mp = dialect("mpmath", {"mp": __import__("mpmath").mp})
    >>> float(compiled(var("x") * var("y"), ("x", "y"), mp)(3, 4))
    12.0
    """
    function = compiled_all((expr,), names, dialect)

    def first(*values: Any) -> Any:
        return function(*values)[0]

    return first


@lru_cache(maxsize=2048)
def compiled_all(
    exprs: tuple[Expr, ...], names: tuple[str, ...], dialect: Dialect
) -> Callable[..., tuple[Any, ...]]:
    """As `compiled`, for several expressions that share subexpressions: a tuple of their values."""
    scope: dict[str, Any] = {
        **dialect.namespace,
        "as_value": dialect.value,
        "as_type": dialect.cast,
        "read": dialect.read,
    }
    body = list(_statements(exprs, names, dialect, scope))
    args = ", ".join(f"x{i}" for i in range(len(names)))
    source = "\n    ".join([f"def function({args}):", *body])
    exec(compile(source, "<expression>", "exec"), scope)
    return scope["function"]  # type: ignore[no-any-return]


def _statements(
    exprs: tuple[Expr, ...], names: tuple[str, ...], dialect: Dialect, scope: dict[str, Any]
) -> Iterator[str]:
    """One statement a node; a name is free again after its last use."""
    order = list(walk(*exprs))
    last = {a: node for node in order for a in node.args}
    where: dict[Expr, str] = {}
    free: list[str] = []
    for i, node in enumerate(order):
        args = [where[a] for a in node.args]
        if _takes_scalar(node):
            args[-1] = f"s{i}"
            scope[args[-1]] = dialect.scalar(node.args[-1].value)
        text = _statement(node, args, names, dialect)
        if node.op == "const":
            where[node] = f"c{i}"
            scope[where[node]] = dialect.const(node.value)
            continue
        dying = (a for a in dict.fromkeys(node.args) if last[a] is node and a not in exprs)
        free.extend(where[a] for a in dying if a.op != "const")
        where[node] = free.pop() if free else f"v{i}"
        yield f"{where[node]} = {text}"
    yield f"return ({''.join(where[e] + ', ' for e in exprs)})"


def _statement(node: Expr, args: list[str], names: tuple[str, ...], dialect: Dialect) -> str:
    """The right-hand side that computes a node from the names of its arguments."""
    if node.op == "var":
        return f"as_value(x{names.index(str(node.value))})"
    if node.op == "cast":
        return f"as_type({args[0]}, {node.value!r})"
    if node.op == "read":
        return f"read({args[0]}, {args[1]})"
    return "" if node.op == "const" else OPS[node.op].spelling(dialect.name).format(*args)
