"""One query a head: the heads that share keys become the rows of one tile.

    q (B, H, 1, D), H = Hk * group   ->   q (B, Hk, group, D)

The same numbers, read in another way: each key is read once for the whole group. Row i of head h is
head h * group + i of the caller; its query is number 0.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from torch import Tensor

from fusedreduce.ir.expr import Expr, const, names, substitute, var
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import Pair
from fusedreduce.run.pair_inputs import PairInputs


def packs(pair: Pair, inputs: PairInputs) -> bool:
    """Is there one query a head, several heads a key, and no term that asks which row it is?"""
    return inputs.q.shape[2] == 1 and inputs.group > 1 and not _asks_for_rows(pair)


@lru_cache(maxsize=256)
def _asks_for_rows(pair: Pair) -> bool:
    terms = [f.term for f in pair.record.fields if f.term is not None]
    return bool({"h", "i"} & set(names(*terms, *pair.record.lift)))


def packed(pair: Pair, inputs: PairInputs) -> tuple[Pair, PairInputs]:
    """The pair whose rows are heads, and what it is run on."""
    batch, heads, _, width = inputs.q.shape
    q = inputs.q.reshape(batch, heads // inputs.group, inputs.group, width)
    return _packed(pair, inputs.group), replace(inputs, q=q)


def unpacked(result: Tensor, inputs: PairInputs) -> Tensor:
    """A result by the caller's heads."""
    return result.reshape(*inputs.rows, *result.shape[3:])


@lru_cache(maxsize=256)
def _packed(pair: Pair, group: int) -> Pair:
    places = {"h": var("h") * group + var("i"), "i": const(0), "Sq": const(1)}

    def moved(e: Expr) -> Expr:
        return simplify(substitute(e, places))

    return replace(
        pair,
        operands=tuple((n, moved(e)) for n, e in pair.operands),
        mask=None if pair.mask is None else moved(pair.mask),
        first=tuple((n, moved(e)) for n, e in pair.first),
        reads=tuple(
            replace(r, node=moved(r.node), indices=tuple(map(moved, r.indices))) for r in pair.reads
        ),
    )
