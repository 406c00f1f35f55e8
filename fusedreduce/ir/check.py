"""Kinds and well-formedness: bool < int < float, told from the table.

A pass that makes expressions ends with `check`; what it refuses is underlined in the message.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusedreduce.errors import DeclarationError, message
from fusedreduce.ir.expr import Expr, cast, const, is_const, make, walk
from fusedreduce.ir.ops import KINDS, OPS
from fusedreduce.ir.show import underline

_WANTED: Mapping[str, str] = {
    "bool": "a boolean",
    "int": "an integer or a boolean",
    "number": "numbers, not booleans alone",
}
_CURE: Mapping[str, str] = {
    "bool": "compare with a number, such as x != 0",
    "int": "convert it, x.to(torch.int32), or use // instead of /",
    "number": "combine booleans with &, | and ~, or convert one, (x > 0).float()",
}


def kind_of_dtype(dtype: str) -> str:
    """The kind of a dtype's name.

    >>> kind_of_dtype("bfloat16"), kind_of_dtype("int64"), kind_of_dtype("bool")
    ('float', 'int', 'bool')
    """
    return "bool" if dtype == "bool" else "int" if dtype.startswith(("int", "uint")) else "float"


def kind_of_value(value: object) -> str:
    """The kind of a Python number."""
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def join(*kinds: str) -> str:
    """The promoted kind, bool < int < float."""
    return max(kinds, key=KINDS.index)


def _refuse(
    root: Expr, node: Expr, fact: str, expected: str, came: str, do: str
) -> DeclarationError:
    place = underline(root, node).replace("\n", "\n            ")
    return DeclarationError(message(fact, expected=expected, came=came, where=place, do=do))


def _check_form(root: Expr, node: Expr) -> None:
    """The operation is in the table and has as many arguments as its row says."""
    op = OPS.get(node.op)
    if op is None:
        fact = f"the operation {node.op} is not part of the language"
        raise _refuse(root, node, fact, "a row of fusedreduce/ir/ops.py", node.op, "")
    if op.arity != len(node.args):
        fact = f"{op.name} has a wrong number of arguments"
        raise _refuse(root, node, fact, str(op.arity), str(len(node.args)), "")


def _check_arguments(root: Expr, node: Expr, kinds: tuple[str, ...]) -> None:
    """Every argument is of a kind its row takes."""
    op = OPS[node.op]
    for child, takes, kind in zip(node.args, op.takes, kinds, strict=True):
        wrong = {
            "bool": kind != "bool",
            "int": kind == "float",
            "number": set(kinds) == {"bool"},
        }.get(takes, False)
        if wrong:
            fact = f"an argument of {op.name} is not of a kind it takes"
            came = f"a value of kind {kind}"
            raise _refuse(root, child, fact, _WANTED[takes], came, _CURE[takes])
    if node.op == "pow" and "float" not in kinds and is_const(node.args[1]):
        power = node.args[1]
        if power.value < 0:  # type: ignore[operator]
            raise _refuse(root, node, "an integer to a negative power", "a power of 0 or more",
                          f"{power.value}", "convert it: x.float() ** -1")  # fmt: skip


def _kind(root: Expr, node: Expr, args: tuple[str, ...], kinds: Mapping[str, str]) -> str:
    """The kind of a node from those of its arguments."""
    if node.op == "var":
        kind = kinds.get(str(node.value))
        if kind is None:
            names = ", ".join(kinds) or "none"
            raise _refuse(root, node, f"unknown name {node.value}", names, str(node.value), "")
        return kind
    leaves = {"const": kind_of_value(node.value), "cast": kind_of_dtype(str(node.value))}
    if node.op in leaves:
        return leaves[node.op]
    if node.op == "read":
        return args[0]
    result = OPS[node.op].result
    return join(*(args[1:] if node.op == "where" else args)) if result == "join" else result


def all_kinds(root: Expr, kinds: Mapping[str, str]) -> dict[Expr, str]:
    """The kind of every node under root; refuses what is not well formed.

    >>> from fusedreduce.ir.expr import call, var
    >>> root = call("lt", var("i"), 2.5)
    >>> {n.op: k for n, k in all_kinds(root, {"i": "int"}).items()}
    {'var': 'int', 'const': 'float', 'lt': 'bool'}
    """
    done: dict[Expr, str] = {}
    for node in walk(root):
        _check_form(root, node)
        args = tuple(done[a] for a in node.args)
        _check_arguments(root, node, args)
        done[node] = _kind(root, node, args, kinds)
    return done


def kind_of(expr: Expr, kinds: Mapping[str, str]) -> str:
    """The kind of an expression, "bool", "int" or "float", given the kinds of its variables.

    >>> from fusedreduce.ir.expr import call, var
    >>> kind_of(call("floordiv", var("i"), 2), {"i": "int"})
    'int'
    """
    return all_kinds(expr, kinds)[expr]


def check(expr: Expr, kinds: Mapping[str, str]) -> Expr:
    """The expression itself, when it is well formed; a DeclarationError when it is not."""
    kind_of(expr, kinds)
    return expr


def promote(expr: Expr, kinds: Mapping[str, str]) -> Expr:
    """The same value with conversions written out where an operation works on floats only.

    Triton's functions refuse integers, and torch computes exp of an integer in float32 whatever
    the state is. Rounding functions of integers disappear.

    >>> from fusedreduce.ir.expr import call, var
    >>> from fusedreduce.ir.show import show
    >>> show(promote(call("exp", call("floor", var("j"))), {"j": "int"}))
    'exp(j.to(float))'
    """
    kind = all_kinds(expr, kinds)
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        op = OPS[node.op]
        if op.steps and kind[node] == "int":
            done[node] = done[node.args[0]]
            continue
        pairs = zip(node.args, op.takes or ("any",) * len(node.args), strict=True)
        args = (_as_float(done[a]) if t == "float" and kind[a] != "float" else done[a]
                for a, t in pairs)  # fmt: skip
        done[node] = make(node.op, tuple(args), node.value)
    return done[expr]


def _as_float(node: Expr) -> Expr:
    """A constant as a float constant, anything else by a conversion."""
    return const(float(node.value or 0)) if is_const(node) else cast(node, "float")
