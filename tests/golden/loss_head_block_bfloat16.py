# loss_head / rows / forward / bfloat16, int64
#
# Printed by fusedreduce from Entropy_Largest_Target. Change that, not this file.
#   state   m: Max of x;  s: Sum of exp(x - m);  t: Sum of (x - m) * exp(x - m);  at: ArgMax of x
#   state   Target_t: Sum of where(j == target, x, 0.0)
#   r.Entropy.lse = m + log(s)
#   r.Entropy.entropy = log(s) - t / s
#   r.Largest.value = m
#   r.Largest.index = at
#   proved  Entropy_Largest_Target over the reals (certificate d7c994)
#   plan    2 rows a program, the row in one block, BLOCK 1024, 2 warps
#   moves   reads logits, target once, writes loss, entropy, right

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
def term_t(x, m):
    x_minus_m = x - m
    return x_minus_m * tl.exp(x_minus_m)


@triton.jit
def term_Target_t(j, target, x):
    return tl.where(j == target, x, 0.0)


@triton.jit
def finish_Entropy_lse(m, s):
    return m + tl.log(s)


@triton.jit
def finish_Entropy_entropy(s, t):
    return tl.log(s) - t / s


@triton.jit
def loss_head(
    logits_ptr,
    target_ptr,
    loss_ptr,
    entropy_ptr,
    right_ptr,
    M,
    N,
    logits_row_stride,
    target_row_stride,
    loss_row_stride,
    entropy_row_stride,
    right_row_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    row_inside = row < M  # (ROWS,)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    inside = row_inside[:, None] & (column < N)[None, :]  # (ROWS, BLOCK)
    logits = tl.load(
        logits_ptr + row[:, None] * logits_row_stride + column[None, :], mask=inside, other=0.0
    ).to(tl.float32)
    target = tl.load(target_ptr + row * target_row_stride, mask=row_inside, other=0)  # (ROWS,)
    m = tl.reduce(tl.where(inside, logits, float("-inf")), 1, max_propagating)  # (ROWS,)
    m_read = neutral_m(m)  # (ROWS,)
    s = tl.sum(tl.where(inside, term_s(logits, m_read[:, None]), 0.0), 1)  # (ROWS,)
    t = tl.sum(
        tl.where(inside & (logits != float("-inf")), term_t(logits, m_read[:, None]), 0.0), 1
    )
    at = tl.min(
        tl.where(inside & ((logits == m[:, None]) | (logits != logits)), column[None, :], N), 1
    ).to(tl.int64)
    Target_t = tl.sum(
        tl.where(inside, term_Target_t(column[None, :], target[:, None], logits), 0.0), 1
    )
    Entropy_lse = finish_Entropy_lse(m, s)  # (ROWS,)
    entropy = finish_Entropy_entropy(s, t)  # (ROWS,)
    log_p = Target_t - Entropy_lse  # (ROWS,)
    loss = -log_p  # (ROWS,)
    tl.store(loss_ptr + row * loss_row_stride, loss, mask=row_inside)
    tl.store(entropy_ptr + row * entropy_row_stride, entropy, mask=row_inside)
    right = at == target  # (ROWS,)
    tl.store(right_ptr + row * right_row_stride, right, mask=row_inside)


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
    M, N = 3, 768
    logits = torch.randn(M, N, dtype=torch.bfloat16)
    target = torch.randint(N, (M, 1))
    loss = torch.full((M, 1), float("nan"), dtype=torch.bfloat16)
    entropy = torch.full((M, 1), float("nan"), dtype=torch.bfloat16)
    right = torch.randint(2, (M, 1), dtype=torch.bool)
    loss_head[(triton.cdiv(M, 2),)](
        logits,
        target,
        loss,
        entropy,
        right,
        M,
        N,
        logits.stride(0),
        target.stride(0),
        loss.stride(0),
        entropy.stride(0),
        right.stride(0),
        ROWS=2,
        BLOCK=1024,
        num_warps=2,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    logits = logits.double()
    j_2 = torch.arange(N)
    m = logits.amax(-1, keepdim=True)
    s = torch.exp(logits - m).sum(-1, keepdim=True)
    t = ((logits - m) * torch.exp(logits - m)).sum(-1, keepdim=True)
    at = logits.argmax(-1, keepdim=True)
    Target_t = torch.where(j_2 == target, logits, 0.0).sum(-1, keepdim=True)
    log_s = torch.log(s)
    Entropy_lse = m + log_s
    Entropy_entropy = log_s - t / s
    log_p = Target_t - Entropy_lse
    ok = compare("loss", loss, -log_p, 1e-2)
    ok &= compare("entropy", entropy, Entropy_entropy, 1e-2)
    ok &= compare("right", right, at == target, 0)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
