"""The torch names that the language understands, and what to say about the others."""

from __future__ import annotations

import difflib

from fusedreduce.errors import DeclarationError
from fusedreduce.trace.place import refuse

KNOWN: set[str] = set()  # filled by `functions`
ALIASES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "negative": "neg",
    "absolute": "abs", "sgn": "sign", "fix": "trunc", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "clip": "clamp", "expit": "sigmoid", "greater": "gt", "less": "lt",
    "greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "float_power": "pow",
    "swish": "silu", "log_sigmoid": "logsigmoid",
}  # fmt: skip
_REDUCTIONS = frozenset((
    "sum", "mean", "var", "std", "prod", "amax", "amin", "argmax", "argmin", "logsumexp", "softmax",
    "log_softmax", "cumsum", "norm", "any", "all",
))  # fmt: skip


def known_names() -> tuple[str, ...]:
    """Every torch name the language understands, sorted."""
    return tuple(sorted({*KNOWN, *ALIASES}))


def unknown_operation(name: str) -> DeclarationError:
    near = difflib.get_close_matches(name, known_names(), n=3)
    if name in _REDUCTIONS:
        do = "declare a field (fr.Sum, fr.Max, ...): a term is written for one element"
    elif name.endswith("_") and name.rstrip("_") in KNOWN:
        do = f"in-place operations cannot be traced: write {name.rstrip('_')}"
    else:
        do = (
            f"near ones: {', '.join(near)}" if near else "compose it from the language's operations"
        )
    return refuse(f"the language has no operation `{name}`", came=f"{name}(...)", do=do)
