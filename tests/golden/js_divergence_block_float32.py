# js_divergence / rows / forward / float32
#
# Printed by fusedreduce from LogSumExp, Total. Change that, not this file.
#   state   m: Max of x;  s: Sum of exp(x - m)
#   state   total: Sum of x
#   logsumexp.value = m + log(s)
#   logsumexp_2.value = m + log(s)
#   total.value = total
#   proved  LogSumExp over the reals (certificate 4a3159)
#   proved  Total over the reals (certificate 483075)
#   plan    one program a row, the row in one block, BLOCK 4096, 4 warps
#   moves   reads p_logits, q_logits once, writes y

import triton
import triton.language as tl


@triton.jit
def isinf(x):
    return tl.abs(x) == float("inf")


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
def js_divergence(
    p_logits_ptr,
    q_logits_ptr,
    y_ptr,
    N,
    p_logits_row_stride,
    q_logits_row_stride,
    y_row_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    inside = column < N  # (BLOCK,)
    p_logits = tl.load(p_logits_ptr + row * p_logits_row_stride + column, mask=inside, other=0.0)
    q_logits = tl.load(q_logits_ptr + row * q_logits_row_stride + column, mask=inside, other=0.0)
    m = tl.max(tl.where(inside, p_logits, float("-inf")), 0)
    m_read = neutral_m(m)
    s = tl.sum(tl.where(inside, term_s(p_logits, m_read), 0.0), 0)
    logsumexp = finish(m, s)
    logsumexp_2_m = tl.max(tl.where(inside, q_logits, float("-inf")), 0)
    logsumexp_2_m_read = neutral_m(logsumexp_2_m)
    logsumexp_2_s = tl.sum(tl.where(inside, term_s(q_logits, logsumexp_2_m_read), 0.0), 0)
    logsumexp_2 = finish(logsumexp_2_m, logsumexp_2_s)
    p = p_logits - logsumexp  # (BLOCK,)
    q = q_logits - logsumexp_2  # (BLOCK,)
    larger = tl.maximum(p, q, propagate_nan=tl.PropagateNan.ALL)  # (BLOCK,)
    chosen = tl.where(isinf(larger), 0.0, larger)  # (BLOCK,)
    m_2 = tl.log(tl.exp(p - chosen) + tl.exp(q - chosen)) + chosen - 0.6931471805599453  # (BLOCK,)
    x = 0.5 * (tl.exp(p) * (p - m_2) + tl.exp(q) * (q - m_2))  # (BLOCK,)
    total = tl.sum(tl.where(inside, x, 0.0), 0)
    tl.store(y_ptr + row * y_row_stride, total)


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
    M, N = 4, 3072
    p_logits = torch.randn(M, N)
    q_logits = torch.randn(M, N)
    y = torch.full((M, 1), float("nan"))
    js_divergence[(M,)](
        p_logits,
        q_logits,
        y,
        N,
        p_logits.stride(0),
        q_logits.stride(0),
        y.stride(0),
        BLOCK=4096,
        num_warps=4,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    p_logits = p_logits.double()
    q_logits = q_logits.double()
    m = p_logits.amax(-1, keepdim=True)
    s = torch.exp(p_logits - m).sum(-1, keepdim=True)
    logsumexp = m + torch.log(s)
    logsumexp_2_m = q_logits.amax(-1, keepdim=True)
    logsumexp_2_s = torch.exp(q_logits - logsumexp_2_m).sum(-1, keepdim=True)
    logsumexp_2 = logsumexp_2_m + torch.log(logsumexp_2_s)
    p = p_logits - logsumexp
    q = q_logits - logsumexp_2
    larger = torch.maximum(p, q)
    chosen = torch.where(torch.isinf(larger), 0.0, larger)
    m_2 = torch.log(torch.exp(p - chosen) + torch.exp(q - chosen)) + chosen - 0.6931471805599453
    total = (0.5 * (torch.exp(p) * (p - m_2) + torch.exp(q) * (q - m_2))).sum(-1, keepdim=True)
    ok = compare("y", y, total, 1e-4)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
