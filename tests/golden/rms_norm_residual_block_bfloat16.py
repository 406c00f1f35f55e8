# rms_norm_residual / rows / forward / bfloat16
#
# Printed by fusedreduce from Mean. Change that, not this file.
#   state   n: Sum of 1.0;  total: Sum of x
#   mean.value = total / n
#   y = weight * ((x + residual) * rsqrt(mean.value + eps)).to(bfloat16)
#   h = x + residual
#   proved  Mean over the reals (certificate 4c2dc4)
#   plan    one program a row, the row in one block, BLOCK 2048, 2 warps
#   moves   reads x, residual, weight once, writes y, h

import triton
import triton.language as tl


@triton.jit
def finish(total, n):
    return total / n


@triton.jit
def rms_norm_residual(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    h_ptr,
    eps,
    N,
    x_row_stride,
    residual_row_stride,
    y_row_stride,
    h_row_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    x = tl.load(x_ptr + row * x_row_stride + column).to(tl.float32)  # (BLOCK,)
    residual = tl.load(residual_ptr + row * residual_row_stride + column).to(tl.float32)  # (BLOCK,)
    weight = tl.load(weight_ptr + column).to(tl.float32)  # (BLOCK,)
    n = tl.cast(N, tl.float32)
    h = x + residual  # (BLOCK,)
    mean_x = h * h  # (BLOCK,)
    total = tl.sum(mean_x, 0)
    mean = finish(total, n)
    scale = tl.rsqrt(mean + eps)
    y = weight * (h * scale).to(tl.bfloat16).to(tl.float32)  # (BLOCK,)
    tl.store(y_ptr + row * y_row_stride + column, y)
    tl.store(h_ptr + row * h_row_stride + column, h)


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
    M, N = 4, 2048
    x = torch.randn(M, N, dtype=torch.bfloat16)
    residual = torch.randn(M, N, dtype=torch.bfloat16)
    weight = torch.randn(1, N, dtype=torch.bfloat16)
    eps = 0.5
    y = torch.full((M, N), float("nan"), dtype=torch.bfloat16)
    h = torch.full((M, N), float("nan"), dtype=torch.bfloat16)
    rms_norm_residual[(M,)](
        x,
        residual,
        weight,
        y,
        h,
        eps,
        N,
        x.stride(0),
        residual.stride(0),
        y.stride(0),
        h.stride(0),
        BLOCK=2048,
        num_warps=2,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    x = x.double()
    residual = residual.double()
    weight = weight.double()
    h_2 = x + residual
    n = torch.tensor(float(N))
    total = (h_2 * h_2).sum(-1, keepdim=True)
    mean = total / n
    scale = torch.rsqrt(mean + eps)
    ok = compare("y", y, weight * (h_2 * scale).to(torch.bfloat16).to(torch.float64), 1e-2)
    ok &= compare("h", h, h_2, 1e-2)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
