# softmaxsum_queries / pairs / backward of q / float16, q and k 64 wide, v 64
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale
#   counts where (i - 1023 <= j) & (j <= i)
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   d score = scale * exp(score * scale - where(abs(saved_m) == inf, 0.0, saved_m)) * (dp - delta)
#   plan    query blocks outside, tiles of 64 queries x 64 keys, 4 warps, 3 stages

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["H", "Sq", "Sk", "together"])
def softmaxsum_queries(
    q_desc,
    d_out_desc,
    saved_m_ptr,
    delta_ptr,
    k_desc,
    v_desc,
    dq_ptr,
    scale,
    H,
    Sq,
    Sk,
    together,
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
    delta = tl.load(delta_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
    dq = tl.full((QUERIES, 64), 0.0, tl.float32)  # (QUERIES, 64)
    scale_log2_e = scale * 1.4426950408889634
    natural = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m) * 1.4426950408889634
    i_minus_1023 = i - 1023  # (QUERIES,)
    first_block = tl.maximum(0, i0 - 1023) // KEYS * KEYS
    end = tl.minimum(Sk, i1)
    full = tl.maximum(first_block, tl.minimum(tl.cdiv(tl.maximum(0, i1 - 1024), KEYS) * KEYS, end))
    full_end = tl.maximum(tl.minimum(Sk, i0 + 1) // KEYS * KEYS, full)
    for start in range(full, full_end, KEYS):
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        p = tl.exp2(score * scale_log2_e - natural[:, None])  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        ds = p * (dp - delta[:, None])  # (QUERIES, KEYS)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    for start in range(first_block, full, KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        inside = (i_minus_1023[:, None] <= j[None, :]) & (j[None, :] <= i[:, None])
        seen_key = tl.max((inside & (i < Sq)[:, None]).to(tl.int32), 0) > 0  # (KEYS,)
        k = tl.where(seen_key[:, None], k, 0.0)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        p = tl.exp2(score * scale_log2_e - natural[:, None])  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        ds = p * (dp - delta[:, None])  # (QUERIES, KEYS)
        ds = tl.where(inside, ds, 0.0)  # (QUERIES, KEYS)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    for start in range(full_end, end, KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        inside = (i_minus_1023[:, None] <= j[None, :]) & (j[None, :] <= i[:, None])
        seen_key = tl.max((inside & (i < Sq)[:, None]).to(tl.int32), 0) > 0  # (KEYS,)
        k = tl.where(seen_key[:, None], k, 0.0)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        p = tl.exp2(score * scale_log2_e - natural[:, None])  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        ds = p * (dp - delta[:, None])  # (QUERIES, KEYS)
        ds = tl.where(inside, ds, 0.0)  # (QUERIES, KEYS)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    row = first_row + i  # (QUERIES,)
    d = tl.arange(0, 64)
    tl.store(dq_ptr + row[:, None] * 64 + d[None, :], dq * scale, mask=(i < Sq)[:, None])
