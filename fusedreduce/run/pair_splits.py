"""Keys split over programs: each writes the state of its split, and a row kernel merges those.

    state[b, h, i, n]  = merge over the keys of split n of lift(operands)    the pair skeleton
    result[b, h, i]    = finish(merge over n of state[b, h, i, n])           a row program

The second is a reduction in general form whose elements are states: lift reads the slots, merge is
the declaration's own. A split without a key holds the state of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from torch import Tensor

from fusedreduce.declare.record import Field, Record, Slot
from fusedreduce.ir.expr import Expr, substitute, var
from fusedreduce.pair import Pair, Result
from fusedreduce.plan import pairs as pair_plans
from fusedreduce.plan.pairs import PairPlan
from fusedreduce.program import Axis, Dims, Input, Output, Program, Stage
from fusedreduce.run.pair_inputs import PairInputs
from fusedreduce.states import merged

Run = Callable[[Program, Mapping[str, Tensor]], Sequence[Tensor]]
ROWS: Dims = (("b",), ("h",), ("i",))
SPLITS: Dims = (*ROWS, ("n",))
WIDTH: Dims = (("d",),)
STAGE = "merged"


def number_of_splits(inputs: PairInputs, plan: PairPlan) -> int:
    """Over how many programs the keys of each block of queries are split; 1: not at all."""
    return pair_plans.splits(plan, inputs.q.shape[2], inputs.k.shape[2])


@lru_cache(maxsize=256)
def pair_of_states(pair: Pair) -> Pair:
    """The pair whose results are the slots of the state, vectors in the state's dtype too."""
    kinds = {"float": pair.state, "int": "int64", "bool": "bool"}
    vectors = {f.name for f in pair.vectors}
    name = names_in_split(pair.record)
    return replace(pair, results=tuple(
        Result(name[s.name], var(s.name), kinds[s.type], s.field in vectors)
        for s in pair.record.slots
    ))  # fmt: skip


def merged_splits(pair: Pair, states: Mapping[str, Tensor], run: Run) -> dict[str, Tensor]:
    """The results of a pair, from the results of `pair_of_states`, (B, H, Sq, n) or wider.

    run   answers the outputs of a program, in order
    """
    shape = max((t.shape for t in states.values()), key=len)
    program = merging_program(pair, tuple(shape))
    return dict(zip((r.name for r in pair.results), run(program, states), strict=True))


@lru_cache(maxsize=256)
def merging_program(pair: Pair, shape: tuple[int, ...]) -> Program:
    """The merge of the splits as a row program: its rows are b, h, i and, of vectors, their width.

    shape   (B, H, Sq, n), or (B, H, Sq, n, DV) where some slot is a vector

    NOTE: beside vectors, a result that is one number is written by DV rows, the same one by each.
    """
    slots = pair_of_states(pair).results
    operands = tuple((r.name, var(r.name)) for r in slots)
    return Program(
        name=f"{pair.name}_merge",
        axes=tuple(Axis(n, k, n == "n") for n, k in zip("bhind", shape, strict=False)),
        inputs=tuple(Input(r.name, SPLITS + WIDTH * r.vector, r.dtype) for r in slots),
        stages=(Stage(STAGE, record_of_states(pair), operands, 0),),
        outputs=tuple(
            Output(r.name, var(f"{STAGE}.{r.name}"), ROWS + WIDTH * r.vector, r.dtype)
            for r in pair.results
        ),
        state=pair.state,
    )


def record_of_states(pair: Pair) -> Record:
    """The declaration as a reduction over its own states: an element is one, slot by slot."""
    record = pair.record
    merge, name = merged(record), names_in_split(record)
    bound: dict[str, Expr] = {}
    for f in record.fields:
        if f.is_bound and f.term is not None:
            bound[f.name] = substitute(f.term, bound)
    return Record(
        name=record.name,
        form="general",
        fields=tuple(Field(s.name, "State", identity(s), type=s.type) for s in record.slots),
        operands=tuple(name[s.name] for s in record.slots),
        lift=tuple(var(name[s.name]) for s in record.slots),
        merge=tuple(merge[s.name] for s in record.slots),
        finish=tuple((r.name, substitute(r.expr, bound)) for r in pair.results),
        commutative=record.commutative,
        names=record.names,
        line=record.line,
    )


def identity(s: Slot) -> float | int | bool:
    """Of the slot's type: a select beside an integer must stay one."""
    if s.type == "float":
        return float(s.identity)
    return bool(s.identity) if s.type == "bool" else int(s.identity)


def names_in_split(record: Record) -> dict[str, str]:
    """What the slots of one split are called: not as any slot of the merged state."""
    slots, prefix = [s.name for s in record.slots], "split_"
    while any(prefix + n in slots for n in slots):
        prefix += "split_"
    return {n: prefix + n for n in slots}
