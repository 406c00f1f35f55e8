# softmaxsum_forward / pairs / forward / bfloat16, q and k 128 wide, v 128
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale
#   counts where i >= j
#   x = sinks[h * sinks_stride_0] of an element before the keys, whose v is 0
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   out = where((m != -inf) | (s != 0.0), o / s, 0.0)
#   lse = where((m != -inf) | (s != 0.0), m + log(s), -inf)
#   plan    query blocks outside, tiles of 64 queries x 64 keys, 4 warps, 3 stages

import triton
import triton.language as tl


@triton.jit
def first_s(x):
    finite_x = tl.where(tl.abs(x) == float("inf"), 0.0, x)
    return tl.exp2(tl.where(x == finite_x, 0.0, x - finite_x))


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


@triton.jit(do_not_specialize=["H", "Sq", "Sk", "together"])
def softmaxsum_forward(
    q_desc,
    sinks_ptr,
    k_desc,
    v_desc,
    out_ptr,
    lse_ptr,
    scale,
    H,
    Sq,
    Sk,
    together,
    sinks_stride_0,
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
    key = tl.arange(0, KEYS)  # (KEYS,)
    q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
    sinks_of_head = tl.load(sinks_ptr + h.to(tl.int64) * sinks_stride_0)
    first_x = sinks_of_head * 1.4426950408889634
    m = tl.full((QUERIES,), first_x, tl.float32)  # (QUERIES,)
    s = tl.full((QUERIES,), first_s(first_x), tl.float32)  # (QUERIES,)
    o = tl.full((QUERIES, 128), 0.0, tl.float32)  # (QUERIES, 128)
    scale_log2_e = scale * 1.4426950408889634
    end = tl.minimum(Sk, i1)
    full_end = tl.where(
        first_x == float("inf"), 0, tl.maximum(tl.minimum(Sk, i0 + 1) // KEYS * KEYS, 0)
    )
    for start in range(0, full_end, KEYS):
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        x = score * scale_log2_e  # (QUERIES, KEYS)
        m_new = tl.maximum(m, tl.max(score, 1) * scale_log2_e)  # (QUERIES,)
        p = term_s(x, m_new[:, None])  # (QUERIES, KEYS)
        s = correct_s(s, m, m_new) + tl.sum(p, 1)  # (QUERIES,)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        o = tl.dot(p.to(v.dtype), v, correct_o(o, m[:, None], m_new[:, None]))
        m = m_new  # (QUERIES,)
    for start in range(full_end, end, KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        inside = i[:, None] >= j[None, :]  # (QUERIES, KEYS)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        x = tl.where(inside, score * scale_log2_e, float("-inf"))  # (QUERIES, KEYS)
        m_new = tl.maximum(m, tl.max(x, 1))  # (QUERIES,)
        m_read = neutral_m(m_new)  # (QUERIES,)
        m_old = old_or_new_m(m, m_read)  # (QUERIES,)
        p = term_s(x, m_read[:, None])  # (QUERIES, KEYS)
        s = correct_s(s, m_old, m_read) + tl.sum(p, 1)  # (QUERIES,)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
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
