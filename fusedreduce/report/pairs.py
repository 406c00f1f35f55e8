"""A pair reduction as text: implementation, what is off the fast path, blocks, memory, kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fusedreduce.gradient.pairs import PairBackward
from fusedreduce.ir.expr import rewrite
from fusedreduce.ir.show import show
from fusedreduce.kernels.pair_frame import Blocks
from fusedreduce.kernels.rows import PrintedKernel
from fusedreduce.pair import Pair
from fusedreduce.pair_prepared import backward_of, chosen_backend
from fusedreduce.pairing import Given, PairTask, pair_of
from fusedreduce.plan.memory import size
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.plan.rows import BYTES
from fusedreduce.report.besides import besides
from fusedreduce.report.share import Share, shared
from fusedreduce.report.splits import Merging, merging_of
from fusedreduce.report.tables import TITLES, TableGradients, plainly
from fusedreduce.report.target import Target, lines, machine, target_of, why
from fusedreduce.run import descriptors, pair_kernels
from fusedreduce.run.compiled import pair_needs
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.run.pair_packing import packed, packs
from fusedreduce.run.pair_splits import pair_of_states
from fusedreduce.runner import Noted


def text(call: Noted, architecture: str | None = None) -> str:
    """One noted call; nothing is launched."""
    return Report(call, target_of(call.values, architecture)).text


def sources(call: Noted, backward: bool, architecture: str | None = None) -> list[str]:
    """The texts of the kernels: those of the forward, or those of the backward."""
    made = Report(call, target_of(call.values, architecture))
    directions = [d for d in made.directions if (d != "forward") == backward]
    found = [made.kernel(d)[0].source for d in directions]
    if backward:
        return found + [kernel.source for _, kernel, *_ in made.tables.kernels()]
    return found if made.merging is None else [*found, made.merging.kernel.source]


def numbers_saved(call: Noted) -> int:
    """How many numbers of a query the forward writes for the backward."""
    derived = Report(call, target_of(call.values, None)).derived
    return 0 if derived is None else len(derived.summaries)


@dataclass(frozen=True)
class Report:
    """One call, and everything that a line of the report is made from."""

    call: Noted
    to: Target

    @property
    def values(self) -> Mapping[str, Any]:
        return self.call.values

    @property
    def task(self) -> PairTask:
        return self.call.runner.task  # type: ignore[return-value]  # only pairs come here

    @cached_property
    def pair(self) -> Pair:
        return pair_of(self.task, self.values, self.call.trust)

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """Arguments that ask for a gradient; q, k and v where none does."""
        tensors = {n: v for n, v in self.values.items() if isinstance(v, Tensor)}
        asking = tuple(n for n, v in tensors.items() if v.requires_grad)
        return asking or tuple(n for n in ("q", "k", "v") if n in tensors)

    @cached_property
    def derived(self) -> PairBackward | None:
        return backward_of(self.task, self.pair, self.wanted)

    @cached_property
    def inputs(self) -> PairInputs:
        return Given(self.task, self.values).inputs(self.pair.numbers)

    @cached_property
    def implementation(self) -> str:
        if self.call.impl == "eager" or 0 in self.inputs.rows:
            return "eager" if self.call.impl == "eager" else "tiles"
        chosen = chosen_backend(self.call.impl, self.to.device)
        return chosen if self.pair.in_any_order or chosen == "tiles" else "tiles"

    @property
    def tables(self) -> TableGradients:
        ordered = self.pair.in_any_order
        return TableGradients(self.derived if ordered else None, self.inputs, self.to)

    @property
    def directions(self) -> tuple[str, ...]:
        """The kernels there are."""
        if not self.pair.in_any_order:
            return ()
        return ("forward",) if self.derived is None else ("forward", "queries", "keys")

    # -- text

    @property
    def text(self) -> str:
        t, pair = self.inputs, self.pair
        given = {"q": t.q, "k": t.k} | ({} if t.v is None else {"v": t.v})
        shapes = ", ".join(f"{n} {tuple(x.shape)}" for n, x in given.items())
        head = f"{pair.record.name} over pairs: {shapes}, {pair.dtype}, state {pair.state}"
        runs = [("runs", why(self.implementation, self.call.impl, self.to))]
        runs += [("but", reason) for reason in self.slow]
        more = besides(self.task, self.values, self.derived)
        runs += [("mask", self.mask), *more, *self.tables.told]
        if 0 not in (*t.rows, t.k.shape[2]):
            runs += self.blocks
        runs += self.memory
        for direction in self.directions:
            runs += self.described(TITLES[direction], *self.kernel(direction))
        for found in self.tables.kernels():
            runs += self.described(*found)
        return "\n".join([head, *lines(runs)])

    @property
    def slow(self) -> list[str]:
        """What is off the fast path."""
        t, pair = self.inputs, self.pair
        found = []
        if not pair.in_any_order:
            found.append("keys must come in order (First, or a merge that does not commute): tiles")
        if pair.dtype == "float64":
            found.append("float64 has no fast matmuls in Triton")
        if pair.dtype == "float32" and pair_kernels.precision(pair) == "ieee":
            found.append("float32 products are exact (IEEE), without tensor cores; see "
                         "torch.set_float32_matmul_precision")  # fmt: skip
        for n, x in (("q", t.q), ("k", t.k), ("v", t.v)):
            if x is not None and x.device.type != "meta" and not descriptors.served(x):
                found.append(f"{n} is copied at every call: strides {x.stride()}, base or width "
                             "are no multiples of 16 bytes")  # fmt: skip
        if self.derived is None:
            found.append("the backward differentiates the meaning: all scores at once")
        else:
            found += [
                f"the gradient of {n} is summed by tiles in PyTorch" for n in self.tables.left
            ]
        if self.task.state:
            found.append("the state is merged and finished by PyTorch, outside the kernel")
        return found

    @property
    def mask(self) -> str:
        if self.pair.mask is None:
            return "none: every query sees every key"
        how = self.laid(self.plan("forward"))
        told = "blocks computed in the kernel"
        if how.lists:
            told = "lists of blocks, made on the device at each call"
        return f"{show(rewrite(self.pair.mask, plainly))}: {told}"

    # -- blocks, work, memory

    @cached_property
    def share(self) -> Share:
        plan = self.plan("forward")
        return shared(self.pair, self.inputs, (plan.QUERIES, plan.KEYS))

    @property
    def blocks(self) -> list[tuple[str, str]]:
        plan, share, pair = self.plan("forward"), self.share, self.pair
        counted = (
            f"{share.skip + share.partial + share.full:,} of {plan.QUERIES} x {plan.KEYS}: "
            f"{share.skip:,} skipped, {share.partial:,} partial, {share.full:,} full; "
            f"{100 * share.saved:.1f} % of the work saved"
        )
        products = {"forward": pair.D + pair.DV, "d q": 2 * pair.D + pair.DV}
        products["d k, d v"] = 2 * (pair.D + pair.DV)
        flops = [f"{n} {amount(2.0 * share.pairs * w)}" for n, w in products.items()
                 if n == "forward" or self.derived is not None]  # fmt: skip
        moved = [f"{n} {size(b)}" for n, b in self.bytes.items()]
        return [
            ("blocks", counted),
            ("flops", f"{', '.join(flops)} (products in visited blocks)"),
            ("bytes", f"{', '.join(moved)} (each operand and result once)"),
        ]

    @property
    def bytes(self) -> dict[str, int]:
        """What each kernel has to move at the least."""
        t = self.inputs
        item = BYTES[self.pair.dtype]
        q, k, v = (0 if x is None else x.numel() * item for x in (t.q, t.k, t.v))
        rows = t.q.numel() // t.q.shape[3]
        made = sum(rows * BYTES[r.dtype] * (self.pair.DV if r.vector else 1)
                   for r in self.pair.results)  # fmt: skip
        found = {"forward": q + k + v + made}
        if self.derived is not None:
            saved = self.saved
            found["forward"] += saved
            rows_read = len(self.derived.rows) * rows * BYTES[self.pair.state]
            up = rows * self.pair.DV * item * bool(self.derived.vector)
            found |= {"d q": 2 * q + k + v + up + rows_read,
                      "d k, d v": q + 2 * k + 2 * v + up + rows_read}  # fmt: skip
        return found

    @property
    def saved(self) -> int:
        """Bytes that the forward writes for the backward beside the results."""
        if self.derived is None:
            return 0
        made = [r for r in self.derived.forward.results if r.name in self.derived.saved]
        rows = self.inputs.q.numel() // self.inputs.q.shape[3]
        return sum(rows * BYTES[r.dtype] * (self.pair.DV if r.vector else 1) for r in made)

    @property
    def memory(self) -> list[tuple[str, str]]:
        """Beside the form that stores the scores."""
        t = self.inputs
        scores = t.q.numel() // t.q.shape[3] * t.k.shape[2] * BYTES[self.pair.dtype]
        told = f"scores, {size(scores)}, are never stored"
        if self.derived is None:
            return [("memory", told)]
        count = len(self.derived.summaries)
        kept = f"for the backward {size(self.saved)}, {count} number{'s' * (count != 1)} a query"
        kept += f" and {self.derived.vector} in {self.pair.state}" if self.derived.exact else ""
        return [("memory", f"{told}; {kept}")]

    # -- kernels

    def plan(self, direction: str) -> PairPlan:
        return pair_kernels.plan_of(self.pair, direction, self.to.capability)

    def laid(self, plan: PairPlan) -> Blocks:
        return pair_kernels.blocks_of(self.pair, self.inputs, plan)

    @cached_property
    def launched(self) -> tuple[Pair, PairInputs]:
        """The forward that saves, and what it is launched on: heads may be packed."""
        pair = self.pair if self.derived is None else self.derived.forward
        return packed(pair, self.inputs) if packs(pair, self.inputs) else (pair, self.inputs)

    @cached_property
    def merging(self) -> Merging | None:
        """The second kernel of the forward, where the keys of a query are split."""
        pair, inputs = self.launched
        if not self.directions or 0 in (*inputs.rows, inputs.k.shape[2]):
            return None
        return merging_of(pair, inputs, self.plan("forward"))

    def kernel(self, direction: str) -> tuple[PrintedKernel, PairPlan, Pair]:
        """As it would be launched, and the pair whose results it writes."""
        plan = self.plan(direction)
        precise = pair_kernels.precision(self.pair)
        if direction != "forward":
            assert self.derived is not None
            made = pair_kernels.backward_printed(self.derived, plan, self.laid(plan), precise)
            return made, plan, self.derived.forward
        pair, inputs = self.launched
        blocks = pair_kernels.blocks_of(pair, inputs, plan)
        if self.merging is not None:
            pair, blocks = pair_of_states(pair), replace(blocks, splits=True)
        positive = tuple(n for n, v in inputs.numbers.items() if v > 0)
        return pair_kernels.forward_printed(pair, plan, blocks, positive, precise), plan, pair

    def described(
        self, title: str, made: PrintedKernel, plan: PairPlan, pair: Pair
    ) -> list[tuple[str, str]]:
        room = f"of {self.to.limits.shared_bytes:,} on {self.to.limits.name}"
        told = [
            (title, plan.describe()),
            ("", f"planned: {plan.shared:,} bytes shared {room}, {plan.registers} registers"),
            ("", machine(lambda: pair_needs(made, plan, pair, self.to.number), self.to)),
        ]
        if title == TITLES["forward"] and self.merging is not None:
            told += self.merging.described(self.to)
        return told


def amount(flops: float) -> str:
    """
    >>> amount(4.4e12), amount(2.5e6)
    ('4.40 TFLOP', '2.50 MFLOP')
    """
    for unit, name in ((1e12, "T"), (1e9, "G")):
        if flops >= unit:
            return f"{flops / unit:.2f} {name}FLOP"
    return f"{flops / 1e6:.2f} MFLOP"
