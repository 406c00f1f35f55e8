"""attention: softmax attention and its kin, from a declaration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fusedreduce.api import recent
from fusedreduce.api.dropout import dropout_of
from fusedreduce.api.pair_arguments import (
    check_deterministic,
    offset,
    portable,
    queries_keys,
    seen,
    shifted,
    shifts,
)
from fusedreduce.api.pairwise import PairCall
from fusedreduce.api.sinks import checked
from fusedreduce.declare.reduction import Reduction, require_reduction
from fusedreduce.errors import OperandError, OptionError, ShapeError, message
from fusedreduce.masks import causal
from fusedreduce.masks import mask as mask_of
from fusedreduce.masks import score as score_of
from fusedreduce.reductions import SoftmaxSum, SoftmaxSumEntropy
from fusedreduce.run import opaque
from fusedreduce.trace.compiled import outside_graphs


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Any = None,
    score_mod: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    rng_seed: int | Tensor | None = None,
    sinks: Tensor | None = None,
    aux: Sequence[str] = (),
    reduction: type[Reduction] = SoftmaxSum,
    deterministic: bool | None = None,
    q_offset: int = 0,
    k_offset: int = 0,
    impl: str | None = None,
) -> Any:
    """out_i = sum_j p_ij v_j,  p_i = softmax over j of score_mod(scale * q_i . k_j): nothing S x S.

    q         (B, H, Sq, D), widths of 1 to 512; float16, bfloat16, float32 or float64
    k, v      (B, Hk, Sk, D), (B, Hk, Sk, DV): Hk is H, or with enable_gqa=True a divisor of it
    mask      who sees whom: of `fr.masks`, a function (b, h, i, j), a bool tensor or a BlockMask;
              a float tensor is added to the scores. Tensors broadcast to (B, H, Sq, Sk)
    score_mod a function (score, b, h, i, j) of the scaled score
    is_causal i >= j, counted from the first query and key; together with `mask` both hold
    scale     of the scores; 1 / sqrt(D)
    dropout_p p_ij is 0 with this probability, else p_ij / (1 - dropout_p): after the softmax, so
              that lse and other results do not change
    rng_seed  of dropout: an integer of 64 bits, or a tensor of one on q's device; None: one from
              torch's generator of q's device. A seed drops the same pairs in every implementation
    sinks     (H,) logits, one a head: a key more that every query sees and whose v is 0
    aux       more results: "lse", "max_logit", "entropy", or any output of `reduction`; then
              (out, dict) is returned. They are (B, H, Sq) in the state's dtype, and differentiable
    reduction a declaration with a payload and an output "out"
    q_offset, k_offset   the positions of the first query and key in the whole sequence, of which
              masks and scores speak; a tensor is of the pairs of this call
    deterministic, impl  as in `fr.pairwise`

    Answers out (B, H, Sq, DV) in q's dtype; scores and softmax are computed in the state's. A query
    that sees nothing gets 0, its lse is -inf, its gradients are 0. Under autocast q, k and v are
    cast as torch casts those of scaled_dot_product_attention. Raises `ShapeError`, `DtypeError`,
    `DeviceError`, `OptionError`, `OperandError` before any launch.

    Source: Dao et al. 2022, FlashAttention; Milakov and Gimelshein 2018 for the softmax.

    >>> import torch, fusedreduce as fr
    >>> q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)
    >>> v = torch.tensor([[[[1.0], [3.0]]]])
    >>> fr.attention(q, k, v).flatten()
    tensor([2., 2.])
    >>> out, more = fr.attention(q, k, v, mask=fr.masks.causal, aux=("lse",))
    >>> out.flatten(), more["lse"]
    (tensor([1., 2.]), tensor([[[0.0000, 0.6931]]]))
    """
    others: tuple[Tensor, ...] = ()
    compiling, key = torch.compiler.is_compiling(), None
    if not compiling:
        names = aux if isinstance(aux, tuple) else (aux,)
        options = (is_causal, scale, enable_gqa, dropout_p, rng_seed, sinks is None, deterministic,
                   q_offset, k_offset, impl, sign_of(scale), *names)  # fmt: skip
        found, key, others = recent.answered(reduction, q, k, v, mask, score_mod, sinks, options)
        if found is not None:
            return (found["out"], {n: found[n] for n in names}) if names else found["out"]
        mask, key = recent.traced(mask, mask_of, key)
        score_mod, key = recent.traced(score_mod, score_of, key)
    given = dict(
        mask=mask, score_mod=score_mod, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        dropout_p=dropout_p, rng_seed=rng_seed, sinks=sinks, aux=aux, deterministic=deterministic,
        q_offset=q_offset, k_offset=k_offset, impl=impl,
    )  # fmt: skip
    if compiling:
        given |= {"score_mod": portable(score_mod), "mask": portable(mask)}
        return opaque.call(_attention, opaque.named(reduction), (q, k, v), given)
    return _attention(reduction, q, k, v, key, others, **given)


@outside_graphs
def _attention(
    R: type[Reduction], q: Any, k: Any, v: Any, key: Any = None, others: Sequence[Tensor] = (), /,
    *, mask: Any, score_mod: Any, is_causal: bool, scale: Any, enable_gqa: bool, dropout_p: float,
    rng_seed: Any, sinks: Any, aux: Any, deterministic: bool | None, q_offset: Any, k_offset: Any,
    impl: str | None,
) -> Any:  # fmt: skip
    """A call that was not met before; it is remembered by its key.

    others   the tensors of mask and score, and sinks
    """
    check_deterministic("attention", deterministic)
    wanted = names_of(aux)
    chosen: Any = require_reduction(R, "attention: `reduction`")
    R = declared(chosen, wanted)
    if not isinstance(v, Tensor):
        raise OperandError(message("attention: `v` is not a tensor", came=type(v).__name__))
    q, k, v = queries_keys("attention", q, k, v)
    heads_fit(q, k, enable_gqa)
    q_offset = offset("attention", "q_offset", q_offset)
    k_offset = offset("attention", "k_offset", k_offset)
    by = shifts(q_offset, k_offset)
    mask, score = seen(mask, score_mod, q, k, by)
    if is_causal:
        below = shifted(causal, by)
        mask = below if mask is None else mask & below
    dropout = dropout_of(dropout_p, rng_seed, q, by)
    call = PairCall(
        R, q, k, v, scale_of(scale, q), score, mask, tuple(dict.fromkeys(("out", *wanted))), {},
        q_offset, k_offset, impl, False, dropout, checked(sinks, q, R.record),
    )  # fmt: skip
    runner, values = call.prepared("")
    found = runner(values, impl)
    if dropout is None:  # another call draws another seed
        recent.remember(key, runner, values, impl, others)
    return (found["out"], {n: found[n] for n in wanted}) if wanted else found["out"]


# ---- arguments ---------------------------------------------------------------------------------


def names_of(aux: Any) -> tuple[str, ...]:
    """`aux=` as names; a name alone is one of them."""
    if aux == ():
        return ()
    found = (aux,) if isinstance(aux, str) else tuple(aux) if isinstance(aux, Iterable) else (aux,)
    if not all(isinstance(n, str) for n in found):
        raise OptionError(
            message("attention: aux= are no names of outputs", came=repr(aux)[:80],
                    expected='names such as ("lse",)')
        )  # fmt: skip
    return found


@lru_cache(maxsize=256)
def declared(R: type[Reduction], aux: tuple[str, ...]) -> type[Reduction]:
    """The declaration that has these outputs; SoftmaxSum is extended by statistics."""
    if R is SoftmaxSum and not set(aux) <= set(R.record.outputs):
        R = SoftmaxSumEntropy
    known = R.record.outputs
    if "out" not in known or len(R.record.payloads) != 1 or len(R.record.operands) != 1:
        raise OptionError(
            message(
                f"attention: {R.__name__} is no reduction of scores and one payload",
                expected="an output `out`, one payload v = fr.Payload(), one operand, the score",
                came=f"outputs {', '.join(map(repr, known))}; payloads {R.record.payloads}; "
                f"operands {R.record.operands}",
                do="call fr.pairwise, which takes any declaration",
            )
        )
    for n in aux:
        if n not in known:
            raise OptionError(
                message(f"attention: aux={n!r} is no output of {R.__name__}",
                        expected=", ".join(map(repr, known)))
            )  # fmt: skip
    return R


def heads_fit(q: Tensor, k: Tensor, enable_gqa: bool) -> None:
    if not enable_gqa and q.shape[1] != k.shape[1]:
        raise ShapeError(
            message(
                "attention: q and k have different numbers of heads",
                expected="the same, or enable_gqa=True where k's divide q's",
                came=f"q {tuple(q.shape)}, k {tuple(k.shape)}",
                do="pass enable_gqa=True",
            )
        )


def sign_of(scale: Any) -> float | None:
    """By which 0.0 and -0.0, which are equal, differ."""
    return math.copysign(1.0, scale) if type(scale) is float else None


def scale_of(scale: Any, q: Tensor) -> float:
    if scale is None:
        return 1.0 / math.sqrt(q.shape[3])
    try:
        if isinstance(scale, (Tensor, str)):
            raise TypeError
        return float(scale)
    except (TypeError, ValueError):
        raise OptionError(
            message(
                "attention: scale is not a number",
                expected="a number, or None for 1 / sqrt(D)",
                came=type(scale).__name__,
                do="a learned scale is a score: fr.score(lambda s, b, h, i, j: s * scale), scale=1",
            )
        ) from None
