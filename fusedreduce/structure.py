"""What a fused function takes and returns: numbers settled, tensors taken out and put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusedreduce.chain import TracedTensor
from fusedreduce.errors import NotFusible, message
from fusedreduce.trace import Names


@dataclass(frozen=True)
class Leaf:
    """The place of one output in what the function returns."""

    index: int


def flatten(
    value: Any, outputs: dict[str, TracedTensor], taken: set[str], names: Names, wish: str
) -> Any:
    """Collect the tensors of a result under names of their own; answer its structure."""
    if isinstance(value, TracedTensor):
        require_tensor(value)
        local = next((n for n, v in names.locals.items() if v is value and n not in taken), wish)
        name, count = local, 2
        while name in outputs or name in taken:
            name, count = f"{local}_{count}", count + 1
        outputs[name] = value
        return Leaf(len(outputs) - 1)
    if isinstance(value, dict):
        return {k: flatten(v, outputs, taken, names, str(k) or wish) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return alike(value, [flatten(v, outputs, taken, names, wish) for v in value])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotFusible(
        message(
            "a fused function returns something else",
            expected="tensors computed from its arguments, None and Python numbers, in dicts, "
            "tuples and lists",
            came=f"a {type(value).__name__}",
            do="return it from a function around the fused one",
        )
    )


def require_tensor(value: TracedTensor) -> None:
    if not isinstance(value.meta, torch.Tensor):
        raise NotFusible(
            message(
                "a fused function returns a number computed from float arguments",
                expected="tensors computed from its arguments",
                came=f"{value.expr!r}",
                do="compute it outside",
            )
        )


def rebuild(structure: Any, tensors: list[torch.Tensor]) -> Any:
    """The result of the user's function, with tensors in the places of leaves."""
    if isinstance(structure, Leaf):
        return tensors[structure.index]
    if isinstance(structure, dict):
        return {k: rebuild(v, tensors) for k, v in structure.items()}
    if isinstance(structure, (tuple, list)):
        return alike(structure, [rebuild(v, tensors) for v in structure])
    return structure


def alike(value: Any, items: list[Any]) -> Any:
    """The items in a list, a tuple or a named tuple, as `value` is one."""
    make = getattr(type(value), "_make", type(value))
    return make(items)


def leaves(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, in the order of `flatten`."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, (tuple, list)):
        return [t for v in result for t in leaves(v)]
    return []


def plain(value: Any) -> Any:
    """A number that torch knows by a symbol while it compiles: its value is settled here."""
    if isinstance(value, (tuple, list)):
        return alike(value, [plain(v) for v in value])
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    table = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return table[type(value)](value) if type(value) in table else value
