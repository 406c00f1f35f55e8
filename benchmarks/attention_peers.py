"""Attention by this library and by others, with pinned backends, and whether each is right."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fusedreduce as fr

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
EPS = torch.finfo(torch.bfloat16).eps
OURS = "fusedreduce"


@dataclass(frozen=True)
class Case:
    """B batches, H heads of q and Hk of k and v, S keys, width D; Sq queries, S unless given.

    seen   "full", "causal", "window" (the last `keys` keys) or "documents" (so many equal ones)
    """

    B: int
    H: int
    Hk: int
    S: int
    D: int
    seen: str = "full"
    keys: int = 0
    Sq: int = 0

    @property
    def queries(self) -> int:
        return self.Sq or self.S

    @property
    def name(self) -> str:
        what = f"{self.seen} {self.keys}" if self.keys else self.seen
        of = f" Sq{self.Sq}" if self.Sq else ""
        return f"B{self.B} H{self.H}/{self.Hk} S{self.S}{of} D{self.D} {what}"

    @property
    def flops(self) -> float:
        """4 B H Sq S D, half of that when causal; of other masks by the pairs that count."""
        every = 4.0 * self.B * self.H * self.queries * self.S * self.D
        if self.seen == "causal":
            return every / 2
        if self.seen == "documents":
            return every / self.keys
        if self.seen == "window":
            w = min(self.keys, self.S)
            return every * (w * (w + 1) / 2 + (self.S - w) * w) / self.S**2
        return every

    def inputs(self, device: torch.device, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Random normal bfloat16."""
        q, k, v = (
            torch.randn(self.B, h, s, self.D, device=device, dtype=torch.bfloat16)
            for h, s in ((self.H, self.queries), (self.Hk, self.S), (self.Hk, self.S))
        )
        return q.requires_grad_(grad), k.requires_grad_(grad), v.requires_grad_(grad)


# ---- implementations -----------------------------------------------------------------------------


def ours(case: Case, device: torch.device) -> Forward:
    mask = None
    if case.seen == "window":
        mask = fr.masks.window(case.keys - 1, 0)
    if case.seen == "documents":
        mask = fr.masks.document(document_ids(case, device))
    causal = case.seen == "causal"
    return lambda q, k, v: fr.attention(
        q, k, v, mask=mask, is_causal=causal, enable_gqa=case.Hk != case.H
    )


def sdpa(backend: SDPBackend) -> Callable[[Case, torch.device], Forward]:
    """torch's, its backend pinned: it runs or fails."""

    def make(case: Case, device: torch.device) -> Forward:
        if case.keys:
            raise NotImplementedError("takes no such mask without storing it")
        causal, grouped = case.seen == "causal", case.Hk != case.H

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

        return run

    return make


def flex(compiled: bool) -> Callable[[Case, torch.device], Forward]:
    """FlexAttention; its block mask is built once, outside of what is timed."""

    def make(case: Case, device: torch.device) -> Forward:
        torch._dynamo.reset()  # each shape is a compilation of its own, within the recompile limit
        function = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
        mask_mod, blocks = flex_mask(case, device), None
        if mask_mod is not None:
            blocks = create_block_mask(mask_mod, None, None, case.queries, case.S, device=device)
        grouped = case.Hk != case.H
        return lambda q, k, v: function(q, k, v, block_mask=blocks, enable_gqa=grouped)

    return make


def flex_mask(case: Case, device: torch.device) -> Callable | None:
    if case.seen == "causal":
        return lambda b, h, i, j: i >= j
    if case.seen == "window":
        return lambda b, h, i, j: (i >= j) & (i - j < case.keys)
    if case.seen == "documents":
        ids = document_ids(case, device)
        return lambda b, h, i, j: ids[i] == ids[j]
    return None


def flash4(case: Case, device: torch.device) -> Forward:
    """FlashAttention-4 (the package flash-attn-4), if it is there; it wants (B, S, H, D)."""
    function = importlib.import_module("flash_attn.cute.interface").flash_attn_func
    if case.keys:
        raise NotImplementedError("not measured with this mask")

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = function(*(t.transpose(1, 2) for t in (q, k, v)), causal=case.seen == "causal")
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return run


def document_ids(case: Case, device: torch.device) -> Tensor:
    return torch.arange(case.S, device=device) * case.keys // case.S


ON_GPU = {
    OURS: ours,
    "SDPA flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "SDPA cuDNN": sdpa(SDPBackend.CUDNN_ATTENTION),
    "FlexAttention": flex(compiled=True),
    "FlashAttention-4": flash4,
}
ON_CPU = {OURS: ours, "SDPA math": sdpa(SDPBackend.MATH), "FlexAttention": flex(compiled=False)}


def implementations(device: torch.device, only: str = "") -> dict:
    """By name; those named in `only`, or all, FlashAttention-4 where it is installed."""
    table = dict(ON_GPU if device.type == "cuda" else ON_CPU)
    if "FlashAttention-4" in table and not installed("flash_attn.cute.interface"):
        del table["FlashAttention-4"]
    wanted = {n.strip() for n in only.split(",") if n.strip()}
    return {n: make for n, make in table.items() if not wanted or n in wanted or n == OURS}


def installed(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


# ---- are they right? -----------------------------------------------------------------------------


def plain(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Matmul, softmax, matmul in the dtype of the inputs: every score is stored."""
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)
    scores = q @ k.mT / case.D**0.5
    mask_mod = flex_mask(case, q.device)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(0, 0, i, j), float("-inf"))
    return scores.softmax(-1) @ v


def slices(case: Case, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first head of k and v in the first batch, and all heads of q that share it."""
    return q[:1, : case.H // case.Hk], k[:1, :1], v[:1, :1]


@dataclass(frozen=True)
class Right:
    """What float32 says of a slice, and how far the same mathematics in bfloat16 is from it.

    Allowed: k times that distance and one rounding of the result, k = 2 forward, 3 backward.
    """

    values: tuple[Tensor, ...]
    errors: tuple[float, ...]

    @staticmethod
    def of(case: Case, inputs: tuple[Tensor, ...], up: Tensor | None) -> Right:
        single, half = (
            results(case, tuple(t.detach().to(d) for t in inputs), up, d)
            for d in (torch.float32, torch.bfloat16)
        )
        return Right(single, tuple(map(error, half, single)))

    def complaint(self, found: tuple[Tensor, ...]) -> str:
        """ "" where it is right."""
        names, factors = ("out", "dq", "dk", "dv"), (2, 3, 3, 3)
        told = []
        for n, k, came, value, plain_error in zip(
            names, factors, found, self.values, self.errors, strict=False
        ):
            off = error(came, value)
            if not off <= k * plain_error + EPS:
                told.append(f"{n} is off by {off:.1e}, allowed {k * plain_error + EPS:.1e}")
        return "; ".join(told)


def results(
    case: Case, inputs: tuple[Tensor, ...], up: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """out, and with `up` the gradients, by `plain`."""
    given = tuple(t.requires_grad_(up is not None) for t in slices(case, *inputs))
    with exact():
        out = plain(case, *given)
        if up is None:
            return (out,)
        group = slices(case, up, up, up)[0].to(dtype)
        return out.detach(), *torch.autograd.grad(out, given, group)


@contextmanager
def exact() -> Iterator[None]:
    """float32 products without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def error(found: Tensor, right: Tensor) -> float:
    """The largest, relative to the largest right value."""
    return float((found.float() - right.float()).abs().max() / right.float().abs().max())


def laid_out_for(name: str, t: Tensor) -> Tensor:
    """The same values as they lie where it was written for: FlashAttention-4 has (B, S, H, D)."""
    if name != "FlashAttention-4":
        return t
    return t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(t.requires_grad)
