# three_stages / rows / forward / float64
#
# Printed by fusedreduce from Mean. Change that, not this file.
#   state   n: Sum of 1.0;  total: Sum of x
#   mean.value = total / n
#   mean_2.value = total / n
#   mean_3.value = total / n
#   y = mean_3.value
#   z = (x - mean.value) / sqrt(mean_2.value + 1.0)
#   proved  Mean over the reals (certificate 4c2dc4)
#   plan    4 rows a program, the row in one block, BLOCK 512, 4 warps
#   moves   reads x once, writes y, z

import triton
import triton.language as tl


@triton.jit
def finish(total, n):
    return total / n


@triton.jit
def three_stages(
    x_ptr,
    y_ptr,
    z_ptr,
    M,
    N,
    x_row_stride,
    y_row_stride,
    z_row_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    row_inside = row < M  # (ROWS,)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    inside = row_inside[:, None] & (column < N)[None, :]  # (ROWS, BLOCK)
    x = tl.load(x_ptr + row[:, None] * x_row_stride + column[None, :], mask=inside, other=0.0)
    n = tl.cast(N, tl.float64)  # (ROWS,)
    total = tl.sum(tl.where(inside, x, 0.0), 1)  # (ROWS,)
    mean = finish(total, n)  # (ROWS,)
    centred = x - mean[:, None]  # (ROWS, BLOCK)
    mean_2_x = centred * centred  # (ROWS, BLOCK)
    mean_2_total = tl.sum(tl.where(inside, mean_2_x, 0.0), 1)  # (ROWS,)
    mean_2 = finish(mean_2_total, n)  # (ROWS,)
    scale = tl.sqrt(mean_2 + 1.0)  # (ROWS,)
    z = centred / scale[:, None]  # (ROWS, BLOCK)
    mean_3_x = z * z * z  # (ROWS, BLOCK)
    mean_3_total = tl.sum(tl.where(inside, mean_3_x, 0.0), 1)  # (ROWS,)
    y = finish(mean_3_total, n)  # (ROWS,)
    tl.store(y_ptr + row * y_row_stride, y, mask=row_inside)
    tl.store(z_ptr + row[:, None] * z_row_stride + column[None, :], z, mask=inside)


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
    M, N = 5, 384
    x = torch.randn(M, N, dtype=torch.float64)
    y = torch.full((M, 1), float("nan"), dtype=torch.float64)
    z = torch.full((M, N), float("nan"), dtype=torch.float64)
    three_stages[(triton.cdiv(M, 4),)](
        x,
        y,
        z,
        M,
        N,
        x.stride(0),
        y.stride(0),
        z.stride(0),
        ROWS=4,
        BLOCK=512,
        num_warps=4,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    n = torch.tensor(float(N))
    total = x.sum(-1, keepdim=True)
    mean = total / n
    centred = x - mean
    mean_2_total = (centred * centred).sum(-1, keepdim=True)
    mean_2 = mean_2_total / n
    scale = torch.sqrt(mean_2 + 1.0)
    z_2 = centred / scale
    mean_3_total = (z_2 * z_2 * z_2).sum(-1, keepdim=True)
    mean_3 = mean_3_total / n
    ok = compare("y", y, mean_3, 1e-10)
    ok &= compare("z", z, z_2, 1e-10)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
