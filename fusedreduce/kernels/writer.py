"""Lines of source with indentation, and shape comments at line ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WIDTH = 100


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
        self.lines += [full] if len(full) <= WIDTH else self.wrapped(text)

    def wrapped(self, text: str) -> list[str]:
        """A long call or tuple over several lines, as the formatter would break it."""
        return wrap(text, self.depth)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def wrap(text: str, depth: int) -> list[str]:
    """Break at the outermost bracket that makes the pieces fit; a line without one stays."""
    pad = "    " * depth
    if len(pad) + len(text) <= WIDTH:
        return [pad + text]
    found = outermost(text)
    if found is None:
        return [pad + text]
    start, end = found
    inside, tail = text[start + 1 : end], text[end:]
    head = [pad + text[: start + 1]]
    if len(pad) + 4 + len(inside) <= WIDTH:
        return [*head, f"{pad}    {inside}", pad + tail]
    body: list[str] = []
    for part in split_arguments(inside):
        body += wrap(part + ",", depth + 1)
    return [*head, *body, pad + tail]


def outermost(text: str) -> tuple[int, int] | None:
    """The last top-level bracket pair: where a formatter breaks first."""
    found = None
    depth = 0
    start = -1
    for k, c in enumerate(text):
        if c in "([{":
            if depth == 0:
                start = k
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0 and k > start + 1:
                found = (start, k)
    return found


def split_arguments(text: str) -> list[str]:
    """The pieces between top-level commas.

    >>> split_arguments("a, f(b, c), d")
    ['a', 'f(b, c)', 'd']
    """
    parts: list[str] = []
    depth = last = 0
    for k, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[last:k].strip())
            last = k + 1
    return [p for p in [*parts, text[last:].strip()] if p]
