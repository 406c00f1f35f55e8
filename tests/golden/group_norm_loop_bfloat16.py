# group_norm / rows / forward / bfloat16
#
# Printed by fusedreduce from Moments. Change that, not this file.
#   state   n: Sum of 1.0;  r: First of x;  d1: Sum of x - r;  mean: Reference of r + d1 / n
#   state   e1: Sum of x - mean;  e2: Sum of (x - mean) ** 2
#   r.mean = mean + e1 / n
#   r.var = (e2 - e1 * e1 / n) / n
#   y = (x - r.mean) * rsqrt(r.var + 1e-05) * weight + bias
#   proved  Moments over the reals (certificate 7399a3)
#   plan    one program a row, 2 passes, BLOCK 1024, 4 warps
#   moves   reads x, weight, bias once a pass, writes y

import triton
import triton.language as tl


@triton.jit
def square(x):
    return x * x


@triton.jit
def term_d1(x, r):
    return x - r


@triton.jit
def reference_mean(r, d1, n):
    return r + d1 / n


@triton.jit
def old_or_new_mean(old_n, new_mean, old_mean):
    return tl.where(old_n == 0.0, new_mean, old_mean)


@triton.jit
def term_e1(x, mean):
    return x - mean


@triton.jit
def correct_e1(e1, old_n, old_mean, new_mean):
    return e1 + old_n * (old_mean - new_mean)


@triton.jit
def term_e2(x, mean):
    return square(x - mean)


@triton.jit
def correct_e2(e2, old_e1, old_mean, new_mean, old_n):
    old_mean_minus_new_mean = old_mean - new_mean
    return (
        e2
        + 2.0 * old_e1 * old_mean_minus_new_mean
        + old_n * (old_mean_minus_new_mean * old_mean_minus_new_mean)
    )


@triton.jit
def finish_mean(mean, e1, n):
    return mean + e1 / n


@triton.jit
def finish_var(e2, e1, n):
    return (e2 - e1 * e1 / n) / n


@triton.jit
def group_norm(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    N,
    C1,
    R1,
    x_row_stride_0,
    x_row_stride_1,
    x_column_stride_0,
    weight_row_stride_1,
    bias_row_stride_1,
    y_row_stride_0,
    y_row_stride_1,
    y_column_stride_0,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_1 = row % R1
    row_0 = row // R1
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    r = tl.load(x_ptr + row_0 * x_row_stride_0 + row_1 * x_row_stride_1).to(tl.float32)
    n = tl.full((), 0.0, tl.float32)
    d1 = tl.full((), 0.0, tl.float32)
    mean = tl.full((), 0.0, tl.float32)
    e1 = tl.full((), 0.0, tl.float32)
    e2 = tl.full((), 0.0, tl.float32)
    for start in range(0, N, BLOCK):
        j = start + column  # (BLOCK,)
        column_1 = j % C1  # (BLOCK,)
        column_0 = j // C1  # (BLOCK,)
        inside = j < N  # (BLOCK,)
        x = tl.load(
            x_ptr
            + row_0 * x_row_stride_0
            + row_1 * x_row_stride_1
            + column_0 * x_column_stride_0
            + column_1,
            mask=inside,
            other=0.0,
        ).to(tl.float32)
        n_new = tl.cast(tl.minimum(start + BLOCK, N), tl.float32)
        d1_new = d1 + tl.sum(tl.where(inside, term_d1(x, r), 0.0), 0)
        mean_new = reference_mean(r, d1_new, n_new)
        mean_old = old_or_new_mean(n, mean_new, mean)
        e1_new = correct_e1(e1, n, mean_old, mean_new)
        e1_new += tl.sum(tl.where(inside, term_e1(x, mean_new), 0.0), 0)
        e2 = correct_e2(e2, e1, mean_old, mean_new, n)
        e2 += tl.sum(tl.where(inside, term_e2(x, mean_new), 0.0), 0)
        n = n_new
        d1 = d1_new
        mean = mean_new
        e1 = e1_new
    r_mean = finish_mean(mean, e1, n)
    var = finish_var(e2, e1, n)
    rsqrt_var_plus_1e_05 = tl.rsqrt(var + 1e-05)
    for start in range(0, N, BLOCK):
        j = start + column  # (BLOCK,)
        column_1 = j % C1  # (BLOCK,)
        column_0 = j // C1  # (BLOCK,)
        inside = j < N  # (BLOCK,)
        x = tl.load(
            x_ptr
            + row_0 * x_row_stride_0
            + row_1 * x_row_stride_1
            + column_0 * x_column_stride_0
            + column_1,
            mask=inside,
            other=0.0,
        ).to(tl.float32)
        weight = tl.load(
            weight_ptr + row_1 * weight_row_stride_1 + column_0, mask=inside, other=0.0
        ).to(tl.float32)
        bias = tl.load(bias_ptr + row_1 * bias_row_stride_1 + column_0, mask=inside, other=0.0).to(
            tl.float32
        )
        y = (x - r_mean) * rsqrt_var_plus_1e_05 * weight + bias  # (BLOCK,)
        tl.store(
            y_ptr
            + row_0 * y_row_stride_0
            + row_1 * y_row_stride_1
            + column_0 * y_column_stride_0
            + column_1,
            y,
            mask=inside,
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
    R0, R1, C0, C1 = 3, 2, 3, 200
    M = R0 * R1
    N = C0 * C1
    x = torch.randn(R0, R1, C0, C1, dtype=torch.bfloat16)
    weight = torch.randn(1, R1, C0, 1, dtype=torch.bfloat16)
    bias = torch.randn(1, R1, C0, 1, dtype=torch.bfloat16)
    y = torch.full((R0, R1, C0, C1), float("nan"), dtype=torch.bfloat16)
    group_norm[(M,)](
        x,
        weight,
        bias,
        y,
        N,
        C1,
        R1,
        x.stride(0),
        x.stride(1),
        x.stride(2),
        weight.stride(1),
        bias.stride(1),
        y.stride(0),
        y.stride(1),
        y.stride(2),
        BLOCK=1024,
        num_warps=4,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    x = x.double().flatten(2)
    weight = weight.double().expand(-1, -1, C0, C1).flatten(2)
    bias = bias.double().expand(-1, -1, C0, C1).flatten(2)
    n = torch.tensor(float(N))
    r = x[..., :1]
    d1 = (x - r).sum(-1, keepdim=True)
    mean = r + d1 / n
    e1 = (x - mean).sum(-1, keepdim=True)
    e2 = ((x - mean) ** 2).sum(-1, keepdim=True)
    r_mean = mean + e1 / n
    var = (e2 - e1 * e1 / n) / n
    ok = compare("y", y.flatten(2), (x - r_mean) * torch.rsqrt(var + 1e-05) * weight + bias, 1e-2)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
