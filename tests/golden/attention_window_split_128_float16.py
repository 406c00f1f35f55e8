# softmaxsum_split / pairs / forward / float16, q and k 128 wide, v 128
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale
#   counts where (i - 1023 <= j) & (j <= i)
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   split_m = m
#   split_s = s
#   split_o = o
#   plan    query blocks outside, tiles of 64 queries x 64 keys, 4 warps, 3 stages

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
def finish_split_m(m):
    return m * 0.6931471805599453


@triton.jit(do_not_specialize=["H", "group", "Sq", "Sk", "together", "splits"])
def softmaxsum_split(
    q_desc,
    k_desc,
    v_desc,
    split_m_ptr,
    split_s_ptr,
    split_o_ptr,
    scale,
    H,
    group,
    Sq,
    Sk,
    together,
    splits,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    split = tl.program_id(0) % splits
    program = tl.program_id(0) // splits
    blocks = tl.cdiv(Sq, QUERIES)
    place = program % (blocks * together)
    block = blocks - 1 - place // together
    first_bh = program // (blocks * together) * together
    bh = first_bh + place % together
    b = bh // H
    h = bh % H
    hk = h // group
    i0 = block * QUERIES
    i1 = tl.minimum(i0 + QUERIES, Sq)
    i = i0 + tl.arange(0, QUERIES)  # (QUERIES,)
    key = tl.arange(0, KEYS)  # (KEYS,)
    q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
    m = tl.full((QUERIES,), float("-inf"), tl.float32)  # (QUERIES,)
    s = tl.full((QUERIES,), 0.0, tl.float32)  # (QUERIES,)
    o = tl.full((QUERIES, 128), 0.0, tl.float32)  # (QUERIES, 128)
    scale_log2_e = scale * 1.4426950408889634
    i_minus_1023 = i - 1023  # (QUERIES,)
    first_block = tl.maximum(0, i0 - 1023) // KEYS * KEYS
    end = tl.minimum(Sk, i1)
    share = tl.cdiv(tl.cdiv(end - first_block, KEYS), splits) * KEYS
    begin = first_block + split * share
    stop = begin + share
    full = tl.maximum(first_block, tl.minimum(tl.cdiv(tl.maximum(0, i1 - 1024), KEYS) * KEYS, end))
    full_end = tl.maximum(tl.minimum(Sk, i0 + 1) // KEYS * KEYS, full)
    for start in range(tl.maximum(full, begin), tl.minimum(full_end, stop), KEYS):
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        x = score * scale_log2_e  # (QUERIES, KEYS)
        m_new = tl.maximum(m, tl.max(score, 1) * scale_log2_e)  # (QUERIES,)
        p = term_s(x, m_new[:, None])  # (QUERIES, KEYS)
        s = correct_s(s, m, m_new) + tl.sum(p, 1)  # (QUERIES,)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        o = tl.dot(p.to(v.dtype), v, correct_o(o, m[:, None], m_new[:, None]))
        m = m_new  # (QUERIES,)
    for start in range(begin, tl.minimum(full, stop), KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        inside = (i_minus_1023[:, None] <= j[None, :]) & (j[None, :] <= i[:, None])
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
    for start in range(tl.maximum(full_end, begin), tl.minimum(end, stop), KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        inside = (i_minus_1023[:, None] <= j[None, :]) & (j[None, :] <= i[:, None])
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
    row = (bh.to(tl.int64) * Sq + i) * splits + split  # (QUERIES,)
    tl.store(split_m_ptr + row, finish_split_m(m), mask=i < Sq)
    tl.store(split_s_ptr + row, s, mask=i < Sq)
    d = tl.arange(0, 128)
    tl.store(split_o_ptr + row[:, None] * 128 + d[None, :], o, mask=(i < Sq)[:, None])
