"""A term as text, such as "exp(x - m)": read by the language's own table, never run as Python."""

from __future__ import annotations

import ast
import difflib
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fusedreduce import trace
from fusedreduce.errors import OptionError, message
from fusedreduce.ir import expr as ir

LONGEST = 2000  # letters
DEEPEST = 200  # nested operations
Values: TypeAlias = "Mapping[str, Any]"

_TWO: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.Pow: operator.pow, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_ONE: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.USub: operator.neg, ast.UAdd: lambda v: v, ast.Invert: operator.invert,
}  # fmt: skip


def term_function(text: str) -> Callable[..., Any]:
    """The function of traced values that a text stands for; its parameters are the free names.

    Names, numbers, + - * / ** // % & | ~, comparisons and the functions of the language, with or
    without `torch.` in front, and `a if c else b`; `^` is a power. Everything else is refused.

    >>> import inspect
    >>> inspect.signature(term_function("exp(x - m) ^ 2"))
    <Signature (x, m)>
    """
    tree = _parsed(text)
    free = tuple(dict.fromkeys(_free_names(tree)))

    def function(*args: Any, **more: Any) -> Any:
        return _value(tree, signature.bind(*args, **more).arguments, text)

    signature = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in free]
    )
    function.__signature__ = signature  # type: ignore[attr-defined]
    _value(tree, {n: trace.scalar(n) for n in free}, text)  # what is refused is refused at once
    return function


def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise _refused(text[:40] + " ...", f"{len(text)} letters", f"at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refused(text, str(getattr(error, "msg", error))) from None
    _check(tree, text)
    return tree


def _check(tree: ast.expr, text: str) -> None:
    """Only nodes that have a meaning here, and not too deep."""
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise _refused(text[:40] + " ...", "it is nested too deeply", f"at most {DEEPEST} levels")
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise _refused(text, f"{type(node).__name__.lower()}")
        if isinstance(node, ast.Constant) and not isinstance(node.value, (bool, int, float)):
            raise _refused(text, repr(node.value))
        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            raise _refused(text, "a < b < c", "(a < b) & (b < c)")
        if isinstance(node, ast.Call) and node.keywords:
            raise _refused(text, f"{node.keywords[0].arg}=", "arguments by position")


_NODES = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Attribute,
    ast.IfExp, ast.Load, ast.BitXor, *_TWO, *_ONE,
)  # fmt: skip


def _free_names(tree: ast.expr) -> list[str]:
    """Names that are no functions, in order of appearance."""
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    modules = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    found = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and id(n) not in called and id(n) not in modules
    ]
    return [n.id for n in sorted(found, key=lambda n: (n.lineno, n.col_offset))]


def _value(node: ast.expr, values: Values, text: str) -> Any:
    """The value of a node, numbers included, so that 9 ** 9 ** 9 is written down, not computed."""
    if isinstance(node, ast.Name):
        return values[node.id] if node.id in values else _refuse_name(node, text)
    if isinstance(node, ast.Constant):
        return _number(node.value)
    if isinstance(node, ast.IfExp):
        parts = (node.test, node.body, node.orelse)
        return _call("where", [_value(p, values, text) for p in parts])
    if isinstance(node, ast.UnaryOp):
        return _ONE[type(node.op)](_value(node.operand, values, text))
    if isinstance(node, ast.BinOp):
        kind = ast.Pow if isinstance(node.op, ast.BitXor) else type(node.op)
        return _TWO[kind](_value(node.left, values, text), _value(node.right, values, text))
    if isinstance(node, ast.Compare):
        right = _value(node.comparators[0], values, text)
        return _TWO[type(node.ops[0])](_value(node.left, values, text), right)
    if isinstance(node, ast.Call):
        return _call(_function_name(node.func, text), [_value(a, values, text) for a in node.args])
    raise _refused(text, ast.unparse(node))


def _number(value: Any) -> Any:
    return trace.Traced(ir.const(value), trace.to_expr(value, "a number")[1])


def _call(name: str, args: list[Any]) -> Any:
    return trace.apply(name, args, {})


def _function_name(node: ast.expr, text: str) -> str:
    """exp, or torch.exp."""
    if isinstance(node, ast.Attribute):
        if not isinstance(node.value, ast.Name) or node.value.id != "torch":
            raise _refused(text, ast.unparse(node), "torch.exp, or exp")
        name = node.attr
    elif isinstance(node, ast.Name):
        name = node.id
    else:
        raise _refused(text, ast.unparse(node), "the name of a function")
    if name not in trace.FUNCTIONS:
        near = difflib.get_close_matches(name, trace.FUNCTIONS, n=2, cutoff=0.5)
        raise OptionError(
            message(
                f"torch has no {name!r}" if not near else f"torch has no {name!r} in this language",
                came=text,
                do=f"did you mean {' or '.join(near)}?" if near else "",
            )
        )
    return name


def _refuse_name(node: ast.Name, text: str) -> Any:
    raise _refused(text, node.id, "a function is called: exp(x)")


def _refused(text: str, came: str, expected: str = "names, numbers and functions") -> OptionError:
    return OptionError(message(f"{text!r} is not an expression", expected=expected, came=came))
