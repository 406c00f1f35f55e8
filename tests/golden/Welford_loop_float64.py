# welford / rows / forward / float64
#
# Printed by fusedreduce from Welford. Change that, not this file.
#   state   n: identity 0.0;  mean: identity 0.0;  m2: identity 0.0
#   welford.mean = mean
#   welford.var = m2 / n
#   mean = welford.mean
#   var = welford.var
#   proved  Welford over the reals (certificate 2d96a7)
#   plan    one program a row, one pass, BLOCK 256, 4 warps
#   moves   reads x once, writes mean, var

import triton
import triton.language as tl


@triton.jit
def merge_welford(a_n, a_mean, a_m2, b_n, b_mean, b_m2):
    n = a_n + b_n
    d = b_mean - a_mean
    w = tl.where(n > 0, b_n / n, 0.0)
    return n, a_mean + d * w, a_m2 + b_m2 + d * d * a_n * w


@triton.jit
def merge_welford_present(a_present, a_n, a_mean, a_m2, b_present, b_n, b_mean, b_m2):
    n, mean, m2 = merge_welford(a_n, a_mean, a_m2, b_n, b_mean, b_m2)
    n = tl.where(b_present == 0, a_n, n)
    n = tl.where(a_present == 0, b_n, n)
    mean = tl.where(b_present == 0, a_mean, mean)
    mean = tl.where(a_present == 0, b_mean, mean)
    m2 = tl.where(b_present == 0, a_m2, m2)
    m2 = tl.where(a_present == 0, b_m2, m2)
    return a_present | b_present, n, mean, m2


@triton.jit
def finish_var(m2, n):
    return m2 / n


@triton.jit
def welford(
    x_ptr, mean_ptr, var_ptr, N, x_row_stride, mean_row_stride, var_row_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    n = tl.full((), 0.0, tl.float64)
    mean = tl.full((), 0.0, tl.float64)
    m2 = tl.full((), 0.0, tl.float64)
    for start in range(0, N, BLOCK):
        inside = start + column < N  # (BLOCK,)
        x = tl.load(x_ptr + row * x_row_stride + start + column, mask=inside, other=0.0)  # (BLOCK,)
        n_lift = tl.where(inside, 1.0, 0.0).to(tl.float64)  # (BLOCK,)
        mean_lift = tl.where(inside, x, 0.0).to(tl.float64)  # (BLOCK,)
        m2_lift = tl.full((BLOCK,), 0.0, tl.float64)  # (BLOCK,)
        present = inside.to(tl.int32)  # (BLOCK,)
        _, n_tile, mean_tile, m2_tile = tl.reduce(
            (present, n_lift, mean_lift, m2_lift), 0, merge_welford_present
        )
        n_new, mean_new, m2_new = merge_welford(n, mean, m2, n_tile, mean_tile, m2_tile)
        first = tl.cast(start, tl.int64) == 0
        n = tl.where(first, n_tile, n_new)
        mean = tl.where(first, mean_tile, mean_new)
        m2 = tl.where(first, m2_tile, m2_new)
    var = finish_var(m2, n)
    tl.store(mean_ptr + row * mean_row_stride, mean)
    tl.store(var_ptr + row * var_row_stride, var)


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
    M, N = 4, 448
    x = torch.randn(M, N, dtype=torch.float64)
    mean = torch.full((M, 1), float("nan"), dtype=torch.float64)
    var = torch.full((M, 1), float("nan"), dtype=torch.float64)
    welford[(M,)](
        x,
        mean,
        var,
        N,
        x.stride(0),
        mean.stride(0),
        var.stride(0),
        BLOCK=256,
        num_warps=4,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)

    def lift(x):
        return torch.tensor(1.0), x, torch.tensor(0.0)

    def merge(a_n, a_mean, a_m2, b_n, b_mean, b_m2):
        n = a_n + b_n
        d = b_mean - a_mean
        w = torch.where(n > 0, b_n / n, 0.0)
        return n, a_mean + d * w, a_m2 + b_m2 + d * d * a_n * w

    state = lift(x[..., :1])
    for column in range(1, N):
        state = merge(*state, *lift(x[..., column : column + 1]))
    n, welford_mean, m2 = state
    welford_var = m2 / n
    ok = compare("mean", mean, welford_mean, 1e-10)
    ok &= compare("var", var, welford_var, 1e-10)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
