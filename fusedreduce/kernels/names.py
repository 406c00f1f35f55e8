"""Names in a printed kernel: the user's where there are some, telling ones where there are none."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from fusedreduce.ir.expr import Expr
from fusedreduce.kernels.functions import FUNCTIONS

TAKEN = frozenset((
    "tl", "triton", "torch", "row", "column", "inside", "row_inside", "start", "first", "BLOCK",
    "ROWS", "M", "N", "j", "max_propagating", "min_propagating", "multiply", "float", "abs",
    "range", "main", "compare", "num_warps", "num_stages", "num_ctas", "maxnreg",
))  # fmt: skip
_PRINTED = re.compile(r"(row|column)_\d+|[RC]\d+|.*_ptr|.*_stride(_\d+)?")
_VERBS = {
    "add": "plus", "sub": "minus", "mul": "times", "div": "over", "maximum": "max",
    "minimum": "min", "pow": "power",
}  # fmt: skip
_NOUNS = {
    "add": "total", "sub": "difference", "mul": "product", "div": "ratio", "maximum": "larger",
    "minimum": "smaller", "where": "chosen", "neg": "negative", "cast": "rounded",
}  # fmt: skip
LONGEST = 28


def identifier(text: str) -> str:
    """text as a Python identifier.

    >>> identifier("r.mean"), identifier("lambda"), identifier("2x")
    ('r_mean', 'lambda_', '_2x')
    """
    name = re.sub(r"\W", "_", text) or "value"
    if name[0].isdigit():
        name = "_" + name
    return name + "_" if keyword.iskeyword(name) or keyword.issoftkeyword(name) else name


def is_reserved(name: str) -> bool:
    """Would an argument of this name be taken for something that the printer makes?

    >>> is_reserved("row"), is_reserved("x_ptr"), is_reserved("weight")
    (True, True, False)
    """
    return name in TAKEN or name in FUNCTIONS or _PRINTED.fullmatch(name) is not None


@lru_cache(maxsize=1024)
def safe_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names for arguments that a printed kernel can use, each its own where it can.

    >>> safe_names(("x", "row", "row_"))
    ('x', 'row__', 'row_')
    """
    made: dict[str, None] = {}
    for name in names:
        safe = name
        while is_reserved(safe) or (safe != name and (safe in names or safe in made)):
            safe += "_"
        made[safe] = None
    return tuple(made)


@dataclass
class Namer:
    """Hands out each name once; a taken one gets a number."""

    taken: set[str] = field(default_factory=lambda: set(TAKEN))

    def __post_init__(self) -> None:
        self.taken = set(self.taken)

    def claim(self, wish: str) -> str:
        name = base = identifier(wish)
        count = 2
        if _PRINTED.fullmatch(base):
            name = base = f"{base}_"
        while name in self.taken:
            name, count = f"{base}_{count}", count + 1
        self.taken.add(name)
        return name

    def claim_first(self, wishes: Iterable[str]) -> str:
        """The first wish that is free; else the last one with a number."""
        last = "value"
        for wish in wishes:
            last = wish
            if identifier(wish) not in self.taken:
                break
        return self.claim(last)


def describe(expr: Expr) -> str:
    """What an expression is, in words short enough for a name.

    >>> from fusedreduce.ir.expr import call, var
    >>> describe(call("exp", var("x") - var("r.m")))
    'exp_x_minus_m'
    """
    text = _words(expr)
    return identifier(text) if len(text) <= LONGEST else _NOUNS.get(expr.op, expr.op)


def _words(expr: Expr) -> str:
    if expr.op == "var":
        side, *name = re.split("[.:]", str(expr.value), maxsplit=1)
        return "_".join([side, *name]) if side in ("old", "new") else (name or [side])[0]
    if expr.op == "const":
        return re.sub(r"\W", "_", str(expr.value).rstrip("0").rstrip("."))
    if expr.op == "cast":
        return _words(expr.args[0])
    if len(expr.args) == 2:
        a, b = (_words(a) for a in expr.args)
        return f"{a}_{_VERBS.get(expr.op, expr.op)}_{b}"
    return "_".join([expr.op, *(_words(a) for a in expr.args)])
