"""A mask or score for known lengths: its expression, its tables, its value on indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.blocks.language import load, torch_dialect
from fusedreduce.errors import DeviceError, DtypeError, ShapeError, message
from fusedreduce.ir import tables as ir_tables
from fusedreduce.ir.check import promote
from fusedreduce.ir.evaluate import Dialect
from fusedreduce.ir.expr import Expr, names
from fusedreduce.ir.interval import bounds, integers
from fusedreduce.ir.show import show
from fusedreduce.trace import dtype_kind

_POSITIONS = ("b", "h", "i", "j")


@dataclass(frozen=True, eq=False)
class Bound:
    """An expression over b, h, i, j (and `score`), Sq, Sk and tables; the tables as tensors.

    numbers   values of the run-time integers the expression may name besides: Sq, Sk, and q_offset,
              k_offset where the mask was shifted by their names
    state     what floats are computed in
    """

    expr: Expr
    tables: Mapping[str, Tensor]
    device: torch.device
    numbers: Mapping[str, int] = field(default_factory=dict)
    state: torch.dtype = torch.float32

    @property
    def measures(self) -> dict[str, int]:
        """The strides and sizes of tables that the expression names, as numbers."""
        shapes = {n: (tuple(t.shape), t.stride()) for n, t in self.tables.items()}
        return ir_tables.measures(self.expr, shapes)

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of all names but `score`: what `ir.check` wants to know."""
        whole = dict.fromkeys((*_POSITIONS, *self.numbers, *self.measures), "int")
        return whole | {name: dtype_kind(t.dtype) for name, t in self.tables.items()}

    def renamed(self, prefix: str) -> Bound:
        """The same with its tables called prefix0, prefix1, ... in the order they have."""
        tables = {f"{prefix}{k}": table for k, table in enumerate(self.tables.values())}
        expr = _renamed(self.expr, tuple(self.tables), prefix)
        return Bound(expr, tables, self.device, self.numbers, self.state)

    def evaluate(self, b: Any, h: Any, i: Any, j: Any, score: Any = None) -> Tensor:
        """The value at index tensors of any shapes that broadcast."""
        values = {"b": b, "h": h, "i": i, "j": j, **self.numbers, **self.tables}
        if score is not None:
            values["score"] = score
        shapes = [x.shape for x in (b, h, i, j, score) if isinstance(x, Tensor)]
        expr = promote(self.expr, self.kinds | {"score": "float"})
        found = value(expr, values, self.device, self.state)
        return found.expand(_joined(shapes))


@lru_cache(maxsize=1024)
def _renamed(expr: Expr, tables: tuple[str, ...], prefix: str) -> Expr:
    new = {name: f"{prefix}{k}" for k, name in enumerate(tables)}
    return ir_tables.renamed(expr, new.__getitem__)


def _joined(shapes: Sequence[torch.Size]) -> torch.Size:
    joined: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return joined


def placed(table: Tensor, device: torch.device, what: str) -> Tensor:
    """The table on the device of the call; only a 0-d one is moved."""
    if table.device == device or device.type == "meta":
        return table
    if table.ndim == 0:
        return table.to(device)
    raise DeviceError(
        message(
            f"a tensor of a {what} lies on another device than the call",
            expected=f"{device}",
            came=f"a tensor of shape {tuple(table.shape)} on {table.device}",
            do=f"move it before the {what} is made: tensor.to({str(device)!r})",
        )
    )


def widest(values: Sequence[Any]) -> torch.dtype:
    """What floats are computed in beside these: float64 where one of them is, else float32."""
    double = any(isinstance(v, Tensor) and v.dtype == torch.float64 for v in values)
    return torch.float64 if double else torch.float32


def device_of(values: Sequence[Any]) -> torch.device:
    """Where the first tensor with dimensions lies; else the first tensor; else the CPU."""
    found = [v for v in values if isinstance(v, Tensor)]
    found.sort(key=lambda t: t.ndim == 0)
    return found[0].device if found else torch.device("cpu")


def check_sizes(bound: Bound, ranges: Mapping[str, int]) -> None:
    """Positions that tables are indexed with directly exist; `ranges` has a length for each."""
    shapes = tuple([(n, t.shape) for n, t in bound.tables.items()])
    _sizes_fit(bound.expr, shapes, tuple(bound.numbers.items()), tuple(ranges.items()))


@lru_cache(maxsize=1024)
def _sizes_fit(
    expr: Expr, shapes: tuple[tuple[str, torch.Size], ...], numbers: tuple[tuple[str, int], ...],
    ranges: tuple[tuple[str, int], ...],
) -> None:  # fmt: skip
    sizes = dict(shapes)
    env = {name: integers(0, max(n - 1, 0)) for name, n in ranges}
    env |= {name: integers(n, n) for name, n in numbers}
    for read in ir_tables.reads(expr):
        name, indices = ir_tables.split(read)
        for dim, index in indices.items():
            found = names(index)
            if found and _exact(index) and set(found) <= set(env):
                highest = bounds(index, env).hi
                if highest >= sizes[name][dim]:
                    raise _too_short(sizes[name], dim, index, int(highest))


def _exact(index: Expr) -> bool:
    """One index moved by numbers: its interval is taken on to the end."""
    if index.op == "var":
        return True
    first, *rest = index.args or (index,)
    moved = index.op in ("add", "floordiv") and all(e.op in ("const", "var") for e in rest)
    return moved and not set(names(*rest)) & set(_POSITIONS) and _exact(first)


def _too_short(shape: torch.Size, dim: int, index: Expr, highest: int) -> ShapeError:
    return ShapeError(
        message(
            "a tensor of a mask or score is too short for this call",
            expected=f"dimension {dim}, indexed by {show(index)}, to reach {highest}",
            came=f"a tensor of shape {tuple(shape)}",
            do="give one entry for each query, key, head or batch it is indexed with",
        )
    )


def require_state(what: str, bound: Bound) -> None:
    """NOTE: torch compares and subtracts float64 tensors in float64, whatever the score is in."""
    wide = [t for t in bound.tables.values() if t.dtype == torch.float64]
    if wide and bound.state != torch.float64:
        raise DtypeError(
            message(
                f"a tensor of a {what} is float64, and the call computes in float32",
                expected="float32, bfloat16 or float16; or q, k and v in float64",
                came=f"a tensor of shape {tuple(wide[0].shape)}, float64",
                do=f"convert it before the {what} is made: t.float(), or (t - t.min()).float()",
            )
        )


def value(
    expr: Expr, values: Mapping[str, Any], device: torch.device, state: torch.dtype = torch.float32
) -> Tensor:
    """The value of an expression, as kernels compute it; tables are indexed as torch does it."""
    found: Tensor = _computed(expr, values, torch_dialect(state, device), state, {})
    return found


def _computed(
    node: Expr, values: Mapping[str, Any], language: Dialect, state: torch.dtype,
    done: dict[Expr, Any],
) -> Any:  # fmt: skip
    """The value of a node, once. NOTE: a function that holds itself would hold tensors with it."""
    if node in done:
        return done[node]

    def at(inner: Expr) -> Any:
        return _computed(inner, values, language, state, done)

    if node.op == "read":
        name, indices = ir_tables.split(node)
        table: Tensor = values[name]
        where = [at(indices[d]) if d in indices else 0 for d in range(table.ndim)]
        found = load(table[tuple(map(_inside, where, table.shape))] if where else table, state)
    elif node.op == "var":
        known = _measure(str(node.value), values)
        found = load(known, state) if isinstance(known, Tensor) else language.const(known)
    elif node.op == "const":
        found = language.const(node.value)
    else:
        args = [at(a) for a in node.args]
        found = language.cast(args[0], node.value) if node.op == "cast" else (
            language.ops[node.op](*args))  # fmt: skip
    done[node] = found
    return found


def _inside(index: Any, size: int) -> Any:
    """The index; on a GPU clamped, where one out of bounds would end the process' use of it."""
    on_cpu = isinstance(index, int) or index.device.type == "cpu"
    return index if on_cpu else index.clamp(-size, size - 1)


def _measure(name: str, values: Mapping[str, Any]) -> Any:
    """A variable, or the size of a table."""
    if name in values:
        return values[name]
    table, what, dim = name.rsplit("_", 2)
    assert what == "size", f"no value for {name}"
    return values[table].shape[int(dim)]
