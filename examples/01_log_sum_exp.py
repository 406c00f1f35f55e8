"""From a declaration to a kernel: log sum_j exp(x_j), which overflows when written naively.

Prints:

    LogSumExp: proved over the reals, checked at the floating-point edges
      Proved    identity, associativity, faithfulness (s), additivity (s), unit (s), composition
                (s), absence (s), meaning, gradient
      facts     commutative, bounded, gauge-free: the result
      guards    neutral:m, old:m
      hash      a2534f

    naive     tensor([inf, -inf])
    declared  tensor([1000.8620, -999.5924])
    torch     tensor([1000.8620, -999.5924])

    @triton.jit
    def log_softmax(x_ptr, y_ptr, N, x_row_stride, y_row_stride, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, BLOCK)  # (BLOCK,)
        m = tl.full((), float("-inf"), tl.float32)
        s = tl.full((), 0.0, tl.float32)
        for start in range(0, N, BLOCK):
            x = tl.load(x_ptr + row * x_row_stride + start + column)  # (BLOCK,)
            m_new = tl.maximum(m, tl.max(x, 0))
            m_read = neutral_m(m_new)
            m_old = old_or_new_m(m, m_read)
            s = correct_s(s, m_old, m_read) + tl.sum(term_s(x, m_read), 0)
            m = m_new
        logsumexp = finish(m, s)
        for start in range(0, N, BLOCK):
            x = tl.load(x_ptr + row * x_row_stride + start + column)  # (BLOCK,)
            y = x - logsumexp  # (BLOCK,)
            tl.store(y_ptr + row * y_row_stride + start + column, y)
"""

import torch

import fusedreduce as fr


class LogSumExp(fr.Reduction):
    """log sum_j exp(x_j) = m + log s, where s = sum_j exp(x_j - m)."""

    # The reference: the largest score so far. No exponent below ever becomes positive.
    m = fr.Max(lambda x: x)

    # The sum is relative to m. When m grows from old.m to new.m, one multiplication corrects it.
    s = fr.Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )

    def finish(m, s):
        return m + torch.log(s)


# An ordinary function that needs the whole row before it can write its first element.
# `fuse` makes one kernel of it; without `@fr.fuse` it gives the same numbers in many.
@fr.fuse
def log_softmax(x):
    return x - fr.reduce(LogSumExp, x, dim=-1, keepdim=True)


def main():
    print(fr.prove(LogSumExp))

    scores = torch.tensor([[1000.0, 1000.0, 999.0], [-1000.0, -1001.0, -1002.0]])
    print("\nnaive    ", torch.log(torch.exp(scores).sum(-1)))
    print("declared ", fr.reduce(LogSumExp, scores, dim=-1))
    print("torch    ", torch.logsumexp(scores, -1))

    # 131072 scores are too many to hold: the kernel loops, corrects, and reads them a second time.
    # Above this function the printed file has one small helper for each lambda of the declaration.
    source = log_softmax.source(torch.empty(64, 131072))
    kernel = source.split("@triton.jit")[-1].split("\n\n\n")[0]
    print("\n@triton.jit" + kernel)


if __name__ == "__main__":
    main()
