# softmax / rows / forward / bfloat16
#
# Printed by fusedreduce from SoftmaxParts. Change that, not this file.
#   state   m: Max of x;  s: Sum of exp(x - m)
#   softmaxparts.m = m
#   softmaxparts.s = s + (m - m)
#   y = exp(x - softmaxparts.m) / softmaxparts.s
#   proved  SoftmaxParts over the reals (certificate 735b98)
#   plan    one program a row, the row in one block, BLOCK 1024, 2 warps
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
def softmax(x_ptr, y_ptr, N, x_row_stride, y_row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    inside = column < N  # (BLOCK,)
    x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
    m = tl.reduce(tl.where(inside, x, float("-inf")), 0, max_propagating)
    m_read = neutral_m(m)
    s = tl.sum(tl.where(inside, term_s(x, m_read), 0.0), 0)
    softmaxparts_s = finish_s(s, m)
    y = tl.exp(x - m) / softmaxparts_s  # (BLOCK,)
    tl.store(y_ptr + row * y_row_stride + column, y, mask=inside)


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
    M, N = 4, 768
    x = torch.randn(M, N, dtype=torch.bfloat16)
    y = torch.full((M, N), float("nan"), dtype=torch.bfloat16)
    softmax[(M,)](x, y, N, x.stride(0), y.stride(0), BLOCK=1024, num_warps=2, num_stages=3)

    torch.set_default_dtype(torch.float64)
    x = x.double()
    m = x.amax(-1, keepdim=True)
    s = torch.exp(x - m).sum(-1, keepdim=True)
    softmaxparts_s = s + (m - m)
    ok = compare("y", y, torch.exp(x - m) / softmaxparts_s, 1e-2)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
