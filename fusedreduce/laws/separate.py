"""f(x; r) = sum_k h_k(r) g_k(x): a term by functions of the element and of the reference.

Given    a term as an exact value, and which symbols belong to the element
Claim    monomials in algebraically independent atoms are linearly independent, so the monomials of
         the element's symbols are a basis: the g_k; their coefficients are the h_k
Use      a term whose separation is finite closes under a move of the reference (closure.py). An
         atom or a pole that holds element and reference together proves that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from fusedreduce.ir.expr import Expr, make, names, var, walk
from fusedreduce.ir.show import show
from fusedreduce.laws.cases import Case, Open
from fusedreduce.laws.decide import attach, soon
from fusedreduce.laws.ratios import Grow, OutOfTime, Poly, Ratio, Undefined
from fusedreduce.laws.reading import Unsupported, is_exact
from fusedreduce.laws.symbols import Tower
from fusedreduce.laws.writing import generator, text

Separation: TypeAlias = "dict[Ratio, Ratio]"
T = TypeVar("T")
LIMIT_S = 2.0


class NotSeparable(Exception):
    """Why a term has no finite separation; `certain` is False when only no way was found.

    positive  a factor that would have to be positive for a log or a power to split
    """

    def __init__(self, reason: str, *, certain: bool = True, positive: Expr | None = None) -> None:
        super().__init__(reason)
        self.certain = certain
        self.positive = positive


def in_tower(ask: Callable[[Case], T], signs: Mapping[str, str], facts: Sequence[Expr] = ()) -> T:
    """The answer of `ask` in the one case that the facts describe, in a tower large enough."""
    atoms, scale, deadline = 8, 1, soon(LIMIT_S)
    while True:
        tower = Tower(signs, atoms=atoms, scale=scale, deadline=deadline)
        case = Case(tower, {n: tower.symbol(n) for n in signs})
        attach(case)
        try:
            for fact in facts:
                case.learn(fact)
            return ask(case)
        except Grow as more:
            atoms, scale = more.atoms, more.scale
        except Open as split:
            if split.edge is not None:
                raise NotSeparable(
                    f"the sign of {show(split.edge)} is not known: state a domain",
                    certain=False,
                    positive=split.edge,
                ) from None
            condition = show(split.cases[0])
            raise NotSeparable(
                f"the choice {condition} depends on element and reference together", certain=False
            ) from None
        except Unsupported as error:
            raise NotSeparable(
                f"{error} of element and reference together", certain=False
            ) from None
        except RecursionError:
            raise NotSeparable("it is nested too deeply", certain=False) from None
        except OutOfTime:
            raise NotSeparable(f"not decided within {LIMIT_S:g} s", certain=False) from None
        except Undefined as error:
            raise NotSeparable(f"the term has no value: {error}", certain=False) from None


def elements_only(roots: Iterable[Expr], elements: frozenset[str]) -> dict[Expr, Expr]:
    """Subexpressions of the element alone that have no exact meaning, each with a name of its own.

    floor(x / 2), erf(x), (x > 0): whatever they are, they are functions of the element. A `where`
    is its condition times one branch and the rest, if both branches have a value everywhere.
    """
    table: dict[Expr, Expr] = {}
    pure: dict[Expr, bool] = {}
    total: dict[Expr, bool] = {}
    for node in walk(*roots):
        pure[node] = all(pure[a] for a in node.args) and (
            node.op != "var" or str(node.value) in elements
        )
        branches = node.args[1:] if node.op == "where" else node.args
        total[node] = node.op in _TOTAL and all(total[a] for a in branches)
        exact = is_exact(node) or node.op in ("var", "const") or total[node]
        if pure[node] and not exact and names(node):
            table[node] = var(f"{show(node)}")
    return table


_TOTAL = frozenset(
    ["var", "const", "add", "sub", "mul", "neg", "exp", "exp2", "expm1", "sin", "cos", "sinh",
     "cosh", "tanh", "sigmoid", "where"]
)  # fmt: skip


def replaced(root: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """The expression with whole subexpressions replaced, the outermost first."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        done[node] = table.get(node) or (
            make(node.op, tuple(done[a] for a in node.args), node.value) if node.args else node
        )
    return done[root]


def separate(tower: Tower, v: Ratio, elements: frozenset[str]) -> Separation:
    """v as a sum of (function of the element) * (function of the rest); the first is a monomial."""
    mine = {i: _side(tower, i, elements) for i in tower.used(tower.reduced(v.num), v.den)}
    below, beside = element_divisor(tower, v, elements), tower.one
    beside = tower.of(v.den) / tower.of(below)
    parts: Separation = {}
    for m, c in tower.reduced(v.num).terms():
        inner = tuple(e if mine.get(i) else 0 for i, e in enumerate(m))
        outer = tuple(0 if mine.get(i) else e for i, e in enumerate(m))
        key = tower.of(tower.ring.from_dict({inner: tower.ring.domain.one})) / tower.of(below)
        h = tower.of(tower.ring.from_dict({outer: c})) / beside
        parts[key] = parts.get(key, tower.zero) + h
    return {g: h for g, h in parts.items() if not tower.is_zero(h)}


def _side(tower: Tower, i: int, elements: frozenset[str]) -> bool:
    """Does a generator belong to the element? Refused when it belongs to both sides."""
    inside = tower.symbols_of([i])
    if inside & elements and inside & references(tower, elements):
        raise NotSeparable(
            f"{show(generator(tower, i))} ties element and reference together: "
            "no finite set of sums spans it for every reference"
        )
    return bool(inside & elements)


def references(tower: Tower, elements: frozenset[str]) -> frozenset[str]:
    """The symbols of references: those named old.r or new.r."""
    return frozenset(s for s in tower.symbols if s.startswith(("old.", "new."))) - elements


def element_divisor(tower: Tower, v: Ratio, elements: frozenset[str]) -> Poly:
    """The part of the denominator that belongs to the element."""
    out = tower.ring.one
    if v.den.is_ground:
        return out
    _, factors = tower.factors(v.den)
    for f, k in factors:
        inside = tower.symbols_of(tower.used(f))
        if inside & elements and inside & references(tower, elements):
            raise NotSeparable(f"the pole {text(tower, f)} = 0 moves with the reference")
        if inside & elements:
            out *= f**k
    return out


def solve(tower: Tower, columns: Sequence[Separation], target: Separation) -> list[Ratio] | None:
    """T with sum_j T_j column_j = target; None if there is none. Later columns are avoided."""
    keys = list(dict.fromkeys(g for c in (target, *columns) for g in c))
    zero = tower.zero
    rows = [[*(c.get(k, zero) for c in columns), target.get(k, zero)] for k in keys]
    pivots = eliminate(tower, rows, len(columns))
    if any(not tower.is_zero(row[-1]) for row in rows[len(pivots) :]):
        return None
    answer = [zero] * len(columns)
    for row, j in zip(rows, pivots, strict=False):
        answer[j] = row[-1]
    return answer


def eliminate(tower: Tower, rows: list[list[Ratio]], width: int) -> list[int]:
    """Gauss-Jordan in place on the first `width` columns; the pivot columns."""
    pivots: list[int] = []
    for j in range(width):
        top = len(pivots)
        found = next((i for i in range(top, len(rows)) if not tower.is_zero(rows[i][j])), None)
        if found is None:
            continue
        rows[top], rows[found] = rows[found], rows[top]
        head = rows[top][j]
        rows[top] = [v / head for v in rows[top]]
        for i, row in enumerate(rows):
            tower.check_time()
            if i != top and not tower.is_zero(row[j]):
                by = row[j]
                rows[i] = [a - by * b for a, b in zip(row, rows[top], strict=True)]
        pivots.append(j)
    return pivots
