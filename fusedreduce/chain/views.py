"""Views: they move axes, never numbers."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch

from fusedreduce.chain.axes import Atom
from fusedreduce.chain.tensor import VIEWS, TracedTensor, normalized_dims
from fusedreduce.errors import NotFusible, ShapeError, message
from fusedreduce.trace import user_line


def _sizes(args: tuple[Any, ...]) -> list[int]:
    if len(args) == 1 and isinstance(args[0], (tuple, list, torch.Size)):
        args = tuple(args[0])
    return [operator.index(a) for a in args]


def _reshape(x: TracedTensor, *shape: Any) -> TracedTensor:
    sizes = _sizes(shape)
    if -1 in sizes:
        known = prod(s for s in sizes if s != -1)
        sizes[sizes.index(-1)] = x.numel() // max(known, 1)
    flat = tuple(a for d in x.dims for a in x.chain.axes.leaves(d))
    return x.reshaped(x.chain.axes.regroup(flat, sizes))


def _transpose(x: TracedTensor, a: int, b: int) -> TracedTensor:
    dims = list(x.dims) or [()]  # torch lets a scalar be transposed along dimension 0
    dims[a], dims[b] = dims[b], dims[a]
    return x.reshaped(tuple(dims[: len(x.dims)]))


def _reversed(x: TracedTensor) -> TracedTensor:
    """x.T, and torch.t of one or two dimensions."""
    return x.reshaped(tuple(reversed(x.dims)))


def _permute(x: TracedTensor, *order: Any) -> TracedTensor:
    return x.reshaped(tuple(x.dims[k] for k in _sizes(order)))


def _unsqueeze(x: TracedTensor, dim: int) -> TracedTensor:
    at = dim % (len(x.dims) + 1)
    return x.reshaped((*x.dims[:at], (), *x.dims[at:]))


def _squeeze(x: TracedTensor, dim: Any = None) -> TracedTensor:
    chosen = normalized_dims(dim, len(x.dims))
    sizes = x.meta.shape
    return x.reshaped(tuple(d for k, d in enumerate(x.dims) if not (k in chosen and sizes[k] == 1)))


def _flatten(x: TracedTensor, start_dim: int = 0, end_dim: int = -1) -> TracedTensor:
    return _reshape(x, *x.meta.flatten(start_dim, end_dim).shape)


def _unflatten(x: TracedTensor, dim: int, sizes: Any) -> TracedTensor:
    return _reshape(x, *x.meta.unflatten(dim, tuple(sizes)).shape)


def _expand(x: TracedTensor, *sizes: Any) -> TracedTensor:
    shape = x.meta.expand(_sizes(sizes)).shape
    dims: list[tuple[Atom, ...]] = [() for _ in range(len(shape) - len(x.dims))] + list(x.dims)
    for k, (d, n) in enumerate(zip(dims, shape, strict=True)):
        if n != 1 and prod(a.size for a in x.chain.axes.leaves(d)) == 1:
            dims[k] = (Atom(n),)
    return x.reshaped(x.chain.axes.register(tuple(dims)))


def _index(x: TracedTensor, key: Any) -> TracedTensor:
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if k is Ellipsis]:
        at = next(n for n, k in enumerate(keys) if k is Ellipsis)
        used = sum(1 for k in keys if k is not None and k is not Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(x.dims) - used)
    if sum(1 for k in keys if k is not None) > len(x.dims):
        raise ShapeError(message("too many indices", expected=f"{len(x.dims)}", where=user_line()))
    dims: list[tuple[Atom, ...]] = []
    source = iter(x.dims)
    for k in keys:
        if k is None:
            dims.append(())
        elif isinstance(k, slice) and k == slice(None):
            dims.append(next(source))
        else:
            raise NotFusible(
                message(
                    "indexing inside a fused function",
                    expected="None, `:` and `...`, which only add dimensions",
                    came=repr(k),
                    where=user_line(),
                    do="index before the call and pass the result as an argument",
                )
            )
    return x.reshaped((*dims, *source))


VIEWS.update(
    {
        "reshape": _reshape,
        "view": _reshape,
        "transpose": _transpose,
        "swapaxes": _transpose,
        "t": _reversed,
        "T": _reversed,
        "mT": lambda x: _transpose(x, -2, -1),
        "permute": lambda x, *order: _permute(x, *order),
        "unsqueeze": _unsqueeze,
        "squeeze": _squeeze,
        "flatten": _flatten,
        "unflatten": _unflatten,
        "expand": _expand,
        "expand_as": lambda x, other: _expand(x, *other.meta.shape),
        "view_as": lambda x, other: _reshape(x, *other.meta.shape),
        "reshape_as": lambda x, other: _reshape(x, *other.meta.shape),
        "index": _index,
    }
)
