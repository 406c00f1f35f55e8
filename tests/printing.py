"""Printed kernels for tests: any task, a forced strategy, outputs poisoned before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fusedreduce import api, pipeline
from fusedreduce.pipeline import Printed
from fusedreduce.request import one_device
from fusedreduce.run import launch
from fusedreduce.structure import rebuild

STRATEGIES = ("block", "loop")


@contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN (and the largest integer): an element that nobody writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def fused(fn: Any, args: tuple[Any, ...]) -> tuple[api.FuseTask, dict[str, Any]]:
    """The task of a function and its arguments by name."""
    f = api.fuse(fn)
    return f.runner.task, f.values(args, {})


def reduced(
    R: type, operands: Mapping[str, Any], dim: Any = -1
) -> tuple[api.ReduceTask, dict[str, Any]]:
    """The task of one reduction and its operands."""
    return api.ReduceTask(R, dim, False, R.record.outputs, None), dict(operands)


def print_kernel(task: Any, values: Mapping[str, Any], strategy: str | None) -> Printed:
    return pipeline.print_task(task, values, trust=False, strategy=strategy)


def run(task: Any, values: Mapping[str, Any], strategy: str | None) -> Any:
    """Print, build and launch by one strategy."""
    made = print_kernel(task, values, strategy)
    device = one_device(values)
    go = launch.prepare(
        made.traced.program, made.kernel, made.plan, made.layout, task.origin, device
    )
    with poisoned():
        return rebuild(made.traced.structure, go(values))
