"""The row skeleton: one read of the row when it fits on chip, a pass a level when it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedreduce.ir.expr import Expr, names, var
from fusedreduce.kernels.access import Access
from fusedreduce.kernels.body import Body
from fusedreduce.kernels.corrected import CorrectedPrinter
from fusedreduce.kernels.functions import FUNCTIONS
from fusedreduce.kernels.general import GeneralPrinter
from fusedreduce.kernels.header import header
from fusedreduce.kernels.lower import lowered
from fusedreduce.kernels.names import identifier
from fusedreduce.kernels.script import script
from fusedreduce.plan.layout import Layout
from fusedreduce.plan.rows import RowPlan, element_outputs
from fusedreduce.program import Output, Program, Stage

PRINTERS: dict[str, type[CorrectedPrinter] | type[GeneralPrinter]] = {
    "corrected": CorrectedPrinter,
    "general": GeneralPrinter,
}


@dataclass(frozen=True)
class PrintedKernel:
    """A module's text and how to launch the kernel in it.

    arguments   names in order: tensors ("x_ptr"), numbers, "M", "N", sizes and strides
    constants   compile-time arguments and their values
    """

    name: str
    source: str
    arguments: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]


@dataclass
class RowPrinter:
    """Prints one program for one plan and layout."""

    program: Program
    plan: RowPlan
    layout: Layout
    title: str
    certificates: Sequence[str] = ()
    body: Body = field(init=False)
    access: Access = field(init=False)

    def __post_init__(self) -> None:
        self.source_program = self.program
        self.program = lowered(self.program)
        self.body = Body(self.program, self.plan)
        for f in FUNCTIONS:
            self.body.namer.taken.add(f)
        for i in self.program.inputs:
            self.body.namer.taken.add(identifier(i.name))
        self.access = Access(self.body, self.layout)
        self.stages = {s.name: PRINTERS[s.record.form](self.body, s) for s in self.program.stages}

    def print(self) -> PrintedKernel:
        name = identifier(self.title)
        self.body.namer.taken |= {name, *(f"{o.name}_ptr" for o in self.program.outputs)}
        self.body.writer.depth = 1
        if self.plan.programs:
            self.print_persistent()
        elif self.plan.strategy == "block":
            self.access.rows()
            self.access.column()
            self.print_block()
        else:
            self.access.rows()
            self.access.column()
            self.print_loop()
        arguments = self.access.arguments()
        constants = [("BLOCK", self.plan.BLOCK)]
        if self.plan.tiled:
            constants.insert(0, ("ROWS", self.plan.ROWS))
        signature = [self.annotated(a) for a in arguments]
        signature += [f"{c}: tl.constexpr" for c, _ in constants]
        text = self.module(name, signature)
        text += "\n\n" + script(
            self.source_program, self.plan, self.layout, name, arguments, constants
        )
        return PrintedKernel(name, text, tuple(arguments), tuple(constants))

    def annotated(self, argument: str) -> str:
        """A number of a float64 kernel must not arrive as float32."""
        number = any(i.number and i.name == argument for i in self.program.inputs)
        wide = number and self.program.state == "float64"
        return f"{argument}: tl.float64" if wide else argument

    def module(self, name: str, signature: Sequence[str]) -> str:
        functions = self.body.functions
        parts = [
            header(self.source_program, self.plan, self.title, self.certificates),
            "import triton\nimport triton.language as tl\n",
        ]
        parts += [FUNCTIONS[n].text.strip("\n") + "\n" for n in self.library()]
        parts += list(functions.texts.values())
        kernel = Body(self.program, self.plan).writer
        kernel.line("@triton.jit")
        kernel.line(f"def {name}({', '.join(signature)}):")
        parts.append(kernel.text() + self.body.writer.text())
        return parts[0] + "\n" + "\n\n".join(parts[1:])

    def library(self) -> list[str]:
        """The printed helpers in use, each after those it needs."""
        order: dict[str, None] = {}

        def visit(name: str) -> None:
            for need in FUNCTIONS[name].needs:
                visit(need)
            order[name] = None

        for name in self.body.functions.library:
            visit(name)
        return list(order)

    # -- one block

    def print_persistent(self) -> None:
        """Each program goes through its share of the rows; columns' sums stay in registers."""
        w = self.body.writer
        self.access.column()
        for name in self.read_by_all():
            if self.access.place_of(name) in ("column", "scalar"):
                self.access.load(name)
        sums = {o.name: self.body.namer.claim(o.name) for o in self.program.sums}
        for name in sums.values():
            zeros = f"tl.full((ROWS, BLOCK), 0.0, tl.{self.program.state})"
            w.line(f"{name} = {zeros}")
        share, shares = "tl.program_id(0)", "tl.num_programs(0)"
        if self.plan.parts > 1:
            share, shares = "share", "tl.num_programs(0) // parts"
        steps = f"{share}, tl.cdiv(M, ROWS), {shares}"
        stages = f"num_stages={self.plan.num_stages}"
        with w.block(f"for tile in tl.range({steps}, {stages}):"), self.body.inner():
            self.access.rows("tl.cast(tile, tl.int64)")
            self.print_block()
            for o in self.program.sums:
                text = self.body.at(self.body.text(o.expr), self.body.place(o.expr), "element")
                w.line(f"{sums[o.name]} += tl.where(inside, {text}, 0.0)")
        for o in self.program.sums:
            self.access.store_sums(o.name, f"tl.sum({sums[o.name]}, 0)")

    def print_block(self) -> None:
        self.access.columns("column")
        for name in self.read_by_all():
            if not self.ready(name):
                self.access.load(name)
        self.load_firsts([s for level in self.program.levels for s in level])
        for level in self.program.levels:
            for stage in level:
                self.stages[stage.name].block()
                self.stages[stage.name].finish()
        for output in self.program.outputs:
            if not output.summed:
                self.store(output)

    def read_by_all(self) -> list[str]:
        exprs = [o.expr for o in self.program.outputs]
        exprs += [e for s in self.program.stages for e in stage_operands(s)]
        return [i.name for i in self.program.inputs if i.name in set(names(*exprs))]

    # -- a loop a level

    def print_loop(self) -> None:
        w = self.body.writer
        for name in self.read_by_all():
            if not self.access.varies_by_column(name):
                self.access.load(name)
        for level in self.program.levels:
            printers = [self.stages[s.name] for s in level]
            self.load_firsts(level)
            self.body.hoist([e for s in level for e in stage_operands(s)], self.ready)
            for p in printers:
                p.start()
            with w.block("for start in range(0, N, BLOCK):"), self.body.inner():
                self.load_step([e for s in level for e in stage_operands(s)])
                for p in printers:
                    p.begin_step()
                    p.step()
            for p in printers:
                p.after()
                p.finish()
        elements = element_outputs(self.program)
        for output in self.program.outputs:
            if output not in elements:
                self.store(output)
        if elements:
            self.body.hoist([o.expr for o in elements], self.ready)
            with w.block("for start in range(0, N, BLOCK):"), self.body.inner():
                self.load_step([o.expr for o in elements], [o.name for o in elements])
                for output in elements:
                    self.store(output)

    def ready(self, name: str) -> bool:
        return var(name) in self.body.known

    def load_step(self, exprs: Sequence[Expr], outputs: Sequence[str] = ()) -> None:
        """The tile's columns and the operands that vary along them."""
        self.access.columns("start + column")
        for i in self.program.inputs:
            if i.name in set(names(*exprs)) and self.access.varies_by_column(i.name):
                self.access.load(i.name)

    def load_firsts(self, level: Sequence[Stage]) -> None:
        """What `First` fields need: operands at the first column."""
        for s in level:
            for f in s.record.fields:
                if f.kind != "First" or f.term is None:
                    continue
                printer = self.stages[s.name]
                for n in names(f.term):
                    if n in printer.operand_text:
                        wish = f.name if f.term.op == "var" else ""
                        at_first = self.access.first(printer.operand_text[n], wish)
                        printer.first_operands[n] = at_first

    # -- outputs

    def store(self, output: Output) -> None:
        expr = output.expr
        target = self.access.target(output.name)
        text = self.body.text(expr) if not expr.args else self.body.define(expr, [output.name])
        text = self.body.at(text, self.body.place(expr), target)
        self.access.store(output.name, text)


def stage_operands(stage: Stage) -> list[Expr]:
    """The operand expressions that the stage's fields read."""
    fields = stage.record.fields
    exprs = [f.term for f in fields if f.term is not None] or list(stage.record.lift)
    used = set(names(*exprs))
    return [e for n, e in stage.operands if n in used]


def print_rows(
    program: Program,
    plan: RowPlan,
    layout: Layout,
    title: str,
    certificates: Sequence[str] = (),
) -> PrintedKernel:
    """The module that runs `program` by `plan` on tensors that lie as `layout` says."""
    return RowPrinter(program, plan, layout, title, certificates).print()
