"""The backward of a pair reduction: nothing stored but summaries of each query, scores recomputed.

Given    a pair, the adjoints d_<result> of its results
Claim    every adjoint is linear in the d_<result>; of a vector result `out` the element's part is
         linear in dp = <d_out, v> and in sums over the width such as <d_out, out>. So
             d score_ij = slope(score, state_i) * (scale_i * dp_ij + shift_i)     where it factors
             d v_j      = sum_i weight(score, state_i) * d_out_i
             d q_i      = sum_j d score_ij * k_j,      d k_j = sum_i d score_ij * q_i
Use      two kernels: key blocks outside for d k and d v, query blocks outside for d q; the row
         values come from one fused row function (`rows`), printed by the row printer. Gradients
         of tables are summed there too, or by kernels of their own (`pair_tables`).
Source   recomputation from one saved number a query: Dao et al. 2022, FlashAttention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from fusedreduce.declare.record import Record
from fusedreduce.gradient.element import NoBackward, mark
from fusedreduce.gradient.pair_state import FinalState, adjoint, saved_name, within
from fusedreduce.gradient.pair_tables import TableSum, summed
from fusedreduce.gradient.pair_widths import DP, RowSum, Widths, bare, times
from fusedreduce.ir.differentiate import derivative, gradient
from fusedreduce.ir.expr import Expr, call, const, is_const, names, rewrite, substitute, var, where
from fusedreduce.ir.show import show
from fusedreduce.ir.simplify import simplify
from fusedreduce.ir.tables import tables
from fusedreduce.pair import HALF, INDICES, Pair, Read, Result


@dataclass(frozen=True, eq=False)
class PairBackward:
    """What replaces a differentiable run.

    forward   the pair that also writes the summaries `saved`
    saved     by name; with the gradients of tables also the vector result itself (`exact`)
    vector    the name of the vector result whose adjoint is used, "" if there is none
    sums      row values that are sums over the width
    shifts    row values made of those, of saved ones and of the adjoints of scalar results
    weight    d v_j = sum_i weight * d_out_i; over score, indices, tables, row values
    score     d loss / d score over the same and `dp`, but for the scalar `factor`
    tables    (read, d loss / d what it reads), for the tables that get a gradient
    first     the row value that is d loss / d the score of the element before the keys; "" where
              there is none, or nobody asks
    """

    forward: Pair
    saved: tuple[str, ...]
    vector: str
    sums: tuple[RowSum, ...]
    shifts: tuple[tuple[str, Expr], ...]
    weight: Expr | None
    score: Expr
    factor: Expr
    tables: tuple[tuple[Read, Expr], ...]
    first: str = ""

    def __str__(self) -> str:
        """What is saved, the values of a query, the gradients of an element: a formula a line."""
        lines = [("saved", f"{r.name} = {show(r.expr)}") for r in self.forward.results
                 if r.name in self.saved]  # fmt: skip
        up = adjoint(self.vector)
        sums = {True: f"<{up}, {self.vector}>", False: f"<{up}, 1>"}
        lines += [("query", f"{s.name} = {sums[s.with_result]}") for s in self.sums]
        lines += [("query", f"{n} = {show(e)}") for n, e in self.shifts]
        lines += [("pair", f"{DP} = <{up}, v>")] if self.vector else []
        lines += [("d score", show(times(self.factor, self.score)))]
        lines += [] if self.weight is None else [("d v", f"({show(self.weight)}) * {up}")]
        lines += [(f"d {show(r.node)}", show(e)) for r, e in self.tables]
        return "\n".join(f"{what:<8} {said}" for what, said in lines)

    @cached_property
    def exact(self) -> str:
        """The saved result that is the vector result before it is rounded; "" if there is none."""
        return next((n for n in self.saved if n == exact_name(self.vector)), "")

    @cached_property
    def summaries(self) -> tuple[str, ...]:
        """What is saved of each query but vectors."""
        return tuple(n for n in self.saved if n != self.exact)

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The row values that the element's formulas read, in order."""
        return self.rows_in(e for _, e in self.tables)

    def rows_in(self, tables: Iterable[Expr]) -> tuple[str, ...]:
        """Those that the formulas of these gradients of tables read, and those of q, k and v."""
        exprs = [self.score, *tables]
        exprs += [] if self.weight is None else [self.weight]
        known = {*self.saved, *(n for n, _ in self.shifts), *(s.name for s in self.sums)}
        known |= {adjoint(r.name) for r in self.forward.results if not r.vector}
        return tuple(n for n in dict.fromkeys(names(*exprs)) if n in known)

    @cached_property
    def table_sums(self) -> tuple[TableSum, ...]:
        """What printed kernels sum up for the gradients of tables."""
        return summed(self.tables)

    def of_tables(self, wanted: frozenset[str]) -> PairBackward:
        """The same for these tables alone; one object for one set of them."""
        if wanted not in self._parts:
            tables = tuple(t for t in self.tables if t[0].table in wanted)
            self._parts[wanted] = replace(self, tables=tables)
        return self._parts[wanted]

    @cached_property
    def _parts(self) -> dict[frozenset[str], PairBackward]:
        return {}


def backward(pair: Pair, wanted: tuple[str, ...], gauged: bool | None = None) -> PairBackward:
    """The backward for the gradients of q, k, v and of the tables in `wanted`.

    gauged   move the state to the reference where its sum is 1, so that one number is saved; None:
             where the inputs have 16 bits and nothing is added to scores (m + log s loses log s
             where m is large: in float32, and beside a mask of finfo.min)
    Raises `NoBackward` with the reason.
    """
    if pair.record.form == "general" and pair.record.payloads:
        raise NoBackward(f"{pair.record.name} is a general form with a payload")
    b = FinalState(pair, pair.dtype in HALF and pair.bounded if gauged is None else gauged)
    raw = b.operand_parts()
    inside = within(pair)
    parts = {n: substitute(e, inside) for n, e in raw.items()}
    payload = pair.record.payloads[0] if pair.record.payloads else ""
    weight = parts.pop(payload, None) if payload else None
    if weight is not None:
        weight = derivative(weight, adjoint(b.vector))
    score, of_tables = _into_scores(pair, wanted, parts)
    made = Widths(b, pair)
    factor, score = made.element(score)
    each = tuple((r, times(*made.element(e))) for r, e in of_tables)
    first = made.row("slope_of_first", of_first(pair, raw)) if asks_for_first(pair, wanted) else ""
    weight = None if weight is None else bare(weight, pair)
    read = set(names(score, *(e for _, e in each), *(e for _, e in made.shifts)))
    read |= set() if weight is None else set(names(weight))
    sums = tuple(s for s in made.sums.values() if s.name in read)
    kept = {n: e for n, e in b.saved.items() if saved_name(n) in read}
    results = tuple(
        Result(saved_name(n), divisible(pair.record, n, e), _dtype(pair, b.record, n))
        for n, e in kept.items()
    )
    results += exact_results(pair, sums) if each else ()
    more = tuple(f for f in b.record.fields[len(pair.record.fields) :] if f.name in kept)
    record = replace(pair.record, fields=(*pair.record.fields, *more))
    forward = replace(pair, record=record, results=(*pair.results, *results))
    return PairBackward(
        forward, tuple(r.name for r in results), b.vector, sums, tuple(made.shifts), weight, score,
        factor, each, first,
    )  # fmt: skip


def exact_name(vector: str) -> str:
    return f"exact_{vector}"


def exact_results(pair: Pair, sums: Iterable[RowSum]) -> tuple[Result, ...]:
    """The vector result before it is rounded to 16 bits, where a sum over the width reads it.

    NOTE: d score sums to 0 over the keys of a query, up to what rounding did to <d_out, out>. In
    d q and d k that is as small as in any attention; the gradient of a slope that multiplies i - j
    weighs it by i - j, and adds it up over all pairs.
    """
    if pair.dtype not in HALF or not any(s.with_result for s in sums):
        return ()
    return tuple(replace(r, name=exact_name(r.name), dtype=pair.state)
                 for r in pair.results if r.vector)  # fmt: skip


def asks_for_first(pair: Pair, wanted: tuple[str, ...]) -> bool:
    """Is a table wanted that the score of the element before the keys is read of?"""
    return not set(tables(*(e for _, e in pair.first))).isdisjoint(wanted)


def of_first(pair: Pair, parts: Mapping[str, Expr]) -> Expr:
    """d loss / d the score of the element before the keys: the part of an element, at its values.

    Its score is that operand itself: nothing is done to it as to raw scores.
    """
    at = {mark(n): var(n) for n in INDICES}
    at |= {n if n == "j" else mark(n): e for n, e in pair.first}
    at |= {mark(n): const(0.0) for n in pair.record.payloads}
    return simplify(substitute(parts.get(pair.record.operands[0], const(0.0)), at))


def divisible(record: Record, name: str, value: Expr) -> Expr:
    """What is saved of a sum: 1 where its references hold no element, so that 0 / sum is 0."""
    f = record.by_name.get(name)
    if f is None or value is not var(name) or f.kind != "Sum" or f.type != "float":
        return value
    gone = [call("eq", var(r.name), r.identity or 0) for r in record.free_references(name)]
    return where(reduce(lambda a, b: call("or", a, b), gone), 1.0, value) if gone else value


def _dtype(pair: Pair, record: Record, name: str) -> str:
    kind = record.by_name[name].result if name in record.by_name else "float"
    return {"float": pair.state, "int": "int64", "bool": "bool"}[kind]


# ---- from operands to scores and tables ----------------------------------------------------------


def _into_scores(
    pair: Pair, wanted: tuple[str, ...], parts: Mapping[str, Expr]
) -> tuple[Expr, list[tuple[Read, Expr]]]:
    """Through the user's score function: to the raw score, and to every read that is wanted."""
    operands = dict(pair.operands)
    score: Expr = const(0.0)
    reads = [r for r in pair.reads if r.table in wanted]
    flat = {r.node: var(f"read{k}") for k, r in enumerate(reads)}
    tables: dict[str, Expr] = {}
    for name, part in parts.items():
        if name not in operands:
            continue
        opened = rewrite(operands[name], lambda n: flat.get(n))
        targets = ["score", *(str(v.value) for v in flat.values())]
        found = gradient(opened, targets, part)
        closed = {str(v.value): n for n, v in flat.items()}
        for target, e in found.items():
            if is_const(e, 0):
                continue
            e = substitute(e, closed)
            if target == "score":
                score = e if is_const(score, 0) else score + e
            else:
                tables[target] = tables[target] + e if target in tables else e
    answer = [(r, tables[str(flat[r.node].value)]) for r in reads
              if str(flat[r.node].value) in tables]  # fmt: skip
    return simplify(score), answer
