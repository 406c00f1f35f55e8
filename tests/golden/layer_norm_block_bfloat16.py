# layer_norm / rows / forward / bfloat16
#
# Printed by fusedreduce from Moments. Change that, not this file.
#   state   n: Sum of 1.0;  r: First of x;  d1: Sum of x - r;  mean: Reference of r + d1 / n
#   state   e1: Sum of x - mean;  e2: Sum of (x - mean) ** 2
#   r.mean = mean + e1 / n
#   r.var = (e2 - e1 * e1 / n) / n
#   y = (x - r.mean) * rsqrt(r.var + eps) * weight + bias
#   proved  Moments over the reals (certificate 7399a3)
#   plan    one program a row, the row in one block, BLOCK 4096, 4 warps
#   moves   reads x, weight, bias once, writes y

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
def term_e1(x, mean):
    return x - mean


@triton.jit
def term_e2(x, mean):
    return square(x - mean)


@triton.jit
def finish_mean(mean, e1, n):
    return mean + e1 / n


@triton.jit
def finish_var(e2, e1, n):
    return (e2 - e1 * e1 / n) / n


@triton.jit
def layer_norm(
    x_ptr, weight_ptr, bias_ptr, y_ptr, eps, N, x_row_stride, y_row_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    x = tl.load(x_ptr + row * x_row_stride + column).to(tl.float32)  # (BLOCK,)
    weight = tl.load(weight_ptr + column).to(tl.float32)  # (BLOCK,)
    bias = tl.load(bias_ptr + column).to(tl.float32)  # (BLOCK,)
    r = tl.load(x_ptr + row * x_row_stride).to(tl.float32)
    n = tl.cast(N, tl.float32)
    d1 = tl.sum(term_d1(x, r), 0)
    mean = reference_mean(r, d1, n)
    e1 = tl.sum(term_e1(x, mean), 0)
    e2 = tl.sum(term_e2(x, mean), 0)
    r_mean = finish_mean(mean, e1, n)
    var = finish_var(e2, e1, n)
    rsqrt_var_plus_eps = tl.rsqrt(var + eps)
    y = (x - r_mean) * rsqrt_var_plus_eps * weight + bias  # (BLOCK,)
    tl.store(y_ptr + row * y_row_stride + column, y)


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
    x = torch.randn(M, N, dtype=torch.bfloat16)
    weight = torch.randn(1, N, dtype=torch.bfloat16)
    bias = torch.randn(1, N, dtype=torch.bfloat16)
    eps = 0.5
    y = torch.full((M, N), float("nan"), dtype=torch.bfloat16)
    layer_norm[(M,)](
        x, weight, bias, y, eps, N, x.stride(0), y.stride(0), BLOCK=4096, num_warps=4, num_stages=3
    )

    torch.set_default_dtype(torch.float64)
    x = x.double()
    weight = weight.double()
    bias = bias.double()
    n = torch.tensor(float(N))
    r = x[..., :1]
    d1 = (x - r).sum(-1, keepdim=True)
    mean = r + d1 / n
    e1 = (x - mean).sum(-1, keepdim=True)
    e2 = ((x - mean) ** 2).sum(-1, keepdim=True)
    r_mean = mean + e1 / n
    var = (e2 - e1 * e1 / n) / n
    ok = compare("y", y, (x - r_mean) * torch.rsqrt(var + eps) * weight + bias, 1e-2)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
