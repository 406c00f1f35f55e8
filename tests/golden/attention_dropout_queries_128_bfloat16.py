# softmaxsum_queries / pairs / backward of q / bfloat16, q and k 128 wide, v 128
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale
#   keep = where(random(seed[0], i, h, j, b).to(float) >= dropped, kept, 0.0)
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * (v * keep)
#   d score = scale * exp(score * scale - where(abs(saved_m) == inf, 0.0, saved_m)) * (keep *  ...
#   plan    query blocks outside, tiles of 64 queries x 32 keys, 4 warps, 3 stages

import triton
import triton.language as tl


@triton.jit
def random(seed, c0, c1, c2, c3):  # 24 bits of Philox 4x32-10: four positions share its rounds
    c0, c1 = tl.cast(c0, tl.int32), tl.cast(c1, tl.int32)
    c2, c3 = tl.cast(c2, tl.int32), tl.cast(c3, tl.int32)
    w, x, y, z = tl.philox(seed, c0 & -9, c1, c2 & -9, c3)
    even, odd = tl.where((c0 & 8) == 0, w, x), tl.where((c0 & 8) == 0, y, z)
    return (tl.where((c2 & 8) == 0, even, odd) >> 8).to(tl.int32)


@triton.jit(do_not_specialize=["H", "Sq", "Sk"])
def softmaxsum_queries(
    q_desc,
    d_out_desc,
    saved_m_ptr,
    delta_ptr,
    seed_ptr,
    k_desc,
    v_desc,
    dq_ptr,
    scale,
    dropped,
    kept,
    H,
    Sq,
    Sk,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    blocks = tl.cdiv(Sq, QUERIES)
    block = tl.program_id(0) % blocks
    bh = tl.program_id(0) // blocks
    b = bh // H
    h = bh % H
    hk = h
    i0 = block * QUERIES
    i = i0 + tl.arange(0, QUERIES)  # (QUERIES,)
    first_row = bh.to(tl.int64) * Sq
    key = tl.arange(0, KEYS)  # (KEYS,)
    q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
    d_out = d_out_desc.load([b, h, i0, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
    saved_m = tl.load(saved_m_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
    delta = tl.load(delta_ptr + first_row + i, mask=i < Sq, other=0.0)  # (QUERIES,)
    dq = tl.full((QUERIES, 128), 0.0, tl.float32)  # (QUERIES, 128)
    scale_log2_e = scale * 1.4426950408889634
    seed_of_head = tl.load(seed_ptr)
    natural = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m) * 1.4426950408889634
    for start in range(0, Sk, KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        exp2 = tl.exp2(score * scale_log2_e - natural[:, None])  # (QUERIES, KEYS)
        keep = tl.where(
            random(seed_of_head, i[:, None], h, j[None, :], b).to(tl.float32) >= dropped, kept, 0.0
        )
        p = keep * exp2  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        ds = exp2 * (keep * dp - delta[:, None])  # (QUERIES, KEYS)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    row = first_row + i  # (QUERIES,)
    d = tl.arange(0, 128)
    tl.store(dq_ptr + row[:, None] * 128 + d[None, :], dq * scale, mask=(i < Sq)[:, None])
