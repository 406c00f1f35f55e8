"""A norm with its residual as one kernel: its text, what its backward needs, its digits.

Between two blocks of a transformer stands h = x + residual, y = layer_norm(h), and both are needed.
Below it is written once, in plain PyTorch with one declared reduction. 4096 rows of 256 in
bfloat16, their mean far from 0 as that of a residual stream is. Errors are largest differences
beside float64:

Prints:

    the second half of its kernel:
        n = tl.cast(N, tl.float32)  # (ROWS,)
        r = x_first + residual_first  # (ROWS,)
        r_x = x + residual  # (ROWS, BLOCK)
        d1 = tl.sum(term_d1(r_x, r[:, None]), 1)  # (ROWS,)
        mean = reference_mean(r, d1, n)  # (ROWS,)
        e1 = tl.sum(term_e1(r_x, mean[:, None]), 1)  # (ROWS,)
        e2 = tl.sum(term_e2(r_x, mean[:, None]), 1)  # (ROWS,)
        r_mean = finish_mean(mean, e1, n)  # (ROWS,)
        var = finish_var(e2, e1, n)  # (ROWS,)
        rsqrt_var_plus_eps = tl.rsqrt(var + eps)  # (ROWS,)
        y = (r_x - r_mean[:, None]) * rsqrt_var_plus_eps[:, None] * weight[None, :] + bias[None, :]
        tl.store(y_ptr + row[:, None] * y_row_stride + column[None, :], y, mask=inside)
        tl.store(h_ptr + row[:, None] * h_row_stride + column[None, :], r_x, mask=inside)

    plain torch keeps 2,113,536 bytes for its backward, its arguments aside
    one kernel keeps    81,920 bytes for its backward, its arguments aside

                         y         h        dx        dr   dweight     dbias
    largest          14.30     26.66      9.72      9.72    169.58    168.11
    plain torch      2e-01     6e-02     5e-02     5e-02     2e+01     2e+01
    one kernel       3e-02     6e-02     3e-02     3e-02     5e-01     5e-01

    fr.ops.rms_norm(x, ..., residual=r) answers y and h: (4096, 256), (4096, 256)
    fr.nn: LayerNorm((256,), eps=1e-05, elementwise_affine=True, bias=True)
"""

import torch
import torch.nn.functional as F

import fusedreduce as fr
from fusedreduce.reductions import Moments

ROWS, COLUMNS, EPS = 4096, 256, 1e-5


@fr.fuse
def add_and_norm(x, residual, weight, bias, eps):
    h = x + residual  # rounded where it is written, not where it is normalised
    r = fr.reduce(Moments, h, dim=-1, keepdim=True)
    y = (h - r["mean"]) * torch.rsqrt(r["var"] + eps) * weight + bias
    return y, h


def plain(x, residual, weight, bias, eps):
    h = x + residual
    return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h


def kept_bytes(fn, args):
    """Bytes that a backward keeps beside the arguments themselves."""
    given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = fn(*args)  # alive until the count is made
    count = sum(n for place, n in kept.items() if place not in given)
    return count, results


def results_and_gradients(fn, args, ups):
    tensors = [a.detach().requires_grad_() for a in args[:-1]]
    results = fn(*tensors, args[-1])
    gradients = torch.autograd.grad(results, tensors, [u.to(results[0]) for u in ups])
    return [*(t.detach() for t in results), *gradients]


def main():
    torch.manual_seed(0)
    x, residual, up_y, up_h = torch.randn(4, ROWS, COLUMNS).bfloat16()
    weight, bias = torch.randn(2, COLUMNS).bfloat16()
    args = x, residual + 20, weight, bias, EPS

    source = add_and_norm.source(*args)
    kernel = source.split("@triton.jit")[-1].split("\n\n\n")[0]
    print("the second half of its kernel:")
    print("\n".join(kernel.splitlines()[-13:]))

    print()
    tensors = [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
    for name, fn in {"plain torch": plain, "one kernel": add_and_norm}.items():
        count, _ = kept_bytes(fn, tensors)
        print(f"{name} keeps {count:>9,} bytes for its backward, its arguments aside")

    wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
    right = results_and_gradients(plain, wide, (up_y, up_h))
    print(f"\n{'':<12}" + "".join(f"{n:>10}" for n in ("y", "h", "dx", "dr", "dweight", "dbias")))
    print(f"{'largest':<12}" + "".join(f"{float(t.abs().max()):>10.2f}" for t in right))
    for name, fn in {"plain torch": plain, "one kernel": add_and_norm}.items():
        found = results_and_gradients(fn, args, (up_y, up_h))
        errors = [float((a - b).abs().max()) for a, b in zip(found, right, strict=True)]
        print(f"{name:<12}" + "".join(f"{error:>10.0e}" for error in errors))

    # Ready-made: the operation, and a module that takes torch.nn's state dict.
    y, h = fr.ops.rms_norm(x, (COLUMNS,), weight, residual=residual)
    norm = fr.nn.LayerNorm(COLUMNS)
    norm.load_state_dict(torch.nn.LayerNorm(COLUMNS).state_dict())
    print(
        f"\nfr.ops.rms_norm(x, ..., residual=r) answers y and h: {tuple(y.shape)}, {tuple(h.shape)}"
    )
    print(f"fr.nn: {norm}")


if __name__ == "__main__":
    main()
