"""Expressions: immutable, interned nodes, so that equal expressions are the same object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias
from weakref import WeakValueDictionary

Number: TypeAlias = "bool | int | float"
Value: TypeAlias = "bool | int | float | str | None"


class Expr:
    """op(args); `value` is the number of a `const`, the name of a `var`, the dtype of a `cast`.

    Nodes are interned: `==` is identity, hashing is free, and a shared subexpression is shared in
    memory. Python's arithmetic operators build nodes; comparisons do not (use `call("lt", a, b)`).
    Names of variables may have one dot: `old.m`, `new.m`, `a.n`, `b.n`, `r.mean`.
    """

    __slots__ = ("__weakref__", "args", "op", "value")
    op: str
    args: tuple[Expr, ...]
    value: Value

    def __init__(self, op: str, args: tuple[Expr, ...], value: Value) -> None:
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "value", value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an expression is immutable; cannot set {name}")

    def __reduce__(self) -> tuple[object, ...]:
        return make, (self.op, self.args, self.value)

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    def __repr__(self) -> str:
        inner = [repr(a) for a in self.args]
        if self.value is not None:
            inner.insert(0, repr(self.value))
        return f"{self.op}({', '.join(inner)})"

    def __add__(self, other: Expr | Number) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return call("div", other, self)

    def __pow__(self, other: Expr | Number) -> Expr:
        return call("pow", self, other)

    def __neg__(self) -> Expr:
        return call("neg", self)


_interned: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()


def make(op: str, args: tuple[Expr, ...] = (), value: Value = None) -> Expr:
    """The node op(args), one object for equal arguments; True, 1 and 1.0 are three constants."""
    key = (op, args, type(value), repr(value) if isinstance(value, float) else value)
    node = _interned.get(key)
    if node is None:
        node = Expr(op, args, value)
        _interned[key] = node
    return node


def const(value: Number) -> Expr:
    return make("const", (), value)


def var(name: str) -> Expr:
    return make("var", (), name)


def as_expr(value: Expr | Number) -> Expr:
    return value if isinstance(value, Expr) else const(value)


def call(op: str, *args: Expr | Number) -> Expr:
    """op(args), as written: nothing is folded or reordered."""
    return make(op, tuple(as_expr(a) for a in args))


def cast(x: Expr | Number, dtype: str) -> Expr:
    """x in `dtype`, a torch dtype's name ("bfloat16") or a kind ("float", "int", "bool")."""
    return make("cast", (as_expr(x),), dtype)


def where(condition: Expr, yes: Expr | Number, no: Expr | Number) -> Expr:
    return call("where", condition, yes, no)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct node once, arguments before the nodes that use them."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args) if a not in seen)


def names(*roots: Expr) -> tuple[str, ...]:
    """The names of the variables, in order of first appearance."""
    return tuple(str(n.value) for n in walk(*roots) if n.op == "var")


def rewrite(root: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up; `rule` sees each node with its new arguments and may replace it."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        new = make(node.op, tuple(done[a] for a in node.args), node.value)
        done[node] = rule(new) or new
    return done[root]


def substitute(root: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace variables by expressions, all at once."""
    return rewrite(root, lambda n: values.get(str(n.value)) if n.op == "var" else None)


def rename(root: Expr, names: Mapping[str, str]) -> Expr:
    return substitute(root, {old: var(new) for old, new in names.items()})


def is_const(node: Expr, value: Number | None = None) -> bool:
    """A constant, of this value if one is given; 0 and 0.0 count as the same, booleans do not."""
    if node.op != "const":
        return False
    if value is None:
        return True
    return isinstance(node.value, bool) == isinstance(value, bool) and node.value == value
