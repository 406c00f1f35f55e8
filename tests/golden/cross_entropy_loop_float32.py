# cross_entropy / rows / forward / float32, int64
#
# Printed by fusedreduce from Picked. Change that, not this file.
#   state   m: Max of x;  s: Sum of exp(x - m);  picked: Sum of where(j == target, x, 0.0)
#   state   weight: Sum of where(j == target, w, 0.0);  weights: Sum of w
#   r.loss = (log(s) - (picked - m)) * weight
#   r.smooth = (log(s) + m) * weights - weighted
#   r.lse = log(s) + m
#   y = where(target != -100, (1.0 - smoothing) * r.loss + smoothing / 5000 * r.smooth, 0.0)
#   proved  Picked over the reals (certificate fb989a)
#   plan    one program a row, one pass, BLOCK 4096, 8 warps
#   moves   reads logits, target, weight once, writes y, y_2

import triton
import triton.language as tl


@triton.jit
def odd(x, r):  # the odd extension of r = f(|x|); x itself at 0, -0 and NaN
    return tl.where(x > 0, r, tl.where(x < 0, -r, x))


@triton.jit
def tanh(x):  # a rational function below 0.625 (Cephes), 1 - 2 / (exp(2 |x|) + 1) above
    a = tl.abs(x)
    z = x * x
    if x.dtype == tl.float64:
        p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z
        q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z
        r = (p - 1.61468768441708447952e3) / (q + 4.84406305325125486048e3)
    else:
        r = (-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2
        r = (r * z + 1.33314422036e-1) * z - 3.33332819422e-1
    return tl.where(a < 0.625, x * (1.0 + z * r), odd(x, 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)))


@triton.jit
def neutral_m(m):
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def old_or_new_m(old_m, new_m):
    return tl.where(
        old_m == float("-inf"), new_m, tl.where(tl.abs(old_m) == float("inf"), 0.0, old_m)
    )


@triton.jit
def term_s(x, m):
    return tl.exp(x - m)


@triton.jit
def correct_s(s, old_m, new_m):
    return s * tl.exp(old_m - new_m)


@triton.jit
def term_picked(j, target, x):
    return tl.where(j == target, x, 0.0)


@triton.jit
def term_weight(j, target, w):
    return tl.where(j == target, w, 0.0)


@triton.jit
def term_weighted(x, w):
    return x * w


@triton.jit
def finish_loss(s, picked, m, weight):
    return (tl.log(s) - (picked - m)) * weight


@triton.jit
def finish_smooth(s, m, weights, weighted):
    return (tl.log(s) + m) * weights - weighted


@triton.jit
def finish_lse(s, m):
    return tl.log(s) + m


@triton.jit
def cross_entropy(
    logits_ptr,
    target_ptr,
    weight_ptr,
    y_ptr,
    y_2_ptr,
    smoothing,
    z,
    cap,
    scale,
    N,
    logits_row_stride,
    target_row_stride,
    y_row_stride,
    y_2_row_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    target = tl.load(target_ptr + row * target_row_stride)
    m = tl.full((), float("-inf"), tl.float32)
    s = tl.full((), 0.0, tl.float32)
    picked = tl.full((BLOCK,), 0.0, tl.float32)
    r_weight = tl.full((BLOCK,), 0.0, tl.float32)
    weights = tl.full((BLOCK,), 0.0, tl.float32)
    weighted = tl.full((BLOCK,), 0.0, tl.float32)
    for start in range(0, N, BLOCK):
        j = start + column  # (BLOCK,)
        inside = j < N  # (BLOCK,)
        logits = tl.load(logits_ptr + row * logits_row_stride + j, mask=inside, other=0.0)
        weight = tl.load(weight_ptr + j, mask=inside, other=0.0)  # (BLOCK,)
        x = tanh(logits * scale / cap) * cap  # (BLOCK,)
        m_new = tl.maximum(m, tl.max(tl.where(inside, x, float("-inf")), 0))
        m_read = neutral_m(m_new)
        m_old = old_or_new_m(m, m_read)
        s = correct_s(s, m_old, m_read) + tl.sum(tl.where(inside, term_s(x, m_read), 0.0), 0)
        picked += tl.where(inside, term_picked(j, target, x), 0.0)
        r_weight += tl.where(inside, term_weight(j, target, weight), 0.0)
        weights += tl.where(inside, weight, 0.0)
        weighted += tl.where(inside, term_weighted(x, weight), 0.0)
        m = m_new
    picked = tl.sum(picked, 0)
    r_weight = tl.sum(r_weight, 0)
    weights = tl.sum(weights, 0)
    weighted = tl.sum(weighted, 0)
    loss = finish_loss(s, picked, m, r_weight)
    smooth = finish_smooth(s, m, weights, weighted)
    lse = finish_lse(s, m)
    counted = target != -100
    loss_2 = (1.0 - smoothing) * loss + smoothing / 5000.0 * smooth
    y = tl.where(counted, loss_2, 0.0)
    tl.store(y_ptr + row * y_row_stride, y)
    y_2 = tl.where(counted, z * lse * lse, 0.0)
    tl.store(y_2_ptr + row * y_2_row_stride, y_2)


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
    logits = torch.randn(M, N)
    target = torch.randint(N, (M, 1))
    weight = torch.randn(1, N)
    smoothing = 0.5
    z = 0.25
    cap = 0.75
    scale = 0.125
    y = torch.full((M, 1), float("nan"))
    y_2 = torch.full((M, 1), float("nan"))
    cross_entropy[(M,)](
        logits,
        target,
        weight,
        y,
        y_2,
        smoothing,
        z,
        cap,
        scale,
        N,
        logits.stride(0),
        target.stride(0),
        y.stride(0),
        y_2.stride(0),
        BLOCK=4096,
        num_warps=8,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    logits = logits.double()
    weight = weight.double()
    j_2 = torch.arange(N)
    x = torch.tanh(logits * scale / cap) * cap
    j_eq_target = j_2 == target
    m = x.amax(-1, keepdim=True)
    s = torch.exp(x - m).sum(-1, keepdim=True)
    picked = torch.where(j_eq_target, x, 0.0).sum(-1, keepdim=True)
    r_weight = torch.where(j_eq_target, weight, 0.0).sum(-1, keepdim=True)
    weights = weight.sum(-1, keepdim=True)
    weighted = (x * weight).sum(-1, keepdim=True)
    log_s = torch.log(s)
    log_s_plus_m = log_s + m
    loss = (log_s - (picked - m)) * r_weight
    smooth = log_s_plus_m * weights - weighted
    counted = target != -100
    loss_2 = (1.0 - smoothing) * loss + smoothing / 5000 * smooth
    ok = compare("y", y, torch.where(counted, loss_2, 0.0), 1e-4)
    ok &= compare("y_2", y_2, torch.where(counted, z * log_s_plus_m * log_s_plus_m, 0.0), 1e-4)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
