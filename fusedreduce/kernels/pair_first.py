"""The state from which a forward pair kernel starts: that of an element before the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedreduce.declare.record import Record
from fusedreduce.ir.expr import Expr, call, names, rewrite, var, walk, where
from fusedreduce.kernels.base_two import LOG2_E, scaled
from fusedreduce.kernels.lower import lower
from fusedreduce.kernels.pair_access import PairAccess
from fusedreduce.kernels.pair_frame import Frame
from fusedreduce.kernels.spelling import literal
from fusedreduce.pair import INDICES, first_state
from fusedreduce.program import widest


@dataclass(frozen=True)
class First:
    """Operands of the element, and its state over them and the indices b, h and i.

    outweighs   (operand, number): all references are extremes of this operand, which no key moves
                from that number, and then every tile needs its guards; None where that is unknown
    """

    frame: Frame
    operands: Mapping[str, Expr]
    state: Mapping[str, Expr]
    outweighs: tuple[str, float] | None = None

    @classmethod
    def of(cls, frame: Frame, record: Record, in_twos: str) -> First | None:
        """Of the pair that is printed, None where it has no such element.

        record    as the kernel keeps it: its operand `in_twos` is log2(e) times that of the pair
        """
        pair = frame.pair
        if not pair.first:
            return None
        given = {n: e for n, e in pair.first if e.op != "const"}
        fixed = {n: e for n, e in pair.first if e.op == "const"}
        if in_twos:
            given[in_twos] = scaled(given[in_twos], LOG2_E, frame.is_scalar)
        kinds = dict.fromkeys(record.operands, "float") | dict.fromkeys(INDICES, "int")
        state = {n: lower(rewrite(e, _from_itself), kinds, pair.state, None)
                 for n, e in first_state(record, fixed).items()}  # fmt: skip
        lowered = {n: frame.lowered(e) for n, e in given.items()}
        return cls(frame, lowered, state, outweighing(record))

    def odd(self) -> str:
        """Is it such an element, in some row? After `printed`."""
        assert self.outweighs is not None
        name, number = self.outweighs
        x = self.operands[name]
        text = f"{self.frame.body.text(x)} == {literal(number)}"
        if self.frame.body.place(x) == "row":
            text = f"tl.max(({text}).to(tl.int32), 0) > 0"
        return text

    def printed(self, access: PairAccess, user: Mapping[Expr, str]) -> dict[str, tuple[str, str]]:
        """Print what is read; text and place of each slot. Of split keys the first part has it."""
        body, split = self.frame.body, self.frame.blocks.splits
        exprs = [*self.operands.values()]
        self.frame.use(*exprs)
        access.load_reads(exprs, ("scalar", "row"), masked=True)
        given = {n: body.define(e, [f"first_{n}"]) for n, e in self.operands.items()}
        nothing = {s.name: literal(s.identity) for s in self.frame.pair.record.slots}
        found = {}
        for n, e in self.state.items():
            text = self.applied(f"first_{n}", e, given, user)
            place = widest(body.place(self.operands.get(p, var(p))) for p in names(e))
            if split and n in nothing:
                text = f"tl.where(split == 0, {text}, {nothing[n]})"
            found[n] = text, place
        return found

    def applied(
        self, wish: str, e: Expr, given: Mapping[str, str], user: Mapping[Expr, str]
    ) -> str:
        """A call of a printed helper for e; e itself where it is a name or a number."""
        if e.op == "const":
            return literal(e.value)
        arguments = [given.get(n, n) for n in names(e)]
        if e.op == "var":
            return arguments[0]
        finite = {n: f"finite_{n.args[2].value}" for n in walk(e)
                  if n.op == "where" and n.args[2].op == "var"}  # fmt: skip
        name = self.frame.body.functions.define(wish, names(e), e, {**user, **finite})
        return f"{name}({', '.join(arguments)})"


def _from_itself(n: Expr) -> Expr | None:
    """x - x as 0, and as NaN where it is.

    NOTE: where x is a product the hardware subtracts its rounded value from the exact one; of
    x = -1e30 6e22 is left, whose exp is infinite.
    """
    if n.op != "sub":
        return None
    x, other = n.args
    same = other is x or (other.op == "where" and x in other.args)
    return where(call("eq", x, other), 0.0, n) if same else None


def outweighing(record: Record) -> tuple[str, float] | None:
    """The operand and the number at which an element is the extreme for good."""
    free = {(f.kind, f.term) for f in record.references}
    if len(free) != 1:
        return None
    ((kind, term),) = free
    if term is None or term.op != "var" or kind not in ("Max", "Min"):
        return None
    return str(term.value), float("inf") if kind == "Max" else float("-inf")
