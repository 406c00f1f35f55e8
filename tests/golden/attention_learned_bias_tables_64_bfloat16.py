# softmaxsum_d_s0 / pairs / backward of a table by pair / bfloat16, q and k 64 wide, v 64
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   score = q[b, h, i] . k[b, h // group, j]
#   x = score * scale + s0[h * s0_stride_0 + i * s0_stride_1 + j * s0_stride_2]
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   sum_d_s0 = sum over b of exp(score * scale + s0[h * s0_stride_0 + i * s0_stride_1 + j * s0 ...
#   plan    blocks of both outside, tiles of 64 queries x 64 keys, 4 warps, 3 stages

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["H", "group", "Sq", "Sk", "parts", "summed"])
def softmaxsum_d_s0(
    s0_ptr,
    q_desc,
    k_desc,
    d_out_desc,
    v_desc,
    saved_m_ptr,
    saved_s_ptr,
    shift_ptr,
    sum_d_s0_ptr,
    scale,
    H,
    group,
    Sq,
    Sk,
    parts,
    summed,
    s0_stride_0,
    s0_stride_1,
    s0_stride_2,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    rows = tl.cdiv(Sq, QUERIES)
    columns = tl.cdiv(Sk, KEYS)
    tiles = rows * columns
    tile = tl.program_id(0) % tiles
    outer = tl.program_id(0) // tiles
    part = outer % parts
    apart = outer // parts
    h = apart
    i0 = tile // columns * QUERIES
    j0 = tile % columns * KEYS
    i = i0 + tl.arange(0, QUERIES)  # (QUERIES,)
    j = j0 + tl.arange(0, KEYS)  # (KEYS,)
    total = h.to(tl.int64) * s0_stride_0 + i.to(tl.int64) * s0_stride_1  # (QUERIES,)
    j_times_s0_stride_2_ = j.to(tl.int64) * s0_stride_2  # (KEYS,)
    s0_of_pair = tl.load(
        s0_ptr + total[:, None] + j_times_s0_stride_2_[None, :], mask=(i < Sq)[:, None], other=0.0
    )
    sum_d_s0 = tl.full((QUERIES, KEYS), 0.0, tl.float32)  # (QUERIES, KEYS)
    each = tl.cdiv(summed, parts)
    for visit in range(part * each, tl.minimum(summed, (part + 1) * each)):
        b = visit
        hk = h // group
        first_row = (b * H + h).to(tl.int64) * Sq
        q = q_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
        k = k_desc.load([b, hk, j0, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        d_out = d_out_desc.load([b, h, i0, 0]).reshape(QUERIES, 64)  # (QUERIES, 64)
        v = v_desc.load([b, hk, j0, 0]).reshape(KEYS, 64)  # (KEYS, 64)
        saved_m = tl.load(saved_m_ptr + first_row + i)  # (QUERIES,)
        saved_s = tl.load(saved_s_ptr + first_row + i)  # (QUERIES,)
        shift = tl.load(shift_ptr + first_row + i)  # (QUERIES,)
        score = tl.dot(q, k.T)  # (QUERIES, KEYS)
        dp = tl.dot(d_out, v.T)  # (QUERIES, KEYS)
        chosen = tl.where(tl.abs(saved_m) == float("inf"), 0.0, saved_m)  # (QUERIES,)
        _1_over_saved_s = 1.0 / saved_s  # (QUERIES,)
        d_s0 = tl.exp(score * scale + s0_of_pair - chosen[:, None]) * (
            _1_over_saved_s[:, None] * dp + shift[:, None]
        )
        sum_d_s0 += d_s0
    row = outer.to(tl.int64) * Sq + i  # (QUERIES,)
    tl.store(
        sum_d_s0_ptr + row[:, None] * Sk + j[None, :],
        sum_d_s0,
        mask=(i < Sq)[:, None] & (j < Sk)[None, :],
    )
