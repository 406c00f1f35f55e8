"""scaled_dot_product_attention: softmax(scale * q k^T + mask) v, never storing the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from fusedreduce.api.attention import attention
from fusedreduce.errors import OptionError, ShapeError, message
from fusedreduce.ops.arguments import require_tensor, require_tensors

OP = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    impl: str | None = None,
) -> Tensor:
    """softmax(scale * query key^T + mask) value, as torch.nn.functional's of this name.

    query (..., Hq, L, E), key (..., H, S, E), value (..., H, S, Ev): three dimensions and more,
    batches broadcast; Hq is H, or a multiple of it with enable_gqa=True. `attn_mask` broadcasts to
    (..., Hq, L, S): a bool tensor (True takes part) or a float tensor that is added. `is_causal`
    aligns the first query with the first key. `dropout_p` of the weights are dropped, by a seed of
    torch's generator. Answers (..., Hq, L, Ev) in query's dtype; a query that sees nothing gets 0.
    Raises `ShapeError`, `DtypeError`, `DeviceError`, `OptionError` (a mask beside is_causal).

    >>> import torch, fusedreduce as fr
    >>> q, v = torch.zeros(1, 2, 4), torch.tensor([[[1.0], [3.0]]])
    >>> fr.ops.scaled_dot_product_attention(q, q, v, is_causal=True).flatten()
    tensor([1., 2.])
    """
    require_tensors(OP, query=query, key=key, value=value)
    given = {"query": query, "key": key, "value": value}
    for name, t in given.items():
        if t.dim() < 3:
            raise ShapeError(
                message(f"{OP}: `{name}` has {t.dim()} dimensions", came=f"{tuple(t.shape)}",
                        expected="(..., heads, length, width)", do=f"pass {name}[None]")
            )  # fmt: skip
    if attn_mask is not None:
        require_tensor(OP, "attn_mask", attn_mask, floating=False)
        if is_causal:
            raise OptionError(
                message(f"{OP}: a mask together with is_causal=True", do="fr.attention takes both",
                        expected="one of them, as torch has it")
            )  # fmt: skip
    batch, heads = _common(given, enable_gqa)
    q, k, v = (
        _four(t, batch, (heads or t.shape[-3], *t.shape[-2:]), name) for name, t in given.items()
    )
    if attn_mask is not None and attn_mask.dim() > 3:
        wide = any(n != 1 for n in attn_mask.shape[:-3])
        attn_mask = _four(attn_mask, batch if wide else (), attn_mask.shape[-3:], "attn_mask")
    out: Tensor = attention(
        q, k, v, mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        dropout_p=dropout_p, impl=impl,
    )  # fmt: skip
    return out.reshape(*batch, *out.shape[1:])


def _common(given: Mapping[str, Tensor], enable_gqa: bool) -> tuple[tuple[int, ...], int | None]:
    """The batch that all broadcast to, and the heads; None where these may differ."""
    end = -3 if enable_gqa else -2
    shapes = {n: tuple(t.shape[:end]) for n, t in given.items()}
    try:
        found = tuple(torch.broadcast_shapes(*shapes.values()))
    except RuntimeError:
        raise ShapeError(
            message(
                f"{OP}: batches or heads do not broadcast",
                expected="sizes that are equal, or 1, counted from the last dimension",
                came=", ".join(f"{n} {tuple(t.shape)}" for n, t in given.items()),
                do="" if enable_gqa else "where query has more heads, pass enable_gqa=True",
            )
        ) from None
    return (found, None) if enable_gqa else (found[:-1], found[-1])


def _four(t: Tensor, batch: Sequence[int], rest: Sequence[int], name: str) -> Tensor:
    """(batches in one dimension, *rest); no copy where there is one batch dimension."""
    try:
        wide = t.expand(*batch, *rest) if batch else t.reshape(1, *rest)
    except RuntimeError:
        raise ShapeError(
            message(f"{OP}: `{name}` does not broadcast", expected=f"{(*batch, *rest)}",
                    came=f"{tuple(t.shape)}")
        ) from None  # fmt: skip
    return wide.reshape(prod(batch), *rest)
