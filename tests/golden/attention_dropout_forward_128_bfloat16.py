# softmaxsum_forward / pairs / forward / bfloat16, q and k 128 wide, v 128
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale
#   keep = where(random(seed[0], i, h, j, b).to(float) >= dropped, kept, 0.0)
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * (v * keep)
#   out = where((m != -inf) | (s != 0.0), o / s, 0.0)
#   lse = where((m != -inf) | (s != 0.0), m + log(s), -inf)
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
def finish_out(m, s, o):
    return tl.where((m != float("-inf")) | (s != 0.0), o / s, 0.0)


@triton.jit
def finish_lse(m, s):
    natural_m = m * 0.6931471805599453
    return tl.where((m != float("-inf")) | (s != 0.0), natural_m + tl.log(s), float("-inf"))


@triton.jit(do_not_specialize=["H", "Sq", "Sk"])
def softmaxsum_forward(
    q_desc,
    seed_ptr,
    k_desc,
    v_desc,
    out_ptr,
    lse_ptr,
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
    key = tl.arange(0, KEYS)  # (KEYS,)
    q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 128)  # (QUERIES, 128)
    m = tl.full((QUERIES,), float("-inf"), tl.float32)  # (QUERIES,)
    s = tl.full((QUERIES,), 0.0, tl.float32)  # (QUERIES,)
    o = tl.full((QUERIES, 128), 0.0, tl.float32)  # (QUERIES, 128)
    scale_log2_e = scale * 1.4426950408889634
    seed_of_head = tl.load(seed_ptr)
    for start in range(0, Sk, KEYS):
        j = start + key  # (KEYS,)
        k = k_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        x = score * scale_log2_e  # (QUERIES, KEYS)
        m_new = tl.maximum(m, tl.max(score, 1) * scale_log2_e)  # (QUERIES,)
        p = term_s(x, m_new[:, None])  # (QUERIES, KEYS)
        s = correct_s(s, m, m_new) + tl.sum(p, 1)  # (QUERIES,)
        keep = tl.where(
            random(seed_of_head, i[:, None], h, j[None, :], b).to(tl.float32) >= dropped, kept, 0.0
        )
        weight = p * keep  # (QUERIES, KEYS)
        v = v_desc.load([b, hk, start, 0]).reshape(KEYS, 128)  # (KEYS, 128)
        o = tl.dot(weight.to(v.dtype), v, correct_o(o, m[:, None], m_new[:, None]))
        m = m_new  # (QUERIES,)
    row = bh.to(tl.int64) * Sq + i  # (QUERIES,)
    d = tl.arange(0, 128)
    tl.store(
        out_ptr + row[:, None] * 128 + d[None, :],
        finish_out(m[:, None], s[:, None], o),
        mask=(i < Sq)[:, None],
    )
    tl.store(lse_ptr + row, finish_lse(m, s), mask=i < Sq)
