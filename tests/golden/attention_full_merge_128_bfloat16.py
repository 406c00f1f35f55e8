# softmaxsum_merge / rows / forward / float32
#
# Printed by fusedreduce from SoftmaxSum. Change that, not this file.
#   state   m: identity -inf;  s: identity 0.0;  o: identity 0.0
#   merged.out = where((m != -inf) | (s != 0.0), o / s, 0.0)
#   merged.lse = where((m != -inf) | (s != 0.0), m + log(s), -inf)
#   out = merged.out
#   lse = merged.lse
#   plan    64 rows a program, the row in one block, BLOCK 8, 4 warps
#   moves   reads split_m, split_s, split_o once, writes out, lse

import triton
import triton.language as tl


@triton.jit
def merge_merged(a_m, a_s, a_o, b_m, b_s, b_o):
    m_max_m = tl.maximum(a_m, b_m, propagate_nan=tl.PropagateNan.ALL)
    chosen = tl.where(tl.abs(m_max_m) == float("inf"), 0.0, m_max_m)
    exp = tl.exp(
        tl.where(a_m == float("-inf"), chosen, tl.where(tl.abs(a_m) == float("inf"), 0.0, a_m))
        - chosen,
    )
    exp_2 = tl.exp(
        tl.where(b_m == float("-inf"), chosen, tl.where(tl.abs(b_m) == float("inf"), 0.0, b_m))
        - chosen,
    )
    return m_max_m, a_s * exp + b_s * exp_2, a_o * exp + b_o * exp_2


@triton.jit
def merge_merged_present(a_present, a_m, a_s, a_o, b_present, b_m, b_s, b_o):
    m, s, o = merge_merged(a_m, a_s, a_o, b_m, b_s, b_o)
    m = tl.where(b_present == 0, a_m, m)
    m = tl.where(a_present == 0, b_m, m)
    s = tl.where(b_present == 0, a_s, s)
    s = tl.where(a_present == 0, b_s, s)
    o = tl.where(b_present == 0, a_o, o)
    o = tl.where(a_present == 0, b_o, o)
    return a_present | b_present, m, s, o


@triton.jit
def finish_out(m, s, o):
    return tl.where((m != float("-inf")) | (s != 0.0), o / s, 0.0)


@triton.jit
def finish_lse(m, s):
    return tl.where((m != float("-inf")) | (s != 0.0), m + tl.log(s), float("-inf"))


@triton.jit
def softmaxsum_merge(
    split_m_ptr,
    split_s_ptr,
    split_o_ptr,
    out_ptr,
    lse_ptr,
    M,
    N,
    R1,
    split_m_row_stride_0,
    split_s_row_stride_0,
    split_o_row_stride_0,
    split_o_row_stride_1,
    split_o_column_stride,
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
    inside = row_inside[:, None] & (column < N)[None, :]  # (ROWS, BLOCK)
    split_m = tl.load(
        split_m_ptr + row_0[:, None] * split_m_row_stride_0 + column[None, :],
        mask=inside,
        other=0.0,
    )
    split_s = tl.load(
        split_s_ptr + row_0[:, None] * split_s_row_stride_0 + column[None, :],
        mask=inside,
        other=0.0,
    )
    split_o = tl.load(
        split_o_ptr
        + row_0[:, None] * split_o_row_stride_0
        + row_1[:, None] * split_o_row_stride_1
        + column[None, :] * split_o_column_stride,
        mask=inside,
        other=0.0,
    )
    m_lift = tl.where(inside, split_m, float("-inf"))  # (ROWS, BLOCK)
    s_lift = tl.where(inside, split_s, 0.0)  # (ROWS, BLOCK)
    o_lift = tl.where(inside, split_o, 0.0)  # (ROWS, BLOCK)
    present = inside.to(tl.int32)  # (ROWS, BLOCK)
    _, m, s, o = tl.reduce((present, m_lift, s_lift, o_lift), 1, merge_merged_present)
    out = finish_out(m, s, o)  # (ROWS,)
    lse = finish_lse(m, s)  # (ROWS,)
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
    R0, R1, N = 3, 2, 8
    M = R0 * R1
    split_m = torch.randn(R0, 1, N)
    split_s = torch.randn(R0, 1, N)
    split_o = torch.randn(R0, N, R1).permute(0, 2, 1)
    out = torch.full((R0, R1, 1), float("nan"), dtype=torch.bfloat16)
    lse = torch.full((R0, 1, 1), float("nan"))
    softmaxsum_merge[(triton.cdiv(M, 64),)](
        split_m,
        split_s,
        split_o,
        out,
        lse,
        M,
        N,
        R1,
        split_m.stride(0),
        split_s.stride(0),
        split_o.stride(0),
        split_o.stride(1),
        split_o.stride(2),
        out.stride(0),
        out.stride(1),
        lse.stride(0),
        ROWS=64,
        BLOCK=8,
        num_warps=4,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    split_m = split_m.double()
    split_s = split_s.double()
    split_o = split_o.double()

    def lift(split_m, split_s, split_o):
        return split_m, split_s, split_o

    def merge(a_m, a_s, a_o, b_m, b_s, b_o):
        m_max_m = torch.maximum(a_m, b_m)
        chosen = torch.where(torch.abs(m_max_m) == float("inf"), 0.0, m_max_m)
        exp = torch.exp(
            torch.where(
                a_m == float("-inf"), chosen, torch.where(torch.abs(a_m) == float("inf"), 0.0, a_m)
            )
            - chosen,
        )
        exp_2 = torch.exp(
            torch.where(
                b_m == float("-inf"), chosen, torch.where(torch.abs(b_m) == float("inf"), 0.0, b_m)
            )
            - chosen,
        )
        return m_max_m, a_s * exp + b_s * exp_2, a_o * exp + b_o * exp_2

    state = lift(split_m[..., :1], split_s[..., :1], split_o[..., :1])
    for column in range(1, N):
        state = merge(
            *state,
            *lift(
                split_m[..., column : column + 1],
                split_s[..., column : column + 1],
                split_o[..., column : column + 1],
            ),
        )
    m, s, o = state
    m_ne__inf_or_s_ne_0 = (m != float("-inf")) | (s != 0.0)
    merged_out = torch.where(m_ne__inf_or_s_ne_0, o / s, 0.0)
    merged_lse = torch.where(m_ne__inf_or_s_ne_0, m + torch.log(s), float("-inf"))
    ok = compare("out", out, merged_out, 1e-2)
    ok &= compare("lse", lse, merged_lse, 1e-4)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
