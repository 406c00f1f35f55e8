"""The backward of a pair reduction: nothing stored but summaries of each query, scores recomputed.

Given    a pair, the adjoints d_<result> of its results
Claim    every adjoint is linear in the d_<result>; of a vector result `out` the element's part is
         linear in dp = <d_out, v> and in sums over the width such as <d_out, out>. So
             d score_ij = slope(score, state_i) * (scale_i * dp_ij + shift_i)     where it factors
             d v_j      = sum_i weight(score, state_i) * d_out_i
             d q_i      = sum_j d score_ij * k_j,      d k_j = sum_i d score_ij * q_i
Use      two kernels: key blocks outside for d k and d v, query blocks outside for d q; the row
         values come from one fused row function (`rows`), printed by the row printer.
Source   recomputation from one saved number a query: Dao et al. 2022, FlashAttention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from fusedreduce.declare.record import Field, Record
from fusedreduce.gradient.element import NoBackward, absent, element_gradient, extras, mark
from fusedreduce.ir.differentiate import derivative, gradient
from fusedreduce.ir.expr import (
    Expr,
    call,
    const,
    is_const,
    names,
    rewrite,
    substitute,
    var,
    walk,
    where,
)
from fusedreduce.ir.show import show
from fusedreduce.ir.simplify import simplify
from fusedreduce.pair import INDICES, SCORE, Pair, Read, Result, is_vector

DP = "dp"  # <d_out, v> of one element
HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class RowSum:
    """A value of a query: the sum over the width DV of a product of two vectors, or of one.

    The factors are `out`, the vector result itself, or nothing; times the result's adjoint.
    """

    name: str
    with_result: bool


@dataclass(frozen=True)
class PairBackward:
    """What replaces a differentiable run.

    forward   the pair that also writes the summaries `saved`
    vector    the name of the vector result whose adjoint is used, "" if there is none
    sums      row values that are sums over the width
    shifts    row values made of those, of saved ones and of the adjoints of scalar results
    weight    d v_j = sum_i weight * d_out_i; over score, indices, tables, row values
    score     d loss / d score over the same and `dp`, but for the scalar `factor`
    tables    (read, d loss / d what it reads), for the tables that get a gradient
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

    @property
    def rows(self) -> tuple[str, ...]:
        """The row values that the element's formulas read, in order."""
        exprs = [self.score, *(e for _, e in self.tables)]
        exprs += [] if self.weight is None else [self.weight]
        known = {*self.saved, *(n for n, _ in self.shifts), *(s.name for s in self.sums)}
        known |= {adjoint(r.name) for r in self.forward.results if not r.vector}
        return tuple(n for n in dict.fromkeys(names(*exprs)) if n in known)


def within(pair: Pair) -> dict[str, Expr]:
    """What the operands and indices of a term are in the pair."""
    return {mark(n): var(n) for n in INDICES} | {mark(n): e for n, e in pair.operands}


def adjoint(result: str) -> str:
    return f"d_{result}"


def output_of(r: Result, record: Record) -> str:
    """The output that a result is; a bare one is called `value`."""
    return r.name if r.name in record.outputs else ""


def saved_name(field: str) -> str:
    return f"saved_{field}"


def backward(pair: Pair, wanted: tuple[str, ...], gauged: bool | None = None) -> PairBackward:
    """The backward for the gradients of q, k, v and of the tables in `wanted`.

    gauged   move the state to the reference where its sum is 1, so that one number is saved; None:
             where the inputs have 16 bits (in float32 it would lose digits)
    Raises `NoBackward` with the reason.
    """
    if pair.record.form == "general" and pair.record.payloads:
        raise NoBackward(f"{pair.record.name} is a general form with a payload")
    b = _Derivation(pair, pair.dtype in HALF if gauged is None else gauged)
    parts = b.operand_parts()
    inside = within(pair)
    parts = {n: substitute(e, inside) for n, e in parts.items()}
    payload = pair.record.payloads[0] if pair.record.payloads else ""
    weight = parts.pop(payload, None) if payload else None
    if weight is not None:
        weight = derivative(weight, adjoint(b.vector))
    score, tables = _into_scores(pair, wanted, parts)
    made = _Widths(b, pair)
    factor, score = made.element(score)
    each = tuple((r, _times(*made.element(e))) for r, e in tables)
    weight = None if weight is None else bare(weight, pair)
    read = set(names(score, *(e for _, e in each), *(e for _, e in made.shifts)))
    read |= set() if weight is None else set(names(weight))
    sums = tuple(s for s in made.sums.values() if s.name in read)
    kept = {n: e for n, e in b.saved.items() if saved_name(n) in read}
    results = tuple(
        Result(saved_name(n), divisible(pair.record, n, e), _dtype(pair, b.record, n))
        for n, e in kept.items()
    )
    more = tuple(f for f in b.record.fields[len(pair.record.fields) :] if f.name in kept)
    record = replace(pair.record, fields=(*pair.record.fields, *more))
    forward = replace(pair, record=record, results=(*pair.results, *results))
    return PairBackward(
        forward, tuple(r.name for r in results), b.vector, sums, tuple(made.shifts), weight, score,
        factor, each,
    )  # fmt: skip


def divisible(record: Record, name: str, value: Expr) -> Expr:
    """What is saved of a sum: 1 where its references hold no element, so that 0 / sum is 0."""
    f = record.by_name.get(name)
    if f is None or value is not var(name) or f.kind != "Sum" or f.type != "float":
        return value
    gone = [call("eq", var(r.name), r.identity or 0) for r in record.free_references(name)]
    return where(reduce(lambda a, b: call("or", a, b), gone), 1.0, value) if gone else value


def bare(weight: Expr, pair: Pair) -> Expr:
    """The payload's weight without a select that it does not need."""
    opened, missing = unguarded(weight, absences(pair))
    return weight if missing is not None and not vanishes(opened, missing) else opened


def _dtype(pair: Pair, record: Record, name: str) -> str:
    kind = record.by_name[name].result if name in record.by_name else "float"
    return {"float": pair.state, "int": "int64", "bool": "bool"}[kind]


class _Derivation:
    """The parts of the operands of one element, per element of the width."""

    def __init__(self, pair: Pair, gauged: bool) -> None:
        self.pair = pair
        record = pair.record
        asked = [r for r in pair.results if r.vector]
        if len(asked) > 1:
            raise NoBackward("more than one result is a vector")
        self.vector = asked[0].name if asked else ""
        self.vector_output = output_of(asked[0], record) if asked else ""
        self.saved: dict[str, Expr] = {}  # by field, over the fields of the forward
        self.state: dict[str, Expr] = {}  # each field over saved values and the vector result
        more = extras(record)
        self.extra = {f.name: var(saved_name(f.name)) for f in more.fields}
        self.record = replace(record, fields=(*record.fields, *more.fields))
        unit = unit_sum(record) if gauged else None
        for f in record.fields:
            if f.is_bound and f.term is not None:
                self.state[f.name] = substitute(f.term, self.state)
            elif is_vector(record, f):
                continue
            elif unit is not None:
                self.gauge(f, unit)
            else:
                self.state[f.name] = var(saved_name(f.name))
                self.saved[f.name] = var(f.name)
        self.saved |= {f.name: var(f.name) for f in more.fields}
        for f in pair.vectors:
            self.state[f.name] = self.solved(f)

    def gauge(self, f: Field, unit: Unit) -> None:
        """The state at the reference where the sum is 1: the same gauge results, fewer numbers."""
        if f.name == unit.sum:
            self.state[f.name] = const(1.0)
            return
        self.state[f.name] = var(saved_name(f.name))
        if f.name == unit.reference:
            self.saved[f.name] = unit.moved
        elif f.correct is not None:
            old = {f"old.{n}": var(n) for n in self.pair.record.by_name}
            self.saved[f.name] = substitute(f.correct, {**old, f"new.{unit.reference}": unit.moved})
        else:
            self.saved[f.name] = var(f.name)

    def solved(self, f: Field) -> Expr:
        """The vector field from the vector result: out = a * o + c, o = (out - c) / a."""
        if not self.vector:
            return const(0.0)
        if self.vector.startswith("state."):
            return var(self.vector) if self.vector == f"state.{f.name}" else const(0.0)
        finish = dict(self.pair.record.finish)[self.vector_output]
        return cancelled(substitute(inverted(finish, f.name, var(self.vector)), self.state))

    def operand_parts(self) -> dict[str, Expr]:
        """d loss / d operand, over `@operand`, row values, d_<result>, the vector result."""
        record = self.pair.record
        adjoints = {
            output_of(r, record): var(adjoint(r.name))
            for r in self.pair.results
            if "float" in r.dtype and not r.name.startswith("state.")
        }
        adjoints |= {
            r.name: var(adjoint(r.name)) for r in self.pair.results if r.name.startswith("state.")
        }
        parts = element_gradient(record, adjoints, self.state, self.extra)
        return {n: cancelled(e) for n, e in parts.items()}


def inverted(e: Expr, name: str, value: Expr) -> Expr:
    """What `name` is where e has this value; e reads it once, through + - * / and signs.

    >>> from fusedreduce.ir.show import show
    >>> show(inverted(var("o") / var("s"), "o", var("out")))
    'out * s'
    """
    if e is var(name):
        return value
    at = [k for k, a in enumerate(e.args) if name in names(a)]
    if len(at) != 1 or (e.op, at[0]) not in _INVERSES:
        raise NoBackward(f"the result {show(e)} is not solved for {name}")
    other = e.args[1 - at[0]] if len(e.args) == 2 else value
    return inverted(e.args[at[0]], name, _INVERSES[e.op, at[0]](value, other))


_INVERSES: Mapping[tuple[str, int], Callable[[Expr, Expr], Expr]] = {
    ("add", 0): lambda y, a: y - a,
    ("add", 1): lambda y, a: y - a,
    ("sub", 0): lambda y, a: y + a,
    ("sub", 1): lambda y, a: a - y,
    ("mul", 0): lambda y, a: y / a,
    ("mul", 1): lambda y, a: y / a,
    ("div", 0): lambda y, a: y * a,
    ("neg", 0): lambda y, a: -y,
}


def cancelled(e: Expr) -> Expr:
    """x * a / a as x."""

    def rule(n: Expr) -> Expr | None:
        if n.op == "div" and n.args[0].op == "mul" and n.args[0].args[1] is n.args[1]:
            return n.args[0].args[0]
        return None

    return simplify(rewrite(e, rule))


@dataclass(frozen=True)
class Unit:
    """A sum s that a move of its reference m multiplies: at `moved` = m + log s it is 1."""

    sum: str
    reference: str
    moved: Expr


def unit_sum(record: Record) -> Unit | None:
    """The gauge in which a sum is 1, where every output is gauge and the sum moves by exp."""
    if set(record.gauge) < set(record.outputs) or record.form == "general":
        return None
    for f in record.fields:
        if f.correct is None or f.kind != "Sum" or len(f.reads) != 1 or is_vector(record, f):
            continue
        m = f.reads[0]
        move = call("exp", var(f"old.{m}") - var(f"new.{m}"))
        if f.correct is call("mul", var(f.name), move) and positive(f.term):
            return Unit(f.name, m, var(m) + call("log", var(f.name)))
    return None


def positive(term: Expr | None) -> bool:
    return term is not None and term.op in ("exp", "exp2")


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


# ---- sums over the width ----------------------------------------------------------------------


class _Widths:
    """Turns formulas of one element of the width into formulas of their sums."""

    def __init__(self, b: _Derivation, pair: Pair) -> None:
        self.vector = b.vector
        self.payload = mark(pair.record.payloads[0]) if pair.record.payloads else ""
        rows = [saved_name(n) for n in b.saved]
        rows += [adjoint(r.name) for r in pair.results if not r.vector]
        self.rows = {*rows, "delta", "total"}
        self.pair = pair
        self.sums: dict[str, RowSum] = {}
        self.shifts: list[tuple[str, Expr]] = []

    def element(self, e: Expr) -> tuple[Expr, Expr]:
        """The sum of e over the width: a scalar factor, and an element's value."""
        e, missing = unguarded(e, absences(self.pair))
        factor, value = self.factored([(c, x) for c, x in self.terms(e) if not is_const(c, 0)])
        if missing is not None and not vanishes(value, missing):
            value = where(missing, 0.0, value)
        return factor, value

    def terms(self, e: Expr) -> list[tuple[Expr, Expr]]:
        """Coefficients, and what each multiplies: dp, sums over the width, 1."""
        if not self.vector:
            return [(e, const(1.0))]
        d, v, out = adjoint(self.vector), self.payload, self.vector
        along = derivative(e, d)
        by_v, by_out = derivative(along, v), derivative(along, out)
        rest = simplify(substitute(along, {v: const(0.0), out: const(0.0)}))
        if {v, out} & set(names(by_v, by_out)) or d in names(along):
            raise NoBackward(f"the gradient is not linear in the vector {out}")
        scalar = simplify(substitute(e, {d: const(0.0)}))
        found = [(by_v, var(DP)), (scalar, const(1.0))]
        for name, coefficient in (("delta", by_out), ("total", rest)):
            if not is_const(coefficient, 0):
                self.sums[name] = RowSum(name, name == "delta")
                found.append((coefficient, var(name)))
        return found

    def factored(self, terms: list[tuple[Expr, Expr]]) -> tuple[Expr, Expr]:
        """slope * (scale * dp + shift) where all coefficients vary alike along the keys."""
        if not terms:
            return const(1.0), const(0.0)
        parts = [(*self.split(c), x) for c, x in terms]
        alike = len({(tuple(elements), scalar) for elements, _, scalar, _ in parts}) == 1
        if not alike:
            return const(1.0), simplify(_sum([_times(c, x) for c, x in terms]))
        elements, _, factor, _ = parts[0]
        inner = [_times(row, x) for _, row, _, x in parts if x is var(DP)]
        shift = [_times(row, x) for _, row, _, x in parts if x is not var(DP)]
        if shift:
            inner.append(self.shift(simplify(_sum(shift))))
        return factor, simplify(_times(_product(elements), simplify(_sum(inner))))

    def shift(self, e: Expr) -> Expr:
        """A row value of its own, unless it is one already."""
        if e.op in ("var", "const") or (e.op == "neg" and e.args[0].op == "var"):
            return e
        name = f"shift{len(self.shifts) or ''}"
        self.shifts.append((name, e))
        self.rows.add(name)
        return var(name)

    def split(self, e: Expr) -> tuple[list[Expr], Expr, Expr]:
        """The factors that vary along the keys; the product of row values; of scalars."""
        found: dict[str, list[Expr]] = {"element": [], "row": [], "scalar": []}
        sign, stack = False, [e]
        while stack:
            node = stack.pop()
            below = self.place(node.args[1]) if node.op == "div" else "element"
            if node.op == "mul":
                stack += [node.args[1], node.args[0]]
            elif node.op == "neg":
                sign = not sign
                stack.append(node.args[0])
            elif below in ("row", "scalar") and not is_const(node.args[0], 1):
                found[below].append(const(1.0) / node.args[1])
                stack.append(node.args[0])
            else:
                place = self.place(node)
                found["element" if place == "column" else place].append(node)
        row = _product(found["row"])
        return found["element"], simplify(-row if sign else row), _product(found["scalar"])

    def place(self, e: Expr) -> str:
        return self.pair.place(e, self.rows)


def unguarded(e: Expr, absences: frozenset[Expr]) -> tuple[Expr, Expr | None]:
    """e without the selects that make absent elements 0, and the condition they share."""
    found: dict[Expr, None] = {}

    def open_(node: Expr) -> Expr | None:
        if node.op == "where" and is_const(node.args[1], 0) and node.args[0] in absences:
            found[node.args[0]] = None
            return node.args[2]
        return None

    opened = rewrite(e, open_)
    return (opened, next(iter(found))) if len(found) == 1 else (e, None)


def absences(pair: Pair) -> frozenset[Expr]:
    """Edge rule (a) over scores and indices: the conditions under which an element is absent."""
    inside = within(pair)
    found = [absent(pair.record), *(absent(pair.record, f) for f in pair.record.fields)]
    return frozenset(substitute(e, inside) for e in found if e is not None)


def vanishes(value: Expr, missing: Expr) -> bool:
    """Is the value 0 by itself where x = -inf: is it exp(x - r) times what does not read x?"""
    if missing.op != "eq" or not is_const(missing.args[1], float("-inf")):
        return False
    x, factors, stack = missing.args[0], [], [value]
    while stack:
        node = stack.pop()
        if node.op in ("mul", "neg"):
            stack += node.args
        else:
            factors.append(node)
    reading = [f for f in factors if any(n is x or n is var(SCORE) for n in walk(f))]
    return (
        len(reading) == 1
        and reading[0].op == "exp"
        and reading[0].args[0].op == "sub"
        and (reading[0].args[0].args[0] is x)
    )


def _times(a: Expr, b: Expr) -> Expr:
    return simplify(a * b)


def _sum(terms: list[Expr]) -> Expr:
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    return total


def _product(factors: list[Expr]) -> Expr:
    total: Expr = const(1.0)
    for f in factors:
        total = f if is_const(total, 1) else total * f
    return total
