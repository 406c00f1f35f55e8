"""The kernels whose text is kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import fusedreduce as fr
from fusedreduce.pipeline import Printed
from tests import chains, printing

CHAINS = {c.name: c for c in chains.CASES}


@dataclass(frozen=True)
class Kernel:
    """One golden file; `what` names a fused function of tests/chains.py or a reduction."""

    what: str
    strategy: str
    dtype: torch.dtype
    columns: int

    @property
    def name(self) -> str:
        return f"{self.what}_{self.strategy}_{str(self.dtype).partition('.')[2]}"

    def print(self, rows: int = 6) -> Printed:
        torch.manual_seed(0)
        if self.what in CHAINS:
            case = CHAINS[self.what]
            reduces_rows = self.what.endswith("first_axis")
            shape = (self.columns, rows) if reduces_rows else (rows, self.columns)
            args = case.inputs(*shape, self.dtype)
            return printing.print_kernel(*printing.fused(case.fn, args), self.strategy)
        x = torch.randn(rows, self.columns).to(self.dtype)
        R = getattr(fr.reductions, self.what)
        return printing.print_kernel(*printing.reduced(R, {"x": x}), self.strategy)


KERNELS = (
    Kernel("log_sum_exp", "block", torch.float32, 4096),
    Kernel("log_sum_exp", "loop", torch.float32, 6000),
    Kernel("softmax", "block", torch.bfloat16, 1000),
    Kernel("softmax", "loop", torch.float32, 8192),
    Kernel("log_softmax_first_axis", "block", torch.float32, 50),
    Kernel("layer_norm", "block", torch.bfloat16, 4096),
    Kernel("layer_norm", "loop", torch.float64, 5000),
    Kernel("rms_norm_residual", "block", torch.bfloat16, 2048),
    Kernel("group_norm", "loop", torch.bfloat16, 40),
    Kernel("cross_entropy", "loop", torch.float32, 5000),
    Kernel("js_divergence", "block", torch.float32, 3000),
    Kernel("loss_head", "block", torch.bfloat16, 1000),
    Kernel("weighted_values", "loop", torch.float32, 70),
    Kernel("three_stages", "block", torch.float64, 300),
    Kernel("Welford", "block", torch.float32, 100),
    Kernel("Welford", "loop", torch.float64, 150),
    Kernel("Largest", "loop", torch.float32, 5000),
)
