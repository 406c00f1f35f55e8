# layer_norm / rows / forward / float64
#
# Printed by fusedreduce from Moments. Change that, not this file.
#   state   n: Sum of 1.0;  r: First of x;  d1: Sum of x - r;  mean: Reference of r + d1 / n
#   state   e1: Sum of x - mean;  e2: Sum of (x - mean) ** 2
#   r.mean = mean + e1 / n
#   r.var = (e2 - e1 * e1 / n) / n
#   y = (x - r.mean) * rsqrt(r.var + eps) * weight + bias
#   proved  Moments over the reals (certificate 7399a3)
#   plan    one program a row, 2 passes, BLOCK 4096, 8 warps
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
def layer_norm(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    eps: tl.float64,
    N,
    x_row_stride,
    y_row_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    r = tl.load(x_ptr + row * x_row_stride)
    n = tl.full((), 0.0, tl.float64)
    d1 = tl.full((), 0.0, tl.float64)
    mean = tl.full((), 0.0, tl.float64)
    e1 = tl.full((), 0.0, tl.float64)
    e2 = tl.full((), 0.0, tl.float64)
    for start in range(0, N, BLOCK):
        inside = start + column < N  # (BLOCK,)
        x = tl.load(x_ptr + row * x_row_stride + start + column, mask=inside, other=0.0)  # (BLOCK,)
        n_new = tl.cast(tl.minimum(start + BLOCK, N), tl.float64)
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
    rsqrt_var_plus_eps = tl.rsqrt(var + eps)
    for start in range(0, N, BLOCK):
        inside = start + column < N  # (BLOCK,)
        x = tl.load(x_ptr + row * x_row_stride + start + column, mask=inside, other=0.0)  # (BLOCK,)
        weight = tl.load(weight_ptr + start + column, mask=inside, other=0.0)  # (BLOCK,)
        bias = tl.load(bias_ptr + start + column, mask=inside, other=0.0)  # (BLOCK,)
        y = (x - r_mean) * rsqrt_var_plus_eps * weight + bias  # (BLOCK,)
        tl.store(y_ptr + row * y_row_stride + start + column, y, mask=inside)


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
    M, N = 4, 7168
    x = torch.randn(M, N, dtype=torch.float64)
    weight = torch.randn(1, N, dtype=torch.float64)
    bias = torch.randn(1, N, dtype=torch.float64)
    eps = 0.5
    y = torch.full((M, N), float("nan"), dtype=torch.float64)
    layer_norm[(M,)](
        x, weight, bias, y, eps, N, x.stride(0), y.stride(0), BLOCK=4096, num_warps=8, num_stages=3
    )

    torch.set_default_dtype(torch.float64)
    n = torch.tensor(float(N))
    r = x[..., :1]
    d1 = (x - r).sum(-1, keepdim=True)
    mean = r + d1 / n
    e1 = (x - mean).sum(-1, keepdim=True)
    e2 = ((x - mean) ** 2).sum(-1, keepdim=True)
    r_mean = mean + e1 / n
    var = (e2 - e1 * e1 / n) / n
    ok = compare("y", y, (x - r_mean) * torch.rsqrt(var + eps) * weight + bias, 1e-10)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
