"""What the command line prints: a program in normal form, and colour on a terminal."""

from __future__ import annotations

import io
import keyword
import os
import re
import sys
import tokenize
from collections.abc import Sequence

from fusedreduce.ir.show import listing
from fusedreduce.program import Program, Stage

GREEN, RED, YELLOW, CYAN, MAGENTA, GREY, BOLD = 32, 31, 33, 36, 35, 90, 1
STATUS_COLOURS = {
    r"\b(Proved|proved)\b": GREEN,
    r"\b(Refuted|refuted)\b": RED,
    r"\b(Unknown|Checked)\b": YELLOW,
}
TOKEN_COLOURS = {tokenize.COMMENT: GREY, tokenize.STRING: GREEN, tokenize.NUMBER: CYAN}


# ---- the normal form ---------------------------------------------------------------------------


def normal_form(program: Program) -> str:
    """Axes, inputs, stages and outputs of a program, an expression a line."""
    sizes = ", ".join(f"{a.name} = {a.size}{' reduced' * a.reduced}" for a in program.axes)
    inputs = [
        f"input   {i.name}: {i.dtype}" + (" number" if i.number else f" ({dims(i.dims)})")
        for i in program.inputs
    ]
    outputs = [f"output  {o.name}: {o.dtype} ({dims(o.dims)})" for o in program.outputs]
    formulas = listing((o.name, o.expr) for o in program.outputs)
    blocks = [
        "\n".join([f"{program.name}, computed in {program.state}", f"axes    {sizes}", *inputs]),
        *(stage_text(s) for s in program.stages),
        "\n".join([*outputs, indented(formulas)]),
    ]
    return "\n\n".join(blocks)


def stage_text(s: Stage) -> str:
    record = s.record
    terms = [(f.name, f.term) for f in record.fields if f.term is not None]
    general = [
        (f"{part} {f.name}", e)
        for part, exprs in (("lift", record.lift), ("merge", record.merge))
        for f, e in zip(record.fields, exprs, strict=False)
    ]
    corrections = [(f"correct {f.name}", f.correct) for f in record.fields if f.correct is not None]
    lines = [
        *((f"operand {n}", e) for n, e in s.operands),
        *((f"{record.by_name[n].kind} {n}", e) for n, e in terms),
        *general,
        *corrections,
        *((s.result(o), e) for o, e in record.finish),
    ]
    return f"stage   {s.name}: {record.name}, level {s.level}\n{indented(listing(lines))}"


def dims(of: Sequence[Sequence[str]]) -> str:
    return ", ".join("*".join(d) or "1" for d in of)


def indented(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.splitlines())


# ---- colour ------------------------------------------------------------------------------------


def coloured() -> bool:
    """A terminal that has not asked for plain text (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def styled(text: str, code: int) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if coloured() else text


def statuses(text: str) -> str:
    """A certificate with its verdicts in colour."""
    for pattern, colour in STATUS_COLOURS.items():
        text = re.sub(pattern, lambda found, c=colour: styled(found[0], c), text)  # type: ignore[misc]
    return text


def highlighted(source: str) -> str:
    """Python source with its comments, strings, numbers and keywords in colour."""
    lines = source.splitlines()
    for token in reversed([*tokenize.generate_tokens(io.StringIO(source).readline)]):
        colour = TOKEN_COLOURS.get(token.type)
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            colour = MAGENTA
        (row, start), (last_row, end) = token.start, token.end
        if colour and row == last_row:
            line = lines[row - 1]
            lines[row - 1] = line[:start] + styled(token.string, colour) + line[end:]
    return "\n".join(lines)
