"""Expressions as text with the fewest parentheses: readable maths, PyTorch, or Triton.

A text carries its precedence, each argument place of a spelling has the least precedence it takes
without parentheses, and both are read from the spelling by Python's own grammar. So a spelling may
be anything Python can parse, and a - (b - c), a ** b ** c, (a < b) < c need no case here.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from fusedreduce.ir.expr import Expr, walk
from fusedreduce.ir.ops import OPS

COMPARE, NOT, UNARY, POWER, ATOM = 6, 5, 13, 14, 16
_BINARY: Mapping[type[ast.operator], int] = {
    ast.BitOr: 7, ast.BitXor: 8, ast.BitAnd: 9, ast.LShift: 10, ast.RShift: 10,
    ast.Add: 11, ast.Sub: 11,
    ast.Mult: 12, ast.Div: 12, ast.FloorDiv: 12, ast.Mod: 12, ast.Pow: POWER,
}  # fmt: skip
_TRITON_TYPES: Mapping[str, str] = {"bool": "int1"}
_HELPER = re.compile(r"(?<![\w.])([a-z_]\w*)\(")
_NAME = re.compile(r"[A-Za-z_]\w*")
#: Text longer than this shows a shared subexpression once, by name.
_LONG, _TOO_LONG = 400, 100_000


class Text(NamedTuple):
    """A printed expression and the precedence of its outermost operator."""

    text: str
    precedence: int


class Shape(NamedTuple):
    """Of a spelling: its precedence and, for each argument, the least one printed bare."""

    precedence: int
    least: tuple[int, ...]


def _operands(node: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """The children of a syntax node with the precedence each needs to stand bare."""
    if isinstance(node, ast.BinOp):
        p, right = _BINARY[type(node.op)], isinstance(node.op, ast.Pow)
        yield node.left, p + right
        yield node.right, UNARY if right else p + 1
    elif isinstance(node, ast.UnaryOp):
        yield node.operand, NOT if isinstance(node.op, ast.Not) else UNARY
    elif isinstance(node, ast.Compare):
        yield from ((child, COMPARE + 1) for child in (node.left, *node.comparators))
    elif isinstance(node, ast.Subscript):
        yield node.value, ATOM
        yield node.slice, 0
    elif isinstance(node, ast.Attribute):
        yield node.value, ATOM
    else:
        yield from ((child, 0) for child in ast.iter_child_nodes(node))


def precedence(node: ast.AST) -> int:
    """How tightly Python binds the outermost operator of a parsed text."""
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)]
    if isinstance(node, ast.UnaryOp):
        return NOT if isinstance(node.op, ast.Not) else UNARY
    return COMPARE if isinstance(node, ast.Compare) else ATOM


@cache
def shape(spelling: str, arity: int) -> Shape:
    """The precedences of a spelling.

    >>> shape("{0} - {1}", 2)
    Shape(precedence=11, least=(11, 12))
    """
    marks = [f"_{i}" for i in range(arity)]
    root = ast.parse(spelling.format(*marks, value="value"), mode="eval").body
    least = dict.fromkeys(marks, 0)
    stack: list[tuple[ast.AST, int]] = [(root, 0)]
    while stack:
        node, need = stack.pop()
        if isinstance(node, ast.Name) and node.id in least:
            least[node.id] = max(least[node.id], need)
        stack.extend(_operands(node))
    return Shape(precedence(root), tuple(least.values()))


def number(value: object, infinite: str = 'float("{}")') -> Text:
    """A constant: 1.0, -2, True; infinities and NaN as `infinite` spells their name.

    >>> number(float("-inf")).text
    'float("-inf")'
    """
    if isinstance(value, float) and not math.isfinite(value):
        return Text(
            infinite.format(value), ATOM if "(" in infinite or value != -math.inf else UNARY
        )
    return Text(repr(value), UNARY if repr(value).startswith("-") else ATOM)


def _fill(spelling: str, args: tuple[Text, ...], value: object = None) -> Text:
    """The spelling with its arguments in place, each in parentheses where it needs them."""
    outer, least = shape(spelling, len(args))
    texts = [t if p >= n else f"({t})" for (t, p), n in zip(args, least, strict=True)]
    return Text(spelling.format(*texts, value=value), outer)


def _variant(node: Expr, args: tuple[Text, ...]) -> str:
    """The Triton spelling of a node, the better one where its last argument is a known number."""
    op = OPS[node.op]
    last = node.args[-1] if node.args else node
    if last.op == "const" and not isinstance(last.value, bool):
        for constant, spelling in op.variants:
            plain = spelling.count("{0}") == 1 or _NAME.fullmatch(args[0].text)
            if last.value == constant and plain:
                return spelling
    return op.triton


def _node(node: Expr, dialect: str, args: tuple[Text, ...]) -> Text:
    """A node printed from its printed arguments."""
    if node.op == "const":
        return number(node.value, "{}" if dialect == "show" else 'float("{}")')
    if node.op == "var":
        name = str(node.value)
        return Text(name if dialect == "show" else name.replace(".", "_"), ATOM)
    if node.op == "cast":
        spelling = "{0}.to({value})" if dialect == "show" else OPS["cast"].spelling(dialect)
        types = _TRITON_TYPES if dialect == "triton" else {}
        return _fill(spelling, args, types.get(str(node.value), node.value))
    if node.op == "read":
        return _fill(OPS["read"].torch, args)
    op = OPS.get(node.op)
    if op is None or op.arity != len(args):
        return Text(f"{node.op}({', '.join(a.text for a in args)})", ATOM)
    return _fill(_variant(node, args) if dialect == "triton" else op.spelling(dialect), args)


def _visible(root: Expr, names: Mapping[Expr, str]) -> Iterator[Expr]:
    """Every node that is printed, arguments first: nothing below a named node is visited."""
    seen: set[Expr] = set()
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if node not in names:
                stack.extend((a, False) for a in reversed(node.args))


def _render(root: Expr, dialect: str, names: Mapping[Expr, str], mark: Expr | None = None) -> Text:
    """The text of a root; the text of `mark` stands between two control characters."""
    done: dict[Expr, Text] = {}
    for node in _visible(root, names):
        name = names.get(node)
        text = (
            Text(name, ATOM)
            if name is not None
            else _node(node, dialect, tuple(done[a] for a in node.args))
        )
        if len(text.text) > _TOO_LONG:
            raise ValueError("the text is too long: name the shared subexpressions (see `shared`)")
        done[node] = Text(f"\x01{text.text}\x02", text.precedence) if node is mark else text
    return done[root]


def spell(
    expr: Expr, dialect: str, names: Mapping[Expr, str] | None = None, *, bare: int = 0
) -> str:
    """Source text of an expression in "triton" or "torch"; nodes in `names` print as their name.

    A text to be used as an argument of something else states how tightly that binds by `bare`.

    >>> from fusedreduce.ir.expr import call, var
    >>> x, m = var("x"), var("old.m")
    >>> spell(call("exp", x - (m - 1.0)), "triton", {m: "m_old"})
    'tl.exp(x - (m_old - 1.0))'
    """
    text, outer = _render(expr, dialect, names or {})
    return text if outer >= bare else f"({text})"


def helpers(expr: Expr, names: Mapping[Expr, str] | None = None) -> tuple[str, ...]:
    """The printed helpers that the Triton text of an expression calls, in order of first use.

    >>> from fusedreduce.ir.expr import call, var
    >>> helpers(call("tanh", var("x")) ** 2)
    ('tanh', 'square')
    """
    found: dict[str, None] = {}
    known = names or {}
    for node in _visible(expr, known):
        if node not in known and node.op in OPS and node.args:
            plain = Text("x" if node.args[0].op == "var" or node.args[0] in known else "(x)", ATOM)
            spelling = _variant(node, (plain,) * len(node.args))
            found.update(dict.fromkeys(_HELPER.findall(spelling)))
    return tuple(found)


def shared(*roots: Expr) -> tuple[Expr, ...]:
    """The nodes with arguments that are used more than once, in order of evaluation.

    >>> from fusedreduce.ir.expr import var
    >>> x = var("x")
    >>> shared((x + 1.0) * (x + 1.0))
    (add(var('x'), const(1.0)),)
    """
    uses: dict[Expr, int] = {}
    order = list(walk(*roots))
    for child in [*(a for node in order for a in node.args), *roots]:
        uses[child] = uses.get(child, 0) + 1
    return tuple(node for node in order if node.args and uses[node] > 1)


def _size(root: Expr) -> int:
    """The number of nodes of the tree, shared ones counted each time."""
    done: dict[Expr, int] = {}
    for node in walk(root):
        done[node] = 1 + sum(done[a] for a in node.args)
    return done[root]


def show(expr: Expr) -> str:
    """Readable maths; in a long one, shared subexpressions are named after `where`.

    >>> from fusedreduce.ir.expr import call, var
    >>> show(var("s") * call("exp", var("old.m") - var("new.m")))
    's * exp(old.m - new.m)'
    """
    if _size(expr) <= _LONG:
        return _render(expr, "show", {}).text
    names = {node: f"t{i}" for i, node in enumerate((n for n in shared(expr) if n is not expr), 1)}
    lines = [f"{name} = {_definition(node, names)}" for node, name in names.items()]
    return "; ".join([_definition(expr, names), *lines]).replace("; ", " where ", 1)


def _definition(node: Expr, names: Mapping[Expr, str]) -> str:
    return _render(node, "show", {n: name for n, name in names.items() if n is not node}).text


def underline(root: Expr, node: Expr) -> str:
    """The text of root and, below it, carets under the first place where node stands.

    >>> from fusedreduce.ir.expr import call, var
    >>> print(underline(var("y") + call("exp", var("x")), var("x")))
    y + exp(x)
            ^
    """
    if _size(root) > _LONG:
        return show(node)
    text = _render(root, "show", {}, mark=node).text
    start = text.index("\x01")
    width = text.index("\x02") - start - 1
    return f"{_bare(text)}\n{' ' * start}{'^' * max(width, 1)}"


def _bare(text: str) -> str:
    return text.replace("\x01", "").replace("\x02", "")


def listing(lines: Iterable[tuple[str, Expr]]) -> str:
    """Named expressions, one a line, the equals signs in a column.

    >>> from fusedreduce.ir.expr import var
    >>> print(listing([("m", var("x")), ("new", var("x") + 1.0)]))
    m   = x
    new = x + 1.0
    """
    pairs = list(lines)
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name:<{width}} = {show(expr)}" for name, expr in pairs)
