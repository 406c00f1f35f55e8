"""Case splits: a question about expressions, asked in every case their comparisons leave open.

A case is a list of comparisons taken to be true. Reading an expression goes only into the chosen
branch of a `where`; a comparison that the case's facts settle (exact linear programming over
monomials) is not split. When one stays open the case is replaced by two or three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fusedreduce.ir.expr import Expr, call, const
from fusedreduce.laws import linear
from fusedreduce.laws.elimination import eliminate, vanish
from fusedreduce.laws.linear import Row
from fusedreduce.laws.rationals import exact
from fusedreduce.laws.ratios import Poly, Ratio, Undefined
from fusedreduce.laws.reading import Infinite, Unsupported, Value, apply, is_exact
from fusedreduce.laws.signs import logarithmic, row_of
from fusedreduce.laws.symbols import Tower

_RELATION = {"gt": ">", "ge": ">=", "eq": "="}
_SWAPPED = {"lt": "gt", "le": "ge"}
_NEGATED = {"gt": "le", "ge": "lt", "le": "gt", "lt": "ge"}


class Open(Exception):
    """A comparison that a case does not settle: the facts of the cases that replace it.

    edge  when the sign of a factor was asked: the factor, which may be 0 where nothing has a value
    """

    def __init__(self, *cases: Expr, edge: Expr | None = None) -> None:
        super().__init__(*cases)
        self.cases = cases
        self.edge = edge


@dataclass
class Case:
    """One case: a tower, what is known there, and the values of the symbols."""

    tower: Tower
    env: dict[str, Value]
    rows: list[Row] = field(default_factory=list)
    memo: dict[Expr, Value] = field(default_factory=dict)
    asked: dict[tuple[Row, int], bool] = field(default_factory=dict)

    # ---- reading

    def read(self, e: Expr) -> Value:
        """The value of an expression in this case; long expressions need no deep stack."""
        stack = [e]
        while e not in self.memo:
            node = stack[-1]
            unread = [a for a in self._needed(node) if a not in self.memo]
            if unread:
                stack += reversed(unread)
                continue
            if node not in self.memo:
                self.tower.check_time()
                self.memo[node] = self._read(node)
            stack.pop()
        return self.memo[e]

    def _needed(self, e: Expr) -> tuple[Expr, ...]:
        """The arguments that a node needs, as far as that is known already."""
        if e.op not in ("where", "and", "or"):
            return e.args
        first, *rest = e.args
        if first not in self.memo:
            return (first,)
        known = self.memo[first]
        if not isinstance(known, bool):
            return e.args
        if e.op == "where":
            return (first, rest[0] if known else rest[1])
        return (first,) if known == (e.op == "or") else e.args

    def number(self, e: Expr) -> Ratio:
        value = self.read(e)
        if isinstance(value, bool):
            return self.tower.number(int(value))
        if isinstance(value, Infinite):
            raise Undefined("an infinite value")
        return value

    def _read(self, e: Expr) -> Value:
        if e.op == "var":
            return self.env[str(e.value)]
        if e.op == "const":
            return self._constant(e)
        if e.op == "where":
            return self._chosen(e)
        if e.op in ("and", "or"):
            return self._both(e)
        if e.op in _COMPARE:
            return self.compare(e.op, *e.args)
        if e.op in ("maximum", "minimum"):
            return self._choose(e)
        if e.op in ("abs", "sign"):
            return self._signed(e)
        if e.op == "cast" and not is_exact(e):
            raise Unsupported(f"a conversion to {e.value}")
        return apply(self, e.op, tuple(self.read(a) for a in e.args))

    def _both(self, e: Expr) -> Value:
        """and, or; of conditions that are an unknown 0 or 1 by a b and 1 - (1 - a) (1 - b)."""
        decides = e.op == "or"
        a = self.read(e.args[0])
        if isinstance(a, bool):
            return decides if a == decides else self.read(e.args[1])
        b = self.read(e.args[1])
        if isinstance(b, bool):
            return decides if b == decides else a
        x, y, one = self.number(e.args[0]), self.number(e.args[1]), self.tower.one
        return one - (one - x) * (one - y) if decides else x * y

    def _chosen(self, e: Expr) -> Value:
        """The branch of a `where`; both of them, b * yes + (1 - b) * no, for an unknown b."""
        b = self.read(e.args[0])
        if isinstance(b, bool):
            return self.read(e.args[1] if b else e.args[2])
        if isinstance(b, Infinite):
            raise Unsupported("a condition")
        yes, no = self.number(e.args[1]), self.number(e.args[2])
        return b * yes + (self.tower.one - b) * no

    def _constant(self, e: Expr) -> Value:
        if isinstance(e.value, bool):
            return e.value
        assert isinstance(e.value, (int, float))
        if isinstance(e.value, float) and not math.isfinite(e.value):
            if math.isnan(e.value):
                raise Undefined("NaN")
            return Infinite(1 if e.value > 0 else -1)
        return self.tower.number(exact(float(e.value)) if isinstance(e.value, float) else e.value)

    def _choose(self, e: Expr) -> Value:
        """maximum or minimum; on a tie either is right, so a settled <= settles it too."""
        a, b = e.args
        left, right = self.read(a), self.read(b)
        above = self._settled(left, right)
        if above is None:
            raise Open(call("ge", a, b), call("lt", a, b))
        return left if above == (e.op == "maximum") else right

    def _settled(self, left: Value, right: Value) -> bool | None:
        """left >= right is True, left <= right is False, None if neither is settled."""
        if isinstance(left, Infinite) or isinstance(right, Infinite):
            return _extended(left) >= _extended(right)
        difference = self._difference(left, right)
        if difference is None:
            return None
        if self.holds(difference, ">=") is True:
            return True
        return False if self.holds(-difference, ">=") is True else None

    def _signed(self, e: Expr) -> Value:
        (a,) = e.args
        v, zero = self.read(a), const(0.0)
        above = self._settled(v, self.tower.zero)
        if e.op == "abs":
            if above is None:
                raise Open(call("ge", a, zero), call("lt", a, zero))
            assert not isinstance(v, bool)
            return v if above else -v
        if self.compare("eq", a, zero):
            return self.tower.zero
        return self.tower.number(1 if self.compare("gt", a, zero) else -1)

    def compare(self, op: str, a: Expr, b: Expr) -> bool:
        """a op b as a boolean, or `Open`."""
        if op == "ne":
            return not self.compare("eq", a, b)
        if op in _SWAPPED:
            return self.compare(_SWAPPED[op], b, a)
        left, right = self.read(a), self.read(b)
        if isinstance(left, bool) and isinstance(right, bool):
            left, right = self.tower.number(int(left)), self.tower.number(int(right))
        if isinstance(left, Infinite) or isinstance(right, Infinite):
            x, y = _extended(left), _extended(right)
            return {"gt": x > y, "ge": x >= y, "eq": x == y}[op]
        difference = self._difference(left, right)
        known = None if difference is None else self.holds(difference, _RELATION[op])
        if known is None:
            raise Open(*(call(o, a, b) for o in _SPLITS[op]))
        return known

    # ---- facts

    def _difference(self, left: Value, right: Value) -> Poly | None:
        """A polynomial with the sign of left - right; None if the sign of its divisor is open."""
        one, zero = self.tower.one, self.tower.zero
        a, b = ((one if v else zero) if isinstance(v, bool) else v for v in (left, right))
        assert isinstance(a, Ratio)
        assert isinstance(b, Ratio)
        d = a - b
        positive = self._divisor_is_positive(d.den)
        if positive is None:
            return None
        p = self.tower.reduced(d.num if positive else -d.num)
        return logarithmic(self.tower, p) or p

    def _divisor_is_positive(self, p: Poly) -> bool | None:
        """p > 0? A divisor is not 0, so terms that are >= 0 are enough."""
        terms = p.terms()
        if all(self.tower.term_sign(m) for m, _ in terms):
            if all(c > 0 for _, c in terms):
                return True
            if all(c < 0 for _, c in terms):
                return False
        return self.tower.is_positive(p)

    def truth(self, v: Ratio, relation: str) -> bool:
        difference = self._difference(v, self.tower.zero)
        known = None if difference is None else self.holds(difference, relation)
        if known is None:
            raise Unsupported("a sign that is open beside an infinity")
        return known

    def is_nonzero(self, v: Ratio) -> bool:
        return self.holds(self.tower.reduced(v.num), "=") is False

    def holds(self, p: Poly, relation: str) -> bool | None:
        """p > 0, p >= 0 or p = 0: certainly, certainly not, or None."""
        if not p:
            return relation != ">"
        if p.is_ground:
            value = int(p.coeff(1))
            return {"=": value == 0, ">": value > 0, ">=": value >= 0}[relation]
        if relation == "=":
            if not self.possible(p, "="):
                return False
            return None if self.possible(p, ">") or self.possible(-p, ">") else True
        if not self.possible(-p, ">=" if relation == ">" else ">"):
            return True
        return None if self.possible(p, relation) else False

    def possible(self, p: Poly, relation: str) -> bool:
        self.tower.check_time()
        row = row_of(self.tower, p, relation)
        key = row, len(self.rows)
        if key not in self.asked:
            rows = linear.connected(self.rows, row)
            self.asked[key] = linear.feasible(rows, self.tower.term_sign)  # type: ignore[arg-type]
        return self.asked[key]

    def learn(self, fact: Expr) -> bool:
        """Take a comparison to be true; False if that contradicts the case."""
        op, (a, b) = fact.op, fact.args
        if op == "ne":
            return not self._equal_or_split(a, b)
        if op in _SWAPPED:
            op, a, b = _SWAPPED[op], b, a
        left, right = self.read(a), self.read(b)
        if isinstance(left, Infinite) or isinstance(right, Infinite):
            return self.compare(op, a, b)
        p = self._difference(left, right)
        if p is None:
            return True  # a fact that cannot be used is left out
        if not p:
            return op != "gt"
        if not self.possible(p, _RELATION[op]):
            return False
        self.rows.append(row_of(self.tower, p, _RELATION[op]))
        if op == "eq" or (op == "ge" and not self.possible(p, ">")):
            eliminate(self, p)
        vanish(self)
        return True

    def _equal_or_split(self, a: Expr, b: Expr) -> bool:
        """a = b? If it is open, a > b and a < b are two cases."""
        try:
            return self.compare("eq", a, b)
        except Open:
            raise Open(call("gt", a, b), call("lt", a, b)) from None


def _extended(v: Value) -> int:
    return v.sign if isinstance(v, Infinite) else 0


_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_SPLITS = {"gt": ("gt", "le"), "ge": ("ge", "lt"), "eq": ("eq", "gt", "lt")}
