# softmaxsum_forward / pairs / forward / float32, q and k 80 wide, v 80
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale + s0[h * s0_stride_0] * (j - i)
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   out = where((m != -inf) | (s != 0.0), o / s, 0.0)
#   lse = where((m != -inf) | (s != 0.0), m + log(s), -inf)
#   plan    query blocks outside, tiles of 16 queries x 16 keys, 4 warps, 1 stage

import triton
import triton.language as tl


@triton.jit
def neutral_m(m):
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def old_or_new_m(old_m, new_m):
    return tl.where(
        old_m == float("-inf"), new_m, tl.where(tl.abs(old_m) == float("inf"), 0.0, old_m)
    )


@triton.jit
def term_s(x, m):
    return tl.exp(x - m)


@triton.jit
def correct_s(s, old_m, new_m):
    return s * tl.exp(old_m - new_m)


@triton.jit
def correct_o(o, old_m, new_m):
    return o * tl.exp(old_m - new_m)


@triton.jit
def finish_out(m, s, o):
    return tl.where((m != float("-inf")) | (s != 0.0), o / s, 0.0)


@triton.jit
def finish_lse(m, s):
    return tl.where((m != float("-inf")) | (s != 0.0), m + tl.log(s), float("-inf"))


@triton.jit(do_not_specialize=["H", "group", "Sq", "Sk"])
def softmaxsum_forward(
    q_desc_0,
    q_desc_1,
    s0_ptr,
    k_desc_0,
    k_desc_1,
    v_desc_0,
    v_desc_1,
    out_ptr,
    lse_ptr,
    scale,
    H,
    group,
    Sq,
    Sk,
    s0_stride_0,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    blocks = tl.cdiv(Sq, QUERIES)
    block = tl.program_id(0) % blocks
    bh = tl.program_id(0) // blocks
    b = bh // H
    h = bh % H
    hk = h // group
    i0 = block * QUERIES
    i = i0 + tl.arange(0, QUERIES)  # (QUERIES,)
    key = tl.arange(0, KEYS)  # (KEYS,)
    q_0 = q_desc_0.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
    q_1 = q_desc_1.load([b, h, i0, 64]).reshape(QUERIES, 16)  # (QUERIES, 16)
    m = tl.full((QUERIES,), float("-inf"), tl.float32)  # (QUERIES,)
    s = tl.full((QUERIES,), 0.0, tl.float32)  # (QUERIES,)
    o_0 = tl.full((QUERIES, 64), 0.0, tl.float32)  # (QUERIES, 64)
    o_1 = tl.full((QUERIES, 16), 0.0, tl.float32)  # (QUERIES, 16)
    s0_of_head = tl.load(s0_ptr + h.to(tl.int64) * s0_stride_0)
    for start in range(0, Sk, KEYS):
        j = start + key  # (KEYS,)
        k_0 = k_desc_0.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        k_1 = k_desc_1.load([b, hk, start, 64]).reshape(KEYS, 16)  # (KEYS, 16)
        score = tl.dot(
            q_1, k_1.T, tl.dot(q_0, k_0.T, input_precision="ieee"), input_precision="ieee"
        )
        x = score * scale + s0_of_head * (j[None, :] - i[:, None])  # (QUERIES, KEYS)
        m_new = tl.maximum(m, tl.max(x, 1))  # (QUERIES,)
        m_read = neutral_m(m_new)  # (QUERIES,)
        m_old = old_or_new_m(m, m_read)  # (QUERIES,)
        p = term_s(x, m_read[:, None])  # (QUERIES, KEYS)
        s = correct_s(s, m_old, m_read) + tl.sum(p, 1)  # (QUERIES,)
        v_0 = v_desc_0.load([b, hk, start, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        v_1 = v_desc_1.load([b, hk, start, 64]).reshape(KEYS, 16)  # (KEYS, 16)
        o_0 = tl.dot(
            p, v_0, correct_o(o_0, m_old[:, None], m_read[:, None]), input_precision="ieee"
        )
        o_1 = tl.dot(
            p, v_1, correct_o(o_1, m_old[:, None], m_read[:, None]), input_precision="ieee"
        )
        m = m_new  # (QUERIES,)
    row = bh.to(tl.int64) * Sq + i  # (QUERIES,)
    d = tl.arange(0, 64)
    tl.store(
        out_ptr + row[:, None] * 80 + d[None, :],
        finish_out(m[:, None], s[:, None], o_0),
        mask=(i < Sq)[:, None],
    )
    d_2 = 64 + tl.arange(0, 16)
    tl.store(
        out_ptr + row[:, None] * 80 + d_2[None, :],
        finish_out(m[:, None], s[:, None], o_1),
        mask=(i < Sq)[:, None],
    )
    tl.store(lse_ptr + row, finish_lse(m, s), mask=i < Sq)
