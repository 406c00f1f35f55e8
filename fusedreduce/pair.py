"""The normal form of a pair reduction: for each query, a declared reduction over the keys it sees.

    score           = q[b, h, i, :] . k[b, h // group, j, :]
    state[b, h, i]  = merge over j, where mask(b, h, i, j), of lift(operands(score, b, h, i, j));
                      with a first element, after lift(first(b, h, i))
    payload fields  are vectors: sum_j weight(score, state) * v[b, h // group, j, :]

Operands, mask and what the user's score function adds are expressions over `score`, the indices
b, h, i, j, the lengths Sq and Sk, run-time numbers, and reads of tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce

from fusedreduce.declare import edges
from fusedreduce.declare.record import Field, Record
from fusedreduce.errors import NotFusible, message
from fusedreduce.ir.check import kind_of, kind_of_dtype
from fusedreduce.ir.differentiate import derivative
from fusedreduce.ir.expr import Expr, call, const, names, substitute, var, where
from fusedreduce.ir.ops import OPS
from fusedreduce.program import widest
from fusedreduce.states import lifted

SCORE = "score"
INDICES = ("b", "h", "i", "j")
BEFORE = -1  # the position of an element before every key
SIZES = ("Sq", "Sk", "q_offset", "k_offset")  # run-time integers
LONGEST = 2**28  # of lengths and offsets: positions are int32 in kernels, and so are their sums
HALF = ("float16", "bfloat16")
_BOUNDED = frozenset(("mul", "add", "sub", "neg", "tanh", "var", "const", "cast", "where"))
_LARGE = 2.0**24


@dataclass(frozen=True)
class Table:
    """A tensor read at indices; it lies by the integers `name_stride_0`, `name_size_0`, ..."""

    name: str
    dims: int
    dtype: str

    @property
    def kind(self) -> str:
        return kind_of_dtype(self.dtype)

    @property
    def integers(self) -> tuple[str, ...]:
        """The run-time integers that say how it lies."""
        return tuple(f"{self.name}_{what}_{k}" for what in ("stride", "size")
                     for k in range(self.dims))  # fmt: skip


@dataclass(frozen=True)
class Read:
    """One place where a table is read: the node, and the index of each dimension."""

    node: Expr
    table: str
    indices: tuple[Expr, ...]


@dataclass(frozen=True)
class Result:
    """One tensor made of the final states: (B, H, Sq), or (B, H, Sq, DV) if it is a `vector`.

    expr   over the fields of the record, elementwise along a vector
    """

    name: str
    expr: Expr
    dtype: str
    vector: bool = False


@dataclass(frozen=True, eq=False)
class Pair:
    """A pair reduction in normal form; it does not depend on any length.

    record    with the types its fields have here, only the fields that the results need
    operands  what each operand of the record but the payload is
    mask      which (query, key) pairs count; None: all
    reads     every read of a table in operands and mask
    numbers   run-time numbers that operands and mask read
    results   what is written for each query
    first     operands and `j` of an element before every key, whatever the mask, whose payloads are
              0; () for none. Its score is no product: what is done to those is not done to it
    dtype     of q, k and v; `state` of everything else
    D, DV     the widths of q and k, and of v; DV is 0 without a payload
    """

    name: str
    record: Record
    operands: tuple[tuple[str, Expr], ...]
    mask: Expr | None
    tables: tuple[Table, ...]
    reads: tuple[Read, ...]
    numbers: tuple[str, ...]
    results: tuple[Result, ...]
    dtype: str
    state: str
    D: int
    DV: int
    first: tuple[tuple[str, Expr], ...] = ()

    @cached_property
    def kinds(self) -> dict[str, str]:
        """bool, int or float, for every variable of operands and mask."""
        table = dict.fromkeys((*INDICES, *SIZES), "int") | {SCORE: "float"}
        table |= dict.fromkeys(self.numbers, "float")
        for t in self.tables:
            table |= {t.name: t.kind} | dict.fromkeys(t.integers, "int")
        return table

    @cached_property
    def vectors(self) -> tuple[Field, ...]:
        """The fields that are vectors: sums of a weight times the payload."""
        return tuple(f for f in self.record.fields if is_vector(self.record, f))

    @cached_property
    def weights(self) -> dict[str, Expr]:
        """For each vector field the weight of the payload, over operands and references."""
        return {f.name: payload_weight(self.record, f) for f in self.vectors}

    @cached_property
    def bounded(self) -> bool:
        """Is every operand of a key moderate for moderate scores: is nothing read or cut off?"""
        return is_moderate(*(e for _, e in self.operands))

    @cached_property
    def drawn(self) -> tuple[tuple[str, Expr], ...]:
        """The operands that are made of indices alone, whatever the score is."""
        return tuple((n, e) for n, e in self.operands if e.args and SCORE not in names(e))

    @cached_property
    def in_any_order(self) -> bool:
        """May blocks of keys be taken in any order? First keeps the earliest key: it may not."""
        return self.record.commutative and all(f.kind != "First" for f in self.record.fields)

    def place(self, expr: Expr, rows: Iterable[str] = ()) -> str:
        """element, row (varies with the query), column (with the key) or scalar."""
        known = {SCORE: "element", "i": "row", "j": "column"} | dict.fromkeys(rows, "row")
        known |= dict.fromkeys(self.record.by_name, "row")
        return widest(known.get(n, "scalar") for n in names(expr))


def is_moderate(*exprs: Expr) -> bool:
    """Moderate numbers for moderate scores; of a choice both sides are, whatever decides it."""
    seen: set[Expr] = set()
    stack = [*exprs]
    while stack:
        e = stack.pop()
        if e in seen or OPS[e.op].result == "bool":
            continue
        if e.op not in _BOUNDED or (e.op == "const" and abs(float(e.value or 0)) >= _LARGE):
            return False
        seen.add(e)
        stack += e.args
    return True


def is_vector(record: Record, f: Field) -> bool:
    return f.term is not None and any(p in names(f.term) for p in record.payloads)


def payload_weight(record: Record, f: Field) -> Expr:
    """p of a field that is a Sum of p(score, references, indices) * v; `NotFusible` otherwise."""
    assert f.term is not None
    payload = record.payloads[0]
    weight = derivative(f.term, payload)
    if f.kind != "Sum" or len(record.payloads) > 1 or payload in names(weight):
        raise NotFusible(
            message(
                f"{record.name}.{f.name} is no matmul",
                expected="a Sum of p(score, references) * v, with one payload v",
                came=f"{f.kind} of {f.term!r}",
                where=f.line or record.line,
                do="write the term as a weight times the payload",
            )
        )
    return weight


def first_state(record: Record, first: Mapping[str, Expr]) -> dict[str, Expr]:
    """Each field and slot of the state of one element, of these operands and `j`; vectors are 0."""
    vectors = {f.name for f in record.fields if is_vector(record, f)}
    return {
        n: const(0.0) if n in vectors else substitute(e, first) for n, e in lifted(record).items()
    }


def holds_element(record: Record) -> Expr:
    """Does a state hold an element? One whose every number slot is at its identity holds none."""
    vectors = {f.name for f in record.fields if is_vector(record, f)}
    tests = [call("ne", var(s.name), s.identity) for s in record.slots if s.field not in vectors]
    return reduce(lambda a, b: call("or", a, b), tests)


def finished(record: Record, output: str) -> Expr:
    """The finish of an output over the fields of a record, `empty` where there is no element.

    Any row of a pair may hold nothing, since its mask may be true nowhere; a state that cannot tell
    (a sum alone, which may be 0 of some elements too) gives its finish.
    """
    expr = dict(record.finish)[output]
    empty = dict(record.empty).get(output)
    tells = edges.can_be_empty(record) or any(map(edges.is_count, record.fields))
    if empty is None or not tells:
        return expr
    return where(holds_element(record), expr, const(float(empty)))


def result_kind(record: Record, expr: Expr) -> str:
    kinds = {s.name: s.type for s in record.slots} | {f.name: f.result for f in record.fields}
    return kind_of(expr, kinds)


def depends_on(record: Record, expr: Expr, fields: Collection[str]) -> bool:
    """Does it read one of these fields, itself or through references that are formulas?"""
    read = set(names(expr))
    for f in reversed(record.fields):
        if f.name in read and f.is_bound and f.term is not None:
            read |= set(names(f.term))
    return not read.isdisjoint(fields)


def results_of(
    record: Record, outputs: tuple[str, ...], whole: bool, dtype: str, state: str
) -> tuple[Result, ...]:
    """The outputs, or the whole state by slots; floats in the state's dtype, vectors in q's."""
    vectors = {f.name for f in record.fields if is_vector(record, f)}
    kinds = {"float": state, "int": "int64", "bool": "bool"}
    if whole:
        return tuple(Result(f"state.{s.name}", var(s.name), kinds[s.type], s.field in vectors)
                     for s in record.slots)  # fmt: skip
    made = []
    for output in outputs:
        expr = finished(record, output)
        vector = depends_on(record, dict(record.finish)[output], vectors)
        kind = kinds[result_kind(record, expr)]
        made.append(Result(output or "value", expr, dtype if vector else kind, vector))
    return tuple(made)
