# softmaxsum_queries / pairs / backward of q / bfloat16, q and k 64 wide, v 64
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale + s0[h * s0_stride_0] * (j - i)
#   counts where i >= j
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   d score = scale * exp(score * scale + s0[h * s0_stride_0] * (j - i) - where(abs(saved_m) = ...
#   sum_d_s0 = sum over j of exp(score * scale + s0[h * s0_stride_0] * (j - i) - where(abs(sav ...
#   plan    query blocks outside, tiles of 64 queries x 64 keys, 4 warps, 3 stages

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["H", "Sq", "Sk", "together"])
def softmaxsum_queries(
    q_desc,
    d_out_desc,
    saved_m_ptr,
    saved_s_ptr,
    shift_ptr,
    s0_ptr,
    k_desc,
    v_desc,
    dq_ptr,
    sum_d_s0_ptr,
    scale,
    H,
    Sq,
    Sk,
    together,
    s0_stride_0,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    blocks = tl.cdiv(Sq, QUERIES)
    place = tl.program_id(0) % (blocks * together)
    block = blocks - 1 - place // together
    first_bh = tl.program_id(0) // (blocks * together) * together
    bh = first_bh + place % together
    b = bh // H
    h = bh % H
    hk = h
    i0 = block * QUERIES
    i1 = tl.minimum(i0 + QUERIES, Sq)
    i = i0 + tl.arange(0, QUERIES)  # (QUERIES,)
    first_row = bh.to(tl.int64) * Sq
    key = tl.arange(0, KEYS)  # (KEYS,)
    q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
    d_out = d_out_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
    saved_m = tl.load(saved_m_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
    saved_s = tl.load(saved_s_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
    shift = tl.load(shift_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
    dq = tl.full((QUERIES, 64), 0.0, tl.float32)  # (QUERIES, 64)
    sum_d_s0 = tl.full((QUERIES,), 0.0, tl.float32)  # (QUERIES,)
    s0_of_head = tl.load(s0_ptr + h.to(tl.int64) * s0_stride_0)
    chosen = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m)  # (QUERIES,)
    _1_over_saved_s = 1.0 / saved_s  # (QUERIES,)
    end = tl.minimum(Sk, i1)
    full_end = tl.maximum(tl.minimum(Sk, i0 + 1) // KEYS * KEYS, 0)
    for start in range(0, full_end, KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        j_minus_i = j[None, :] - i[:, None]  # (QUERIES, KEYS)
        exp = tl.exp(score * scale + s0_of_head * j_minus_i - chosen[:, None])  # (QUERIES, KEYS)
        p = _1_over_saved_s[:, None] * exp  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        total = _1_over_saved_s[:, None] * dp + shift[:, None]  # (QUERIES, KEYS)
        ds = exp * total  # (QUERIES, KEYS)
        d_s0 = exp * j_minus_i * total  # (QUERIES, KEYS)
        sum_d_s0 += tl.sum(d_s0, 1)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    for start in range(full_end, end, KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        inside = i[:, None] >= j[None, :]  # (QUERIES, KEYS)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        j_minus_i = j[None, :] - i[:, None]  # (QUERIES, KEYS)
        exp = tl.exp(score * scale + s0_of_head * j_minus_i - chosen[:, None])  # (QUERIES, KEYS)
        p = _1_over_saved_s[:, None] * exp  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        total = _1_over_saved_s[:, None] * dp + shift[:, None]  # (QUERIES, KEYS)
        ds = exp * total  # (QUERIES, KEYS)
        ds = tl.where(inside, ds, 0.0)  # (QUERIES, KEYS)
        d_s0 = exp * j_minus_i * total  # (QUERIES, KEYS)
        sum_d_s0 += tl.sum(tl.where(inside, d_s0, 0.0), 1)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    row = first_row + i  # (QUERIES,)
    d = tl.arange(0, 64)
    tl.store(dq_ptr + row[:, None] * 64 + d[None, :], dq * scale, mask=(i < Sq)[:, None])
    tl.store(sum_d_s0_ptr + row, sum_d_s0, mask=i < Sq)
