"""The general form printed: lift every element, merge the tile, merge the tiles."""

from __future__ import annotations

from collections.abc import Sequence

from fusedreduce.declare.record import Field
from fusedreduce.ir.expr import Expr
from fusedreduce.kernels.spelling import literal
from fusedreduce.kernels.stage import StagePrinter, tuple_of


class GeneralPrinter(StagePrinter):
    """Prints a stage that merges states of its elements."""

    def block(self) -> None:
        """The whole row in one block."""
        self.tile(self.value)

    def after(self) -> None:
        """After the loop: what the loop carried is the state of the row."""
        self.value |= self._claimed

    def start(self) -> None:
        """Before the loop: the identity of every field."""
        for f in self.record.fields:
            self.value[f.name] = self.full(f.name, f.identity, f.type)

    def merge_helper(self) -> str:
        fields = [f.name for f in self.record.fields]
        parameters = [f"{s}_{n}" for s in ("a", "b") for n in fields]
        lines, local = self.body.functions.bodies(self.record.merge, parameters, self.user)
        lines.append(f"return {', '.join(local)}")
        return self.body.functions.add(f"merge_{self.stage.name}", parameters, lines)

    def present_helper(self, merge: str) -> str:
        """Edge rule (e): a side with no element is not merged."""
        fields = [f.name for f in self.record.fields]
        parameters = [f"{s}_{n}" for s in ("a", "b") for n in ("present", *fields)]
        sides = ", ".join(f"{s}_{n}" for s in ("a", "b") for n in fields)
        lines = [f"{', '.join(fields)} = {merge}({sides})"]
        for n in fields:
            lines.append(f"{n} = tl.where(b_present == 0, a_{n}, {n})")
            lines.append(f"{n} = tl.where(a_present == 0, b_{n}, {n})")
        lines.append(f"return a_present | b_present, {', '.join(fields)}")
        return self.body.functions.add(f"{merge}_present", parameters, lines)

    def tile(self, into: dict[str, str], suffix: str = "") -> None:
        """Lift every element and merge the tile: unordered when the merge commutes, else a scan."""
        merge = self.merge_helper()
        plan = self.body.plan
        lifted = [
            self.lifted(f, e) for f, e in zip(self.record.fields, self.record.lift, strict=True)
        ]
        variables = [self.claim(f"{f.name}{suffix}") for f in self.record.fields]
        everyone = plan.even and not plan.tiled
        if not everyone:
            merge = self.present_helper(merge)
            present = self.claim("present")
            self.body.writer.line(f"{present} = inside.to(tl.int32)", self.body.shape("element"))
            lifted.insert(0, present)
        targets = variables if everyone else ["_", *variables]
        if self.record.commutative:
            self.body.writer.line(
                f"{', '.join(targets)} = tl.reduce({tuple_of(lifted)}, {self.axis}, {merge})"
            )
        else:
            self.scan(targets, lifted, merge)
        into.update(zip((f.name for f in self.record.fields), variables, strict=True))

    def scan(self, targets: Sequence[str], lifted: Sequence[str], merge: str) -> None:
        """The merge does not commute, and tl.reduce reorders: scan in order and take the last."""
        w = self.body.writer
        folded = ["_" if t == "_" else f"{t}_scan" for t in targets]
        w.line(
            f"{', '.join(folded)} = tl.associative_scan({tuple_of(lifted)}, {self.axis}, {merge})"
        )
        last = "tl.arange(0, BLOCK) == BLOCK - 1"
        last = f"({last})[None, :]" if self.body.plan.tiled else last
        for t, f in zip(targets, folded, strict=True):
            if t != "_":
                self.row(t, f"tl.sum(tl.where({last}, {f}, 0), {self.axis})")

    def lifted(self, f: Field, expr: Expr) -> str:
        """One component of the lift, at full tile shape and in the field's dtype."""
        dtype = self.dtype(f.type)
        if expr.op == "const" and expr.value == f.identity:
            shape = self.body.shape("element")
            text = f"tl.full({shape}, {literal(f.identity)}, {dtype})"
        else:
            text = self.apply(f"lift_{f.name}", expr, "element")
            text = f"tl.where(inside, {text}, {literal(f.identity)})"
            text += "" if dtype == "tl.float32" else f".to({dtype})"
        name = self.claim(f"{f.name}_lift")
        self.body.writer.line(f"{name} = {text}", self.body.shape("element"))
        return name

    def step(self) -> None:
        tile: dict[str, str] = {}
        self.tile(tile, "_tile")
        merge = self.merge_helper()
        fields = [f.name for f in self.record.fields]
        new = [self.claim(f"{n}_new") for n in fields]
        sides = [*(self.value[n] for n in fields), *(tile[n] for n in fields)]
        self.body.writer.line(f"{', '.join(new)} = {merge}({', '.join(sides)})")
        self.need_first()
        for n, t in zip(fields, new, strict=True):
            self.row(self.value[n], f"tl.where(first, {tile[n]}, {t})")
