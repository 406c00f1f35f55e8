# softmaxsum_keys / pairs / backward of k and v / bfloat16, q and k 128 wide, v 128
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale
#   counts where i >= j
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   d score = scale * exp(score * scale - where(abs(saved_m) == inf, 0.0, saved_m)) * (dp - delta)
#   dv = sum over i of exp(score * scale - where(abs(saved_m) == inf, 0.0, saved_m)) * d_out
#   plan    key blocks outside, tiles of 64 queries x 64 keys, 4 warps, 2 stages

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["H", "group", "Sq", "Sk", "together"])
def softmaxsum_keys(
    k_desc,
    v_desc,
    q_desc,
    d_out_desc,
    saved_m_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    scale,
    H,
    group,
    Sq,
    Sk,
    together,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    blocks = tl.cdiv(Sk, KEYS)
    place = tl.program_id(0) % (blocks * together)
    block = place // together
    first_bh = tl.program_id(0) // (blocks * together) * together
    bh = first_bh + place % together
    b = bh // (H // group)
    hk = bh % (H // group)
    j0 = block * KEYS
    j1 = tl.minimum(j0 + KEYS, Sk)
    j = j0 + tl.arange(0, KEYS)  # (KEYS,)
    query = tl.arange(0, QUERIES)  # (QUERIES,)
    k = k_desc.load([b, hk, j0, 0]).reshape(KEYS, 128)  # (KEYS, 128)
    v = v_desc.load([b, hk, j0, 0]).reshape(KEYS, 128)  # (KEYS, 128)
    dk = tl.full((KEYS, 128), 0.0, tl.float32)  # (KEYS, 128)
    dv = tl.full((KEYS, 128), 0.0, tl.float32)  # (KEYS, 128)
    scale_log2_e = scale * 1.4426950408889634
    for g in range(group):
        h = hk * group + g
        first_row = (b * H + h).to(tl.int64) * Sq
        first_block = tl.maximum(0, j0) // QUERIES * QUERIES
        end = Sq
        full = tl.maximum(
            first_block, tl.minimum(tl.cdiv(tl.maximum(0, j1 - 1), QUERIES) * QUERIES, end)
        )
        for start in range(full, Sq, QUERIES):
            i = start + query  # (QUERIES,)
            q = q_desc.load([b, h, start, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
            d_out = d_out_desc.load([b, h, start, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
            saved_m = tl.load(saved_m_ptr + first_row + i)  # (QUERIES,)
            delta = tl.load(delta_ptr + first_row + i)  # (QUERIES,)
            score = tl.dot(k, q.T)  # (KEYS, QUERIES)
            natural = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m) * 1.4426950408889634
            p = tl.exp2(score * scale_log2_e - natural[None, :])  # (KEYS, QUERIES)
            dp = tl.dot(v, d_out.T)  # (KEYS, QUERIES)
            ds = p * (dp - delta[None, :])  # (KEYS, QUERIES)
            dv = tl.dot(p.to(d_out.dtype), d_out, dv)
            dk = tl.dot(ds.to(q.dtype), q, dk)
        for start in range(first_block, full, QUERIES):
            i = start + query  # (QUERIES,)
            q = q_desc.load([b, h, start, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
            d_out = d_out_desc.load([b, h, start, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
            saved_m = tl.load(saved_m_ptr + first_row + i)  # (QUERIES,)
            delta = tl.load(delta_ptr + first_row + i)  # (QUERIES,)
            inside = i[None, :] >= j[:, None]  # (KEYS, QUERIES)
            score = tl.dot(k, q.T)  # (KEYS, QUERIES)
            natural = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m) * 1.4426950408889634
            p = tl.exp2(score * scale_log2_e - natural[None, :])  # (KEYS, QUERIES)
            dp = tl.dot(v, d_out.T)  # (KEYS, QUERIES)
            ds = p * (dp - delta[None, :])  # (KEYS, QUERIES)
            p = tl.where(inside, p, 0.0)  # (KEYS, QUERIES)
            ds = tl.where(inside, ds, 0.0)  # (KEYS, QUERIES)
            dv = tl.dot(p.to(d_out.dtype), d_out, dv)
            dk = tl.dot(ds.to(q.dtype), q, dk)
    row = bh.to(tl.int64) * Sk + j  # (KEYS,)
    d = tl.arange(0, 128)
    tl.store(dk_ptr + row[:, None] * 128 + d[None, :], dk * scale, mask=(j < Sk)[:, None])
    d_2 = tl.arange(0, 128)
    tl.store(dv_ptr + row[:, None] * 128 + d_2[None, :], dv, mask=(j < Sk)[:, None])
