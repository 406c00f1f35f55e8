# softmaxsum_d_s0 / pairs / backward of a table by distance / bfloat16, q and k 64 wide, v 64
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale + s0[h * s0_stride_0 + minimum(maximum(i - j, 0), 31) * s0_stride_1]
#   counts where i >= j
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   sum_d_s0 = sum over b, i - j of exp(score * scale + s0[h * s0_stride_0 + minimum(maximum(i ...
#   plan    diagonals of blocks outside, tiles of 64 queries x 64 keys, 4 warps, 3 stages

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["H", "Sq", "Sk", "parts", "summed"])
def softmaxsum_d_s0(
    full_counts_ptr,
    full_ids_ptr,
    q_desc,
    k_desc,
    d_out_desc,
    v_desc,
    saved_m_ptr,
    saved_s_ptr,
    shift_ptr,
    s0_ptr,
    partial_counts_ptr,
    partial_ids_ptr,
    sum_d_s0_ptr,
    scale,
    H,
    Sq,
    Sk,
    parts,
    summed,
    s0_stride_0,
    s0_stride_1,
    s0_size_1,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    rows = tl.cdiv(Sq, QUERIES)
    columns = tl.cdiv(Sk, KEYS)
    tiles = rows + columns - 1
    tile = tl.program_id(0) % tiles
    outer = tl.program_id(0) // tiles
    part = outer % parts
    apart = outer // parts
    h = apart
    ahead = tile - (columns - 1)
    first = tl.maximum(0, -ahead)
    sum_d_s0 = tl.full((QUERIES, KEYS), 0.0, tl.float32)  # (QUERIES, KEYS)
    listed = apart * tiles + tile
    visits = tl.minimum(rows, columns) * summed
    count = tl.load(full_counts_ptr + listed)
    each = tl.cdiv(count, parts)
    for n in range(part * each, tl.minimum(count, (part + 1) * each)):
        visit = tl.load(full_ids_ptr + listed * visits + n)
        column = first + visit // summed
        i0 = (column + ahead) * QUERIES
        j0 = column * KEYS
        i = i0 + tl.arange(0, QUERIES)  # (QUERIES,)
        j = j0 + tl.arange(0, KEYS)  # (KEYS,)
        b = visit % summed
        hk = h
        first_row = (b * H + h).to(tl.int64) * Sq
        q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
        k = k_desc.load([b, hk, j0, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        d_out = d_out_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
        v = v_desc.load([b, hk, j0, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        saved_m = tl.load(saved_m_ptr + first_row + i)  # (QUERIES,)
        saved_s = tl.load(saved_s_ptr + first_row + i)  # (QUERIES,)
        shift = tl.load(shift_ptr + first_row + i)  # (QUERIES,)
        s0_of_pair = tl.load(
            s0_ptr
            + h.to(tl.int64) * s0_stride_0
            + tl.minimum(
                tl.maximum(i[:, None] - j[None, :], 0, propagate_nan=tl.PropagateNan.ALL),
                31,
                propagate_nan=tl.PropagateNan.ALL,
            ).to(tl.int64)
            * s0_stride_1,
            mask=(i < Sq)[:, None]
            & (
                tl.minimum(
                    tl.maximum(i[:, None] - j[None, :], 0, propagate_nan=tl.PropagateNan.ALL),
                    31,
                    propagate_nan=tl.PropagateNan.ALL,
                )
                >= 0
            )
            & (
                tl.minimum(
                    tl.maximum(i[:, None] - j[None, :], 0, propagate_nan=tl.PropagateNan.ALL),
                    31,
                    propagate_nan=tl.PropagateNan.ALL,
                )
                < s0_size_1
            ),
            other=0.0,
        )
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        chosen = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m)  # (QUERIES,)
        _1_over_saved_s = 1.0 / saved_s  # (QUERIES,)
        d_s0 = tl.exp(score * scale + s0_of_pair - chosen[:, None]) * (
            _1_over_saved_s[:, None] * dp + shift[:, None]
        )
        sum_d_s0 += d_s0
    count = tl.load(partial_counts_ptr + listed)
    each = tl.cdiv(count, parts)
    for n in range(part * each, tl.minimum(count, (part + 1) * each)):
        visit = tl.load(partial_ids_ptr + listed * visits + n)
        column = first + visit // summed
        i0 = (column + ahead) * QUERIES
        j0 = column * KEYS
        i = i0 + tl.arange(0, QUERIES)  # (QUERIES,)
        j = j0 + tl.arange(0, KEYS)  # (KEYS,)
        b = visit % summed
        hk = h
        first_row = (b * H + h).to(tl.int64) * Sq
        q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
        k = k_desc.load([b, hk, j0, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        d_out = d_out_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
        v = v_desc.load([b, hk, j0, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        saved_m = tl.load(saved_m_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
        saved_s = tl.load(saved_s_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
        shift = tl.load(shift_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
        s0_of_pair = tl.load(
            s0_ptr
            + h.to(tl.int64) * s0_stride_0
            + tl.minimum(
                tl.maximum(i[:, None] - j[None, :], 0, propagate_nan=tl.PropagateNan.ALL),
                31,
                propagate_nan=tl.PropagateNan.ALL,
            ).to(tl.int64)
            * s0_stride_1,
            mask=(i < Sq)[:, None]
            & (j < Sk)[None, :]
            & (
                tl.minimum(
                    tl.maximum(i[:, None] - j[None, :], 0, propagate_nan=tl.PropagateNan.ALL),
                    31,
                    propagate_nan=tl.PropagateNan.ALL,
                )
                >= 0
            )
            & (
                tl.minimum(
                    tl.maximum(i[:, None] - j[None, :], 0, propagate_nan=tl.PropagateNan.ALL),
                    31,
                    propagate_nan=tl.PropagateNan.ALL,
                )
                < s0_size_1
            ),
            other=0.0,
        )
        inside = (j < Sk)[None, :] & (i < Sq)[:, None] & (i[:, None] >= j[None, :])
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        chosen = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m)  # (QUERIES,)
        _1_over_saved_s = 1.0 / saved_s  # (QUERIES,)
        d_s0 = tl.exp(score * scale + s0_of_pair - chosen[:, None]) * (
            _1_over_saved_s[:, None] * dp + shift[:, None]
        )
        sum_d_s0 += tl.where(inside, d_s0, 0.0)
    first_row = (outer.to(tl.int64) * tiles + tile) * QUERIES
    row = first_row + tl.arange(0, QUERIES)  # (QUERIES,)
    tl.store(sum_d_s0_ptr + row[:, None] * KEYS + tl.arange(0, KEYS)[None, :], sum_d_s0)
