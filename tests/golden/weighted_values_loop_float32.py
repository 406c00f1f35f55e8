# weighted_values / rows / forward / float32
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   state   m: Max of x;  s: Sum of exp(x - m)
#   state   m: Max of x;  s: Sum of exp(x - m);  o: Sum of exp(x - m) * v
#   softmaxsum.lse = m + log(s)
#   softmaxsum_2.out = o / s
#   out = softmaxsum_2.out
#   lse = softmaxsum.lse
#   proved  SoftmaxSum over the reals (certificate aaf0c1)
#   plan    64 rows a program, one pass, BLOCK 64, 8 warps
#   moves   reads x, v once, writes out, lse

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
def term_o(x, m, v):
    return tl.exp(x - m) * v


@triton.jit
def correct_o(o, old_m, new_m):
    return o * tl.exp(old_m - new_m)


@triton.jit
def finish_lse(m, s):
    return m + tl.log(s)


@triton.jit
def finish_out(o, s):
    return o / s


@triton.jit
def weighted_values(
    x_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    M,
    N,
    R1,
    x_row_stride_0,
    v_row_stride_0,
    v_row_stride_1,
    v_column_stride,
    out_row_stride_0,
    out_row_stride_1,
    lse_row_stride_0,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    row_inside = row < M  # (ROWS,)
    row_1 = row % R1  # (ROWS,)
    row_0 = row // R1  # (ROWS,)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    m = tl.full((ROWS,), float("-inf"), tl.float32)  # (ROWS,)
    s = tl.full((ROWS,), 0.0, tl.float32)  # (ROWS,)
    softmaxsum_2_m = tl.full((ROWS,), float("-inf"), tl.float32)  # (ROWS,)
    softmaxsum_2_s = tl.full((ROWS,), 0.0, tl.float32)  # (ROWS,)
    o = tl.full((ROWS,), 0.0, tl.float32)  # (ROWS,)
    for start in range(0, N, BLOCK):
        j = start + column  # (BLOCK,)
        inside = row_inside[:, None] & (j < N)[None, :]  # (ROWS, BLOCK)
        x = tl.load(x_ptr + row_0[:, None] * x_row_stride_0 + j[None, :], mask=inside, other=0.0)
        v = tl.load(
            v_ptr
            + row_0[:, None] * v_row_stride_0
            + row_1[:, None] * v_row_stride_1
            + j[None, :] * v_column_stride,
            mask=inside,
            other=0.0,
        )
        m_new = tl.maximum(m, tl.max(tl.where(inside, x, float("-inf")), 1))  # (ROWS,)
        m_read = neutral_m(m_new)  # (ROWS,)
        m_old = old_or_new_m(m, m_read)  # (ROWS,)
        s = correct_s(s, m_old, m_read)  # (ROWS,)
        s += tl.sum(tl.where(inside, term_s(x, m_read[:, None]), 0.0), 1)  # (ROWS,)
        m = m_new  # (ROWS,)
        softmaxsum_2_m_new = tl.maximum(
            softmaxsum_2_m, tl.max(tl.where(inside, x, float("-inf")), 1)
        )
        softmaxsum_2_m_read = neutral_m(softmaxsum_2_m_new)  # (ROWS,)
        softmaxsum_2_m_old = old_or_new_m(softmaxsum_2_m, softmaxsum_2_m_read)  # (ROWS,)
        softmaxsum_2_s = correct_s(softmaxsum_2_s, softmaxsum_2_m_old, softmaxsum_2_m_read)
        softmaxsum_2_s += tl.sum(tl.where(inside, term_s(x, softmaxsum_2_m_read[:, None]), 0.0), 1)
        o = correct_o(o, softmaxsum_2_m_old, softmaxsum_2_m_read)  # (ROWS,)
        o += tl.sum(
            tl.where(
                inside & (x != float("-inf")), term_o(x, softmaxsum_2_m_read[:, None], v), 0.0
            ),
            1,
        )
        softmaxsum_2_m = softmaxsum_2_m_new  # (ROWS,)
    lse = tl.where((m != float("-inf")) | (s != 0.0), finish_lse(m, s), float("-inf"))  # (ROWS,)
    out = tl.where(
        (softmaxsum_2_m != float("-inf")) | (softmaxsum_2_s != 0.0) | (o != 0.0),
        finish_out(o, softmaxsum_2_s),
        0.0,
    )
    tl.store(out_ptr + row_0 * out_row_stride_0 + row_1 * out_row_stride_1, out, mask=row_inside)
    tl.store(lse_ptr + row_0 * lse_row_stride_0, lse, mask=row_inside)


def compare(name, got, wanted, tolerance):
    """Is the largest difference small beside the largest value wanted? NaN equals NaN."""
    got, wanted = got.double(), wanted.double()
    if wanted.isnan().all():
        print(f"{name}: nothing to compare, these random inputs give NaN")
        return bool(got.isnan().all())
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    difference = (got - wanted).abs().masked_fill(same, 0.0).max().item()
    allowed = tolerance * max(1e-3, wanted.nan_to_num(0.0, 0.0, 0.0).abs().max().item())
    outcome = "ok" if difference <= allowed else "WRONG"
    print(f"{name}: largest difference {difference:.1e}, allowed {allowed:.1e}: {outcome}")
    return difference <= allowed


def main():
    """The kernel on random inputs, beside the plain formula in float64."""
    import torch

    torch.manual_seed(0)
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    R0, R1, N = 3, 2, 112
    M = R0 * R1
    x = torch.randn(R0, 1, N)
    v = torch.randn(R0, N, R1).permute(0, 2, 1)
    out = torch.full((R0, R1, 1), float("nan"))
    lse = torch.full((R0, 1, 1), float("nan"))
    weighted_values[(triton.cdiv(M, 64),)](
        x,
        v,
        out,
        lse,
        M,
        N,
        R1,
        x.stride(0),
        v.stride(0),
        v.stride(1),
        v.stride(2),
        out.stride(0),
        out.stride(1),
        lse.stride(0),
        ROWS=64,
        BLOCK=64,
        num_warps=8,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    x = x.double()
    v = v.double()
    m = x.amax(-1, keepdim=True)
    s = torch.exp(x - m).sum(-1, keepdim=True)
    softmaxsum_lse = m + torch.log(s)
    o = (torch.exp(x - m) * v).sum(-1, keepdim=True)
    softmaxsum_2_out = o / s
    ok = compare("out", out, softmaxsum_2_out, 1e-4)
    ok &= compare("lse", lse, softmaxsum_lse, 1e-4)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
