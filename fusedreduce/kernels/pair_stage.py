"""The state of a pair: steps of the corrected form on a tile of scores, payloads as matmuls."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fusedreduce.declare.record import NO_POSITION, Field, Record
from fusedreduce.ir.expr import Expr, names, var, walk
from fusedreduce.kernels.corrected import CorrectedPrinter
from fusedreduce.kernels.general import GeneralPrinter
from fusedreduce.kernels.stage import tight, tuple_of
from fusedreduce.kernels.writer import brackets
from fusedreduce.program import widest


class PairState(CorrectedPrinter):
    """Steps of a corrected form in which every field counts what is inside the mask.

    even      no element of this tile is masked
    absorbed  masked scores are -inf, and every field takes an element of -inf as none
    positive  the scalar that multiplies the raw score in `x` is positive: extremes of the raw score
              come first
    moderate  operands that are finite whatever the score is
    begun     the state before any key, slot by slot: text and place; {} where it is the identity
    """

    LENGTH = "Sk"
    in_order = False
    even = False
    absorbed = False
    positive: Expr | None = None
    moderate: frozenset[str] = frozenset()
    begun: Mapping[str, tuple[str, str]] = MappingProxyType({})
    weights: Mapping[str, Expr]  # of the payload, by vector field

    @property
    def parts(self) -> dict[str, Expr]:
        """Of each weight all of it, or the factor that is a plain sum's term beside a moderate one.

        Where such a term is 0 the weight is.
        """
        plain = {f.term for f in self.numbers() if f.kind == "Sum"}
        found = dict(self.weights)
        for n, weight in self.weights.items():
            sides = [weight.args, weight.args[::-1]] if weight.op == "mul" else []
            for a, b in sides:
                if a in plain and b.op == "var" and b.value in self.moderate:
                    found[n] = a
        return found

    def full(self, name: str, identity: object, type_: str) -> str:
        """A row variable that starts as the state before any key says.

        NOTE: Triton's interpreter makes floats of a truth value that fills a tile (3.6 to 3.9).
        """
        if name not in self.begun:
            return super().full(name, identity, type_)
        text, place = self.begun[name]
        if place == "scalar" and type_ == "bool" and text.endswith(")"):
            text = f"tl.full(({self.body.ROWS},), {tight(text)}.to(tl.int32), tl.int32) != 0"
        elif place == "scalar":
            text = f"tl.full(({self.body.ROWS},), {text}, {self.dtype(type_)})"
        return self.row(self.claim(name), text)

    def masked(self, text: str, identity: str, place: str, present: str = "") -> str:
        if text in self.covered:
            return text
        inside = "" if self.even or self.absorbed else "inside"
        if not inside and not present:
            return text
        condition = f"{inside} & {present}" if inside and present else inside or bare(present)
        return f"tl.where({condition}, {text}, {identity})"

    def term_place(self, f: Field) -> str:
        """A term is a whole tile, so that it can be reduced along the keys."""
        return "element"

    def spread(self, text: str, term: Expr, dtype: str) -> str:
        """The text of a term as a whole tile, whatever it varies with."""
        place = widest(self.place_of(n) for n in names(term))
        shape = self.body.shape("element")
        if place == "scalar":
            return f"tl.full({shape}, {text}, {dtype})"
        return text if place == "element" else f"tl.broadcast_to({text}, {shape})"

    @property
    def everyone(self) -> bool:
        return self.even

    def nowhere(self, at: str) -> str:
        return at if self.even else f"tl.where({at} == Sk, {NO_POSITION}, {at})"

    def is_count(self, f: Field) -> bool:
        return False

    def is_lane_sum(self, f: Field) -> bool:
        return False

    def begin_step(self) -> None:
        super().begin_step()
        self.terms: dict[Expr, str] = {}  # the tiles that have a name in this step
        self.covered: set[str] = set()  # those that are the identity where masked

    def contribution(self, f: Field) -> str:
        """A term that several fields need, or that is the payload's weight, has a name."""
        assert f.term is not None
        text = self.spread(super().contribution(f), f.term, self.dtype(f.type))
        parts = self.parts
        used = [g for g in self.record.fields if parts.get(g.name, g.term) is f.term]
        if f.kind != "Sum" or len(used) < 2 or not f.term.args:
            return text
        return self.named(f, f.term, text)

    def named(self, f: Field, term: Expr, text: str) -> str:
        """The tile of a sum's terms, 0 where masked."""
        if term not in self.terms:
            text = self.masked(text, "0.0", "element", self.present(f))
            name = self.terms[term] = self.body.assign(["p", "p_tile"], text, "element")
            self.covered.add(name)
        return self.terms[term]

    def extreme(self, f: Field, text: str) -> str:
        """max(score) * scale for max(score * scale), where the scale is positive."""
        if self.positive is not None and self.even and not self.propagates(f):
            x = f.term
            operand = self.operand_text.get(str(x.value)) if x is not None and not x.args else None
            if operand is not None and operand.op == "mul" and operand.args[1] is self.positive:
                raw = self.body.at(self.body.text(operand.args[0]), "element", "element")
                return f"{self.reduced(f.kind, raw)} * {self.body.text(self.positive)}"
        return super().extreme(f, text)

    # -- payload fields

    def corrected_vector(self, f: Field, part: str) -> str:
        """A part of a payload field at the new references."""
        if f.correct is None or not self.is_corrected(f):
            return part
        parameters = list(dict.fromkeys(names(f.correct)))
        name = self.body.functions.define(
            f"correct_{f.name}", [p.replace(".", "_") for p in parameters], f.correct, self.user
        )
        given = [part if p == f.name else f"{self.side(f, p)}[:, None]" for p in parameters]
        return f"{name}({', '.join(given)})"

    def weight(self, f: Field) -> str:
        """The payload's weight on this tile, 0 where masked."""
        expr, part = self.weights[f.name], self.parts[f.name]
        if expr not in self.terms and part in self.terms:
            factor = next(a for a in expr.args if a is not part)
            text = f"{self.terms[part]} * {self.argument(str(factor.value), 'element')}"
            self.terms[expr] = self.body.assign(["weight", f"weight_of_{f.name}"], text, "element")
        elif expr not in self.terms:
            text = self.apply(f"weight_{f.name}", expr, "element")
            self.named(f, expr, self.spread(text, expr, self.dtype("float")))
        return self.terms[expr]


def absorbs(record: Record, weights: Mapping[str, Expr], x: str) -> bool:
    """Does every field take an element with x = -inf as none, with no select of its own?

    weights   of vector fields, what of them is a plain sum's term

    A payload's weight does where a plain sum of the same term does: what the payload holds at such
    an element is not asked.
    """
    plain = {f.term for f in record.fields if f.kind == "Sum" and f.name not in weights
             and not record.guarded(f"present:{f.name}")}  # fmt: skip
    for f in record.fields:
        free = [r for r in record.free_references(f.name) if r.term is var(x)]
        sums = f.kind == "Sum" and bool(free) and weights.get(f.name, f.term) in plain
        extreme = f.kind == "Max" and f.term is var(x) and f.type == "float"
        if not sums and not extreme:
            return False
    return True


def underflows(record: Record, name: str) -> bool:
    """Do corrections read an old reference at its identity as exp(-inf) alone, which is 0?"""
    old = var(f"old.{name}")
    side = {float("-inf"): 0, float("inf"): 1}.get(float(record.by_name[name].identity or 0))
    corrections = [f.correct for f in record.fields if f.correct is not None]
    differences = [n for n in walk(*corrections) if old in n.args]
    users = [n for n in walk(*corrections) if any(d in n.args for d in differences)]
    falling = all(n.op == "sub" and side is not None and n.args[side] is old for n in differences)
    return falling and all(n.op in ("exp", "exp2") for n in users)


def bare(text: str) -> str:
    """Without the parentheses around all of it."""
    return text[1:-1] if brackets(text) == [(0, len(text) - 1)] else text


class PairGeneral(GeneralPrinter):
    """A general form: tiles merge with the row's state where either holds an element."""

    def start(self) -> None:
        super().start()
        self.seen = self.row(self.claim("seen"), "tl.full((QUERIES,), 0, tl.int32)")

    def update(self) -> dict[str, str]:
        tile: dict[str, str] = {}
        merge = self.present_helper(self.merge_helper())
        lifted = [
            self.lifted(f, e) for f, e in zip(self.record.fields, self.record.lift, strict=True)
        ]
        present = self.claim("present")
        self.body.writer.line(f"{present} = inside.to(tl.int32)", self.body.shape("element"))
        fields = [f.name for f in self.record.fields]
        tile_names = [self.claim("seen_tile"), *(self.claim(f"{n}_tile") for n in fields)]
        inputs = tuple_of([present, *lifted])
        if self.record.commutative:
            self.body.writer.line(f"{', '.join(tile_names)} = tl.reduce({inputs}, 1, {merge})")
        else:
            self.scan(tile_names, [present, *lifted], merge)
        state = [self.seen, *(self.value[n] for n in fields)]
        self.body.writer.line(f"{', '.join(state)} = {merge}({', '.join([*state, *tile_names])})")
        return tile

    def settle(self, new: dict[str, str]) -> None:
        """Everything was merged in place."""
