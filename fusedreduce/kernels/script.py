"""The end of a printed kernel: run as a script, it compares the kernel with the plain formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusedreduce.kernels.formula import Formula
from fusedreduce.kernels.names import TAKEN, Namer, identifier
from fusedreduce.kernels.writer import Writer
from fusedreduce.plan.layout import Layout
from fusedreduce.plan.rows import RowPlan
from fusedreduce.program import Input, Program, dtype_kind

COMPARE = '''
def compare(name, got, wanted, tolerance):
    """Is the largest difference small beside the largest value wanted? NaN equals NaN."""
    got, wanted = got.double(), wanted.double()
    if wanted.isnan().all():
        print(f"{name}: nothing to compare, these random inputs give NaN")
        return bool(got.isnan().all())
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    difference = (got - wanted).abs().masked_fill(same, 0.0).max().item()
    allowed = tolerance * max(1e-3, wanted.nan_to_num(0.0, 0.0, 0.0).abs().max().item())
    outcome = "ok" if difference <= allowed else "WRONG"
    print(f"{name}: largest difference {difference:.1e}, allowed {allowed:.1e}: {outcome}")
    return difference <= allowed
'''
#: What a kernel may differ by: rounding of its results, and of sums in its state's dtype.
TOLERANCES = {"float64": "1e-10", "float32": "1e-4", "float16": "1e-3", "bfloat16": "1e-2"}
NUMBERS = ("0.5", "0.25", "0.75", "0.125")  # exact in every dtype
ROWS = (4, 3, 2)  # of one outer axis alone; of the first of several; of the others
LARGEST = {"int8": 127, "uint8": 255, "int16": 32767, "uint16": 65535}


@dataclass
class Script:
    """Prints `main`: the sizes are the kernel's, but the rows are always few."""

    program: Program
    plan: RowPlan
    layout: Layout
    kernel: str
    arguments: Sequence[str]
    constants: Sequence[tuple[str, int]]

    def __post_init__(self) -> None:
        self.outer = self.letters("R", "M", self.layout.outer)
        self.reduced = self.letters("C", "N", self.layout.reduced)
        self.sizes = [*self.row_sizes(), *self.column_sizes()]
        local = {self.kernel, "torch", "compare", "ok"}
        self.namer = Namer({*TAKEN, *local, *self.outer, *self.reduced})
        given = [*(i.name for i in self.program.inputs), *(o.name for o in self.program.outputs)]
        self.name = {n: self.namer.claim(n) for n in given}
        self.writer = Writer()

    @staticmethod
    def letters(many: str, one: str, sizes: Sequence[int]) -> list[str]:
        return [one] if len(sizes) == 1 else [f"{many}{k}" for k in range(len(sizes))]

    def row_sizes(self) -> list[int]:
        """The same whatever the caller's number of rows; a tile is passed by one row."""
        if self.layout.outer == (1,):
            return [1]
        if len(self.layout.outer) == 1:
            return [ROWS[0] if self.plan.ROWS == 1 else self.plan.ROWS + 1]
        return [ROWS[1], *[ROWS[2]] * (len(self.layout.outer) - 1)]

    def column_sizes(self) -> Sequence[int]:
        """The same for all row lengths that share this text: whole blocks, or a part of one."""
        if len(self.layout.reduced) > 1 or self.layout.reduced == (1,):
            return self.layout.reduced
        block = self.plan.BLOCK
        part = 0 if self.plan.even else max(block // 4, 1)
        return [(block if self.plan.strategy == "block" else 2 * block) - part]

    def print(self) -> str:
        w = self.writer
        with w.block("def main():"):
            w.line('"""The kernel on random inputs, beside the plain formula in float64."""')
            w.line("import torch")
            w.line()
            w.line("torch.manual_seed(0)")
            w.line('torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")')
            self.make_sizes()
            self.make_tensors()
            self.launch()
            w.line()
            w.line("torch.set_default_dtype(torch.float64)")
            self.compare()
        w.lines += ["", "", 'if __name__ == "__main__":', "    main()"]
        return COMPARE.strip("\n") + "\n\n\n" + w.text()

    # -- sizes and tensors

    def make_sizes(self) -> None:
        letters = [*self.outer, *self.reduced]
        self.writer.line(f"{', '.join(letters)} = {', '.join(map(str, self.sizes))}")
        for total, parts in (("M", self.outer), ("N", self.reduced)):
            if len(parts) > 1:
                self.writer.line(f"{total} = {' * '.join(parts)}")

    def strides(self, name: str) -> list[int]:
        outer, reduced = self.layout.of(name)
        return [*outer, *reduced]

    def dims(self, name: str) -> list[str]:
        """The size along each axis; 1 where the tensor does not vary."""
        letters = [*self.outer, *self.reduced]
        return [n if s else "1" for n, s in zip(letters, self.strides(name), strict=True)]

    def made(self, name: str, new: str) -> str:
        """A new tensor whose axes follow each other in memory as in the kernel's.

        `new` is the call that makes it, with {} for its shape.
        """
        dims, strides = self.dims(name), self.strides(name)
        moving = sorted((k for k, s in enumerate(strides) if s), key=lambda k: -strides[k])
        slots = sorted(moving)
        order = list(range(len(dims)))
        for slot, axis in zip(slots, moving, strict=True):
            order[slot] = axis
        text = new.format(", ".join(dims[k] for k in order))
        if moving == slots:
            return text
        back = [order.index(k) for k in range(len(dims))]
        return f"{text}.t()" if len(dims) == 2 else f"{text}.permute{tuple(back)}"

    def make_tensors(self) -> None:
        values = iter(NUMBERS * (1 + len(self.program.inputs) // len(NUMBERS)))
        for i in self.program.inputs:
            text = next(values) if i.number else self.made(i.name, random(i.dtype))
            self.writer.line(f"{self.name[i.name]} = {text}")
        for o in self.program.outputs:
            shape = "2, N" if o.summed else ""  # one row of sums a share of the rows
            text = (
                poisoned(o.dtype).format(shape) if shape else self.made(o.name, poisoned(o.dtype))
            )
            self.writer.line(f"{self.name[o.name]} = {text}")

    # -- the launch

    def launch(self) -> None:
        rows = self.plan.ROWS
        grid = f"(triton.cdiv(M, {rows}),)" if self.plan.tiled else "(M,)"
        if self.plan.programs:
            parts = f" * triton.cdiv(N, {self.plan.BLOCK})" if self.plan.parts > 1 else ""
            grid = f"(2{parts},)"
        options = [*self.constants, ("num_warps", self.plan.num_warps)]
        options.append(("num_stages", self.plan.num_stages))
        given = [self.given(a) for a in self.arguments] + [f"{n}={v}" for n, v in options]
        self.writer.line(f"{self.kernel}[{grid}]({', '.join(given)})")

    def given(self, argument: str) -> str:
        """What the kernel's argument gets: a tensor, a number, a size, a stride."""
        for name, local in self.name.items():
            base = identifier(name)
            if argument in (f"{base}_ptr", name):
                return local
            for side, first, count in (
                ("row", 0, len(self.outer)),
                ("column", len(self.outer), len(self.reduced)),
            ):
                for k in range(count):
                    suffix = f"_{k}" if count > 1 else ""
                    if argument == f"{base}_{side}_stride{suffix}":
                        axis = first + k
                        return f"{local}.stride({axis})" if self.strides(name)[axis] else "0"
        return argument

    # -- the formula

    def compare(self) -> None:
        formula = Formula(self.program, self.namer, self.writer)
        for i in self.program.inputs:
            local = self.name[i.name]
            text = self.widened(i)
            if i.number and formula.needs_tensor(i.name):
                text = f"torch.tensor({local})"
            if text != local:
                self.writer.line(f"{local} = {text}")
            formula.bind(i.name, local)
        formula.stages()
        sign = "ok ="
        for o, wanted in zip(self.program.outputs, formula.outputs(), strict=True):
            got = self.flat(self.name[o.name])
            if o.summed:
                got, wanted = f"{got}.double().sum(0)", f"({wanted}).sum(0)"
            roundings = {o.dtype, self.program.state, *formula.roundings()} & {*TOLERANCES}
            exact = dtype_kind(o.dtype) != "float"
            tolerance = "0" if exact else max((TOLERANCES[d] for d in roundings), key=float)
            if ".state." in str(o.expr.value) and not exact:
                tolerance = "1e-2"  # a slot may hold nothing but what rounding left
            self.writer.line(f'{sign} compare("{o.name}", {got}, {wanted}, {tolerance})')
            sign = "ok &="
        with self.writer.block("if not ok:"):
            self.writer.line("raise SystemExit(1)")

    def widened(self, given: Input) -> str:
        """The input as the formula reads it: float64 or int64, reduced axes joined."""
        text = self.name[given.name]
        if given.number:
            return text
        if given.kind == "float" and given.dtype != "float64":
            text += ".double()"
        if given.kind == "int" and given.dtype != "int64":
            text += ".long()"
        along = self.dims(given.name)[len(self.outer) :]
        narrow = any(d == "1" and n > 1 for d, n in zip(along, self.layout.reduced, strict=True))
        if narrow and self.program.place_of_name(given.name) in ("element", "column"):
            text += f".expand({', '.join(['-1'] * len(self.outer) + self.reduced)})"
        return self.flat(text)

    def flat(self, text: str) -> str:
        return text if len(self.reduced) == 1 else f"{text}.flatten({len(self.outer)})"


def random(dtype: str) -> str:
    """The call that makes a random tensor; integers may be classes, so they stay below N."""
    kind = dtype_kind(dtype)
    if kind == "bool":
        return "torch.randint(2, ({}), dtype=torch.bool)"
    if kind == "float":
        return (
            "torch.randn({})" if dtype == "float32" else f"torch.randn({{}}, dtype=torch.{dtype})"
        )
    top = f"min(N, {LARGEST[dtype]})" if dtype in LARGEST else "N"
    more = "" if dtype == "int64" else f", dtype=torch.{dtype}"
    return f"torch.randint({top}, ({{}}){more})"


def poisoned(dtype: str) -> str:
    """The call that makes an output which shows what nobody wrote."""
    kind = dtype_kind(dtype)
    if kind == "bool":
        return random(dtype)
    value = 'float("nan")' if kind == "float" else "99" if dtype[0] == "u" else "-1"
    more = "" if dtype in ("float32", "int64") else f", dtype=torch.{dtype}"
    return f"torch.full(({{}}), {value}{more})"


def script(
    program: Program,
    plan: RowPlan,
    layout: Layout,
    kernel: str,
    arguments: Sequence[str],
    constants: Sequence[tuple[str, int]],
) -> str:
    """The functions `compare` and `main` of a printed row kernel, and the call of `main`."""
    return Script(program, plan, layout, kernel, arguments, constants).print()
