"""Lines of source with indentation, and shape comments at line ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

WIDTH = 100
_HEAD = re.compile(r"(?:return |[\w, ]+ [-+*/|&]?= )?")
#: Binary operators by how tightly they bind; in a printed text they stand between spaces.
_OPERATORS = (
    ("==", "!=", "<", "<=", ">", ">="), ("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"),
    ("*", "/", "//", "%"), ("**",),
)  # fmt: skip
_BINDS = {operator: k for k, row in enumerate(_OPERATORS) for operator in row}


@dataclass
class Writer:
    """Collects lines; `block()` indents what is written inside."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def line(self, text: str = "", shape: str = "") -> None:
        """One statement; the shape is left out where it would pass the line length."""
        full = "    " * self.depth + text if text else ""
        if shape and len(full) + len(shape) + 4 <= WIDTH:
            full = f"{full}  # {shape}"
        self.lines += [full] if len(full) <= WIDTH else wrap(text, self.depth)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def wrap(text: str, depth: int) -> list[str]:
    """A statement over several lines, broken where the formatter breaks it.

    Several operators of the weakest kind: in parentheses, on a line or an operand a line. Otherwise
    inside the last call whose first line fits.
    """
    pad = "    " * depth
    head = _HEAD.match(text)
    start = head.end() if head else 0
    operands = split_operators(text[start:])
    broken = None if len(operands) > 2 else inside_call(text, depth)
    if broken is not None:
        return broken
    if len(operands) == 1:
        return [pad + text]
    inside = f"{pad}    {text[start:]}"
    lines = [inside] if len(inside) <= WIDTH else operand_lines(operands, depth + 1)
    return [f"{pad}{text[:start]}(", *lines, f"{pad})"]


def argument(text: str, depth: int) -> list[str]:
    """A piece between brackets, over several lines if it is long."""
    pad = "    " * depth
    if len(pad) + len(text) <= WIDTH:
        return [pad + text]
    operands = split_operators(text)
    if len(operands) > 1:
        return operand_lines(operands, depth)
    return inside_call(text, depth) or [pad + text]


def operand_lines(operands: list[str], depth: int) -> list[str]:
    return [line for operand in operands for line in argument(operand, depth)]


def inside_call(text: str, depth: int) -> list[str] | None:
    """Break inside the last top-level parentheses before which the line fits."""
    pad = "    " * depth
    for start, end in reversed(brackets(text)):
        head, inside, tail = text[: start + 1], text[start + 1 : end], text[end:]
        if len(pad) + max(len(head), len(tail)) > WIDTH:
            continue
        if len(pad) + 4 + len(inside) <= WIDTH:
            return [pad + head, f"{pad}    {inside}", pad + tail]
        parts = split_arguments(inside)
        comma = "," if len(parts) > 1 or text[start - 1].isidentifier() else ""
        body = [line for p in parts for line in argument(p + comma, depth + 1)]
        return [pad + head, *body, pad + tail]
    return None


def levels(text: str) -> list[int]:
    """How many brackets are open at each character; a bracket counts as inside its own."""
    depth, answer = 0, []
    for c in text:
        depth += c in "([{"
        answer.append(depth)
        depth -= c in ")]}"
    return answer


def brackets(text: str) -> list[tuple[int, int]]:
    """The top-level parentheses that are not empty: where each opens and closes."""
    level = levels(text)
    opens = [k for k, c in enumerate(text) if c == "(" and level[k] == 1]
    closes = [k for k, c in enumerate(text) if c == ")" and level[k] == 1]
    return [(a, b) for a, b in zip(opens, closes, strict=True) if b > a + 1]


def split_arguments(text: str) -> list[str]:
    """The pieces between top-level commas.

    >>> split_arguments("a, f(b, c), d")
    ['a', 'f(b, c)', 'd']
    """
    level = levels(text)
    cuts = [k for k, c in enumerate(text) if c == "," and level[k] == 0]
    pieces = [text[a + 1 : b].strip() for a, b in zip([-1, *cuts], [*cuts, len(text)], strict=True)]
    return [p for p in pieces if p]


def split_operators(text: str) -> list[str]:
    """The operands of the weakest top-level operator, each but the first after its operator.

    >>> split_operators("a + f(b + c) * d - e")
    ['a', '+ f(b + c) * d', '- e']
    """
    level = levels(text)
    found = [m for m in re.finditer(r"(?<= )\S+(?= )", text) if level[m.start()] == 0]
    found = [m for m in found if m[0] in _BINDS and m.start() > 1]
    if not found:
        return [text]
    weakest = min(_BINDS[m[0]] for m in found)
    cuts = [0, *(m.start() for m in found if _BINDS[m[0]] == weakest), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts)]
