# largest / rows / forward / float32
#
# Printed by fusedreduce from Largest. Change that, not this file.
#   state   m: Max of x;  at: ArgMax of x
#   largest.value = m
#   largest.index = at
#   value = largest.value
#   index = largest.index
#   proved  Largest over the reals (certificate 6d1ced)
#   plan    one program a row, one pass, BLOCK 4096, 8 warps
#   moves   reads x once, writes value, index

import triton
import triton.language as tl


@triton.jit
def max_propagating(a, b):  # NaN if either is, as torch; for tl.reduce
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(
    x_ptr,
    value_ptr,
    index_ptr,
    N,
    x_row_stride,
    value_row_stride,
    index_row_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)  # (BLOCK,)
    m = tl.full((), float("-inf"), tl.float32)
    at_value = tl.full((), float("-inf"), tl.float32)
    at = tl.full((), 9223372036854775807, tl.int64)
    for start in range(0, N, BLOCK):
        j = start + column  # (BLOCK,)
        inside = j < N  # (BLOCK,)
        x = tl.load(x_ptr + row * x_row_stride + j, mask=inside, other=0.0)  # (BLOCK,)
        m_new = tl.maximum(
            m,
            tl.reduce(tl.where(inside, x, float("-inf")), 0, max_propagating),
            propagate_nan=tl.PropagateNan.ALL,
        )
        at_best = tl.reduce(tl.where(inside, x, float("-inf")), 0, max_propagating)
        at_better = (
            (at_best > at_value)
            | (at == 9223372036854775807)
            | ((at_best != at_best) & (at_value == at_value))
        )
        at = tl.where(
            at_better,
            tl.min(tl.where(inside & ((x == at_best) | (x != x)), j, N), 0).to(tl.int64),
            at,
        )
        at_value = tl.where(at_better, at_best, at_value)
        m = m_new
    tl.store(value_ptr + row * value_row_stride, m)
    tl.store(index_ptr + row * index_row_stride, at)


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
    x = torch.randn(M, N)
    value = torch.full((M, 1), float("nan"))
    index = torch.full((M, 1), -1)
    largest[(M,)](
        x,
        value,
        index,
        N,
        x.stride(0),
        value.stride(0),
        index.stride(0),
        BLOCK=4096,
        num_warps=8,
        num_stages=3,
    )

    torch.set_default_dtype(torch.float64)
    x = x.double()
    m = x.amax(-1, keepdim=True)
    at = x.argmax(-1, keepdim=True)
    ok = compare("value", value, m, 1e-4)
    ok &= compare("index", index, at, 0)
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
