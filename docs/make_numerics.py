"""Writes docs/numerics.md: errors of operations against float64, beside those of plain PyTorch.

Usage: python docs/make_numerics.py [--device cpu] [--impl tiles] [--check]

Writes the section of its device; --check compares instead: the rule, and figures within a factor
of ten, since they differ from one processor to the next.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fusedreduce as fr  # noqa: E402

PAGE = ROOT / "docs" / "numerics.md"
SINGLE, BFLOAT = torch.float32, torch.bfloat16
HEAD = "| what | dtype | torch | ours | ours / torch | allowed |\n" + "| --- " * 6 + "|\n"
FACTOR = 10.0  # figures of two machines agree within it


@dataclass(frozen=True)
class Case:
    """A measurement: the same call of ours and of torch.

    inputs   made in float64, then rounded to the dtype; float64 is asked about the rounded ones
    k        the factor of the accuracy rule: 2 for a value, 3 for a gradient
    """

    name: str
    ours: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: Callable[[torch.dtype], tuple[Tensor, ...]]
    dtypes: tuple[torch.dtype, ...] = (SINGLE, BFLOAT)
    k: float = 2.0


@dataclass(frozen=True)
class Row:
    """Largest errors relative to the largest right value, or to 1e-3 if that is larger."""

    name: str
    dtype: str
    plain: float
    ours: float
    allowed: float

    def line(self) -> str:
        share = self.ours / self.plain if self.plain else math.nan
        ratio = f"{share:.2f}" if math.isfinite(share) else "-"
        cells = (self.name, self.dtype, f"{self.plain:.1e}", f"{self.ours:.1e}", ratio)
        return f"| {' | '.join(cells)} | {self.allowed:.1e} |\n"


# ---- inputs ------------------------------------------------------------------------------------


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def offset(mean: float) -> Callable[[torch.dtype], tuple[Tensor, ...]]:
    """Rows far from 0: a spread of 1, or of 1/16 of the mean where bfloat16 could hold no less."""
    return lambda d: (mean + random(64, 4096) * (mean / 16 if d == BFLOAT else 1.0),)


def certain(p: float) -> Callable[[torch.dtype], tuple[Tensor, ...]]:
    """One class of 32,000 has probability p, before its logit is rounded."""

    def inputs(_: torch.dtype) -> tuple[Tensor, ...]:
        x = torch.zeros(16, 32000, dtype=torch.float64)
        x[:, 5] = math.log(p / (1 - p) * 31999)
        return (x,)

    return inputs


def far_logs(_: torch.dtype) -> tuple[Tensor, ...]:
    """Log-probabilities of which two, of each four, are about -150."""
    far = torch.tensor([0.0, -150.0, 0.0, -150.0], dtype=torch.float64).repeat(64)
    return tuple((random(64, 256) + far).log_softmax(-1) for _ in "qp")


# ---- calls -------------------------------------------------------------------------------------


def slope(fn: Callable[..., Tensor], of: int = 0) -> Callable[..., Tensor]:
    """The gradient of sum fn(...) u with respect to one operand; u is random and fixed."""

    def gradient(*args: Tensor) -> Tensor:
        given = [a.detach().requires_grad_() for a in args]
        y = fn(*given)
        up = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
        return torch.autograd.grad(y, given[of], up)[0]

    return gradient


def labels(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device) % x.shape[-1]


def true_class(loss: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        target = torch.full((len(x),), 5, device=x.device)
        return torch.autograd.grad(loss(x, target, reduction="sum"), x)[0][:, 5]

    return gradient


def mixture(q: Tensor, p: Tensor) -> Tensor:
    """Jensen-Shannon as it is usually written: the mixture in probabilities, then its logarithm."""
    m = (0.5 * (q.exp() + p.exp())).log()
    return 0.5 * (each(F.kl_div)(m, q) + each(F.kl_div)(m, p))


def mixture_of_logs(q: Tensor, p: Tensor) -> Tensor:
    m = torch.logaddexp(q, p) - math.log(2.0)
    return 0.5 * ((q.exp() * (q - m)).sum(-1) + (p.exp() * (p - m)).sum(-1))


def each(kl: Callable[..., Tensor], **options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """KL of every row."""
    call = lambda x, t: kl(x, t, reduction="sum", log_target=True, **options)
    return lambda x, t: torch.stack([call(*pair) for pair in zip(x, t, strict=True)])


def cases(impl: str) -> Iterator[Case]:
    """Every measurement, with an implementation of ours."""

    def by(op: Callable[..., Any], *more: Any, **options: Any) -> Callable[..., Tensor]:
        return lambda *args, **others: op(*args, *more, **options, **others)

    def ours(op: Callable[..., Any], *more: Any, **options: Any) -> Callable[..., Tensor]:
        return by(op, *more, impl=impl, **options)

    variance = lambda op, **o: lambda x: op(x, -1, **o)[0]
    for at in ("1e4", "1e6"):
        mean = float(at)
        yield Case(f"variance, mean {at}", variance(fr.ops.var_mean, impl=impl),
                   variance(torch.var_mean), offset(mean))  # fmt: skip
        norms = ours(fr.ops.layer_norm, (4096,)), by(F.layer_norm, (4096,))
        yield Case(f"layer_norm, mean {at}", *norms, offset(mean))
        yield Case(f"layer_norm, mean {at}, gradient", *map(slope, norms), offset(mean), k=3)
    rows = lambda d: (random(65536, 64), random(64))
    weighted = lambda op, **o: slope(lambda x, w: op(x, (64,), w, **o), 1)
    yield Case("layer_norm, gradient of the weight, 65,536 rows",
               weighted(fr.ops.layer_norm, impl=impl), weighted(F.layer_norm),
               rows, k=3)  # fmt: skip
    far = lambda d: (1e4 + random(64, 4096),)
    yield Case("logsumexp, offset 1e4", ours(fr.ops.logsumexp, -1), by(torch.logsumexp, -1),
               far, (SINGLE,))  # fmt: skip
    loss = lambda op, **o: lambda x: op(x, labels(x), reduction="none", **o)
    entropies = loss(fr.ops.cross_entropy, impl=impl), loss(F.cross_entropy)
    yield Case("cross_entropy, offset 1e4", *entropies, far, (SINGLE,))
    yield Case("cross_entropy, offset 1e4, gradient", *map(slope, entropies), far, (SINGLE,), 3)
    for p in (0.99, 0.999):
        yield Case(f"cross_entropy, gradient of the true class, p = {p}",
                   true_class(ours(fr.ops.cross_entropy)), true_class(F.cross_entropy),
                   certain(p), k=3)  # fmt: skip
    soft = ours(fr.ops.softmax, -1), by(F.softmax, -1)
    yield Case("softmax, 131,072 columns", *soft, lambda d: (3 * random(4, 131072),))
    two = lambda d: (random(256, 4096), random(256, 4096))
    likeness = ours(fr.ops.cosine_similarity), by(F.cosine_similarity)
    yield Case("cosine_similarity", *likeness, two)
    yield Case("cosine_similarity, gradient", *map(slope, likeness), two, k=3)
    yield from divergences(impl)
    yield from attentions(impl)


def divergences(impl: str) -> Iterator[Case]:
    kl = each(fr.ops.kl_div, impl=impl), each(F.kl_div)
    yield Case("kl_div, half of it near -150", *kl, far_logs)
    yield Case("kl_div, half of it near -150, gradient", *map(slope, kl), far_logs, k=3)
    one = lambda q, p: fr.ops.js_div(q, p, reduction="sum", impl=impl)
    js = lambda q, p: torch.stack([one(*pair) for pair in zip(q, p, strict=True)])
    for name, plain in (("log of the mixture", mixture), ("logaddexp", mixture_of_logs)):
        what = f"js_div, half of it near -150; torch: {name}"
        yield Case(what, js, plain, far_logs)
        yield Case(f"{what}, gradient", slope(js), slope(plain), far_logs, k=3)


def attentions(impl: str) -> Iterator[Case]:
    """Causal attention with a slope a head, whose gradient weighs each pair by its distance."""
    made = lambda q, k, v, t: fr.attention(
        q, k, v, is_causal=True, score_mod=lambda s, b, h, i, j: s - t[h] * (i - j), impl=impl
    )
    heads = lambda d: (*(random(1, 2, 1024, 64) for _ in "qkv"), 0.1 * random(2))
    name = "causal attention with slopes"
    yield Case(name, made, sloping, heads)
    both = (SINGLE, BFLOAT)  # in float32 that of the slopes is what is left of sums that cancel
    for of, what, dtypes in ((0, "q", both), (1, "k", both), (3, "the slopes", (BFLOAT,))):
        found, plain = slope(made, of), slope(sloping, of)
        yield Case(f"{name}, gradient of {what}", found, plain, heads, dtypes, k=3)


def sloping(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    j = torch.arange(q.shape[2], device=q.device)
    i = j[:, None]
    scores = q @ k.mT / q.shape[3] ** 0.5 - slopes[:, None, None] * (i - j)
    return scores.masked_fill(i < j, -math.inf).softmax(-1) @ v


# ---- measured ----------------------------------------------------------------------------------


def measured(case: Case, dtype: torch.dtype, device: str) -> Row:
    torch.manual_seed(0)
    args = [a.to(dtype).to(device) for a in case.inputs(dtype)]
    exact = mixture_of_logs if case.plain is mixture else case.plain
    right = exact(*(a.double() for a in args))
    scale = max(1e-3, float(right.abs().max()))
    plain, ours = (float((t.double() - right).abs().max()) / scale
                   for t in (case.plain(*args), case.ours(*args)))  # fmt: skip
    floor = 16 * torch.finfo(SINGLE).eps + torch.finfo(dtype).eps
    allowed = floor + (case.k * plain if math.isfinite(plain) else 0.0)
    return Row(case.name, str(dtype).removeprefix("torch."), plain, ours, allowed)


def table(device: str, impl: str) -> list[Row]:
    torch.set_num_threads(1)
    return [measured(c, d, device) for c in cases(impl) for d in c.dtypes]


def machine(device: str, impl: str) -> str:
    if device == "cuda":
        where = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    else:
        where = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, one thread"
    return f'{where}; `impl="{impl}"`; torch {torch.__version__}, fusedreduce {fr.__version__}.\n'


def section(device: str, text: str) -> re.Match[str]:
    found = re.search(rf"(?<=<!-- {device} -->\n).*?(?=<!-- end -->)", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"docs/numerics.md has no section <!-- {device} --> ... <!-- end -->")
    return found


def written(text: str) -> list[list[str]]:
    """The rows of a table, by cells."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()
            if line.startswith("|")][2:]  # fmt: skip


def differences(rows: list[Row], said: list[list[str]]) -> Iterator[str]:
    """What is not as the page says, and what breaks the rule."""
    if [[r.name, r.dtype] for r in rows] != [line[:2] for line in said]:
        yield "other rows than in docs/numerics.md; run: python docs/make_numerics.py"
        return
    for row, cells in zip(rows, said, strict=True):
        if not row.ours <= row.allowed:
            yield f"{row.name}, {row.dtype}: error {row.ours:.1e}, allowed {row.allowed:.1e}"
        tiny = torch.finfo(getattr(torch, row.dtype)).eps
        for now, then in ((row.plain, float(cells[2])), (row.ours, float(cells[3]))):
            if math.isnan(now) and math.isnan(then):
                continue
            a, b = max(now, tiny), max(then, tiny)
            if not a <= FACTOR * b or not b <= FACTOR * a:
                yield f"{row.name}, {row.dtype}: {now:.1e}, docs/numerics.md says {then:.1e}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--impl", choices=("tiles", "triton", "eager"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    impl = options.impl or ("triton" if options.device == "cuda" else "tiles")
    rows, text = table(options.device, impl), PAGE.read_text(encoding="utf-8")
    place = section(options.device, text)
    if options.check:
        wrong = list(differences(rows, written(place[0])))
        print("\n".join(wrong), end="\n" if wrong else "")
        return bool(wrong)
    made = f"\n{machine(options.device, impl)}\n{HEAD}{''.join(r.line() for r in rows)}\n"
    PAGE.write_text(text[: place.start()] + made + text[place.end() :], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
