# log_softmax_first_axis / rows / forward / float32
#
# Printed by fusedreduce from SoftmaxParts. Change that, not this file.
#   state   m: Max of x;  s: Sum of exp(x - m)
#   softmaxparts.m = m
#   softmaxparts.s = s + (m - m)
#   y = x - softmaxparts.m - log(softmaxparts.s)
#   proved  SoftmaxParts over the reals (certificate 735b98)
#   plan    64 rows a program, the row in one block, BLOCK 64, 4 warps
#   moves   reads x once, writes y

import triton
import triton.language as tl


@triton.jit
def max_propagating(a, b):  # NaN if either is, as torch; for tl.reduce
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def neutral_m(m):
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def term_s(x, m):
    return tl.exp(x - m)


@triton.jit
def finish_s(s, m):
    return s + (m - m)


@triton.jit
def log_softmax_first_axis(
    x_ptr,
    y_ptr,
    M,
    N,
    x_row_stride,
    x_column_stride,
    y_row_stride,
    y_column_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    row_inside = row < M  # (ROWS,)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    inside = row_inside[:, None] & (column < N)[None, :]  # (ROWS, BLOCK)
    x = tl.load(
        x_ptr + row[:, None] * x_row_stride + column[None, :] * x_column_stride,
        mask=inside,
        other=0.0,
    )
    m = tl.reduce(tl.where(inside, x, float("-inf")), 1, max_propagating)  # (ROWS,)
    m_read = neutral_m(m)  # (ROWS,)
    s = tl.sum(tl.where(inside, term_s(x, m_read[:, None]), 0.0), 1)  # (ROWS,)
    softmaxparts_s = finish_s(s, m)  # (ROWS,)
    log_s = tl.log(softmaxparts_s)  # (ROWS,)
    y = x - m[:, None] - log_s[:, None]  # (ROWS, BLOCK)
    tl.store(
        y_ptr + row[:, None] * y_row_stride + column[None, :] * y_column_stride, y, mask=inside
    )


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
    M, N = 65, 48
    x = torch.randn(N, M).t()
    y = torch.full((N, M), float("nan")).t()
    log_softmax_first_axis[(triton.cdiv(M, 64),)](
        x,
        y,
        M,
        N,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        ROWS=64,
        BLOCK=64,
        num_warps=4,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    x = x.double()
    m = x.amax(-1, keepdim=True)
    s = torch.exp(x - m).sum(-1, keepdim=True)
    softmaxparts_s = s + (m - m)
    ok = compare("y", y, x - m - torch.log(softmaxparts_s), 1e-4)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
