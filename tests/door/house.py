"""Reads the package as text: its modules, their imports, docstrings and sizes. Imports nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fusedreduce"


@dataclass(frozen=True)
class Import:
    """One imported name: `ir.ops.Op` if inside the package, `torch.fx` if outside."""

    target: str
    inside: bool
    late: bool
    line: int


@dataclass(frozen=True)
class Module:
    """A source file; `name` is dotted and leaves the package out: `ir.ops`, `ir`, `__init__`."""

    path: Path

    @property
    def name(self) -> str:
        parts = self.path.relative_to(PACKAGE).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)

    @property
    def import_name(self) -> str:
        return f"{PACKAGE.name}.{self.name}".removesuffix(".__init__")

    @property
    def file(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.file)

    @property
    def first_line(self) -> str:
        return (ast.get_docstring(self.tree) or "").partition("\n")[0].strip()

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def imports(self) -> Iterator[Import]:
        late = {id(node) for function in self.functions() for node in ast.walk(function)}
        for node in ast.walk(self.tree):
            for target, inside in self.targets(node):
                yield Import(target, inside, id(node) in late, node.lineno)

    def targets(self, node: ast.AST) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            yield from (located(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (located(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = (PACKAGE.name, *self.path.relative_to(PACKAGE).parent.parts)
            base = here[: len(here) - node.level + 1] + ((node.module,) if node.module else ())
            yield from (located(".".join((*base, alias.name))) for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            names = (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))
            yield from (located(name) for name in names)


def located(dotted: str) -> tuple[str, bool]:
    package, _, rest = dotted.partition(".")
    return (rest or "__init__", True) if package == PACKAGE.name else (dotted, False)


def called(node: ast.Call) -> str:
    function = node.func
    return getattr(function, "attr", None) or getattr(function, "id", "")


def modules() -> list[Module]:
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
