# log_sum_exp / rows / forward / float32
#
# Printed by fusedreduce from LogSumExp. Change that, not this file.
#   state   m: Max of x;  s: Sum of exp(x - m)
#   logsumexp.value = m + log(s)
#   y = logsumexp.value
#   proved  LogSumExp over the reals (certificate 4a3159)
#   plan    one program a row, the row in one block, BLOCK 4096, 4 warps
#   moves   reads x once, writes y

import triton
import triton.language as tl


@triton.jit
def neutral_m(m):
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def term_s(x, m):
    return tl.exp(x - m)


@triton.jit
def finish(m, s):
    return m + tl.log(s)


@triton.jit
def log_sum_exp(x_ptr, y_ptr, N, x_row_stride, y_row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    x = tl.load(x_ptr + row * x_row_stride + column)  # (BLOCK,)
    m = tl.max(x, 0)
    m_read = neutral_m(m)
    s = tl.sum(term_s(x, m_read), 0)
    y = finish(m, s)
    tl.store(y_ptr + row * y_row_stride, y)


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
    M, N = 4, 4096
    x = torch.randn(M, N)
    y = torch.full((M, 1), float("nan"))
    log_sum_exp[(M,)](x, y, N, x.stride(0), y.stride(0), BLOCK=4096, num_warps=4, num_stages=3)

    torch.set_default_dtype(torch.float64)
    x = x.double()
    m = x.amax(-1, keepdim=True)
    s = torch.exp(x - m).sum(-1, keepdim=True)
    logsumexp = m + torch.log(s)
    ok = compare("y", y, logsumexp, 1e-4)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
