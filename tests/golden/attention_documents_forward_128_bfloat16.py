# softmaxsum_forward / pairs / forward / bfloat16, q and k 128 wide, v 128
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale
#   counts where (m0[i * m0_stride_0] == m0[j * m0_stride_0]) & (i >= j)
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   out = where((m != -inf) | (s != 0.0), o / s, 0.0)
#   lse = where((m != -inf) | (s != 0.0), m + log(s), -inf)
#   plan    query blocks outside, tiles of 64 queries x 64 keys, 4 warps, 2 stages

import triton
import triton.language as tl


@triton.jit
def term_s(x, m):
    return tl.exp2(x - m)


@triton.jit
def correct_s(s, old_m, new_m):
    return s * tl.exp2(old_m - new_m)


@triton.jit
def correct_o(o, old_m, new_m):
    return o * tl.exp2(old_m - new_m)


@triton.jit
def neutral_m(m):
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def old_or_new_m(old_m, new_m):
    return tl.where(
        old_m == float("-inf"), new_m, tl.where(tl.abs(old_m) == float("inf"), 0.0, old_m)
    )


@triton.jit
def finish_out(m, s, o):
    return tl.where((m != float("-inf")) | (s != 0.0), o / s, 0.0)


@triton.jit
def finish_lse(m, s):
    natural_m = m * 0.6931471805599453
    return tl.where((m != float("-inf")) | (s != 0.0), natural_m + tl.log(s), float("-inf"))


@triton.jit(do_not_specialize=["H", "Sq", "Sk"])
def softmaxsum_forward(
    q_desc,
    m0_ptr,
    full_counts_ptr,
    full_ids_ptr,
    k_desc,
    v_desc,
    partial_counts_ptr,
    partial_ids_ptr,
    out_ptr,
    lse_ptr,
    scale,
    H,
    Sq,
    Sk,
    m0_stride_0,
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
    key = tl.arange(0, KEYS)  # (KEYS,)
    q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
    m = tl.full((QUERIES,), float("-inf"), tl.float32)  # (QUERIES,)
    s = tl.full((QUERIES,), 0.0, tl.float32)  # (QUERIES,)
    o = tl.full((QUERIES, 128), 0.0, tl.float32)  # (QUERIES, 128)
    scale_log2_e = scale * 1.4426950408889634
    m0_of_query = tl.load(m0_ptr + i.to(tl.int64) * m0_stride_0, mask=i < Sq, other=0)  # (QUERIES,)
    width = tl.cdiv(Sk, KEYS)
    count = tl.load(full_counts_ptr + block)
    for n in range(count):
        start = tl.load(full_ids_ptr + block * width + n) * KEYS
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        x = score * scale_log2_e  # (QUERIES, KEYS)
        m_new = tl.maximum(m, tl.max(score, 1) * scale_log2_e)  # (QUERIES,)
        p = term_s(x, m_new[:, None])  # (QUERIES, KEYS)
        s = correct_s(s, m, m_new) + tl.sum(p, 1)  # (QUERIES,)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        o = tl.dot(p.to(v.dtype), v, correct_o(o, m[:, None], m_new[:, None]))
        m = m_new  # (QUERIES,)
    count = tl.load(partial_counts_ptr + block)
    for n in range(count):
        start = tl.load(partial_ids_ptr + block * width + n) * KEYS
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        m0_of_key = tl.load(m0_ptr + j.to(tl.int64) * m0_stride_0, mask=j < Sk, other=0)  # (KEYS,)
        inside = (
            (j < Sk)[None, :]
            & (m0_of_query[:, None] == m0_of_key[None, :])
            & (i[:, None] >= j[None, :])
        )
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        x = tl.where(inside, score * scale_log2_e, float("-inf"))  # (QUERIES, KEYS)
        m_new = tl.maximum(m, tl.max(x, 1))  # (QUERIES,)
        m_read = neutral_m(m_new)  # (QUERIES,)
        m_old = old_or_new_m(m, m_read)  # (QUERIES,)
        p = term_s(x, m_read[:, None])  # (QUERIES, KEYS)
        s = correct_s(s, m_old, m_read) + tl.sum(p, 1)  # (QUERIES,)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        seen_key = tl.max((inside & (i < Sq)[:, None]).to(tl.int32), 0) > 0  # (KEYS,)
        v = tl.where(seen_key[:, None], v, 0.0)
        o = tl.dot(p.to(v.dtype), v, correct_o(o, m_old[:, None], m_read[:, None]))
        m = m_new  # (QUERIES,)
    row = bh.to(tl.int64) * Sq + i  # (QUERIES,)
    d = tl.arange(0, 128)
    tl.store(
        out_ptr + row[:, None] * 128 + d[None, :],
        finish_out(m[:, None], s[:, None], o),
        mask=(i < Sq)[:, None],
    )
    tl.store(lse_ptr + row, finish_lse(m, s), mask=i < Sq)
